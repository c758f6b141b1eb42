"""Decoded order: the places of frames in files where only decoding tells them, and what a loss leaves of it."""

from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coldframe.serve.packets import NO_PTS, Packets, StreamFacts

TAIL_STEPS = 16  # where a cut or a loss can leave holes: H.264 and HEVC reorder at most 16 frames
_PLAUSIBLE_RATES = (Fraction(1), Fraction(300))


def orders_pictures(packets: Packets, reorders: bool) -> bool:
    """True if pts can order pictures: all have one, and it is not a decoding time under another name."""
    pts = packets.pts
    return not ((pts == NO_PTS).any() or (reorders and bool((np.diff(pts) > 0).all())))


def lost_in_place(packets: Packets, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """`order` with the frames that were given up, which come out late, at their places by pts within their group.

    A timeline that restarts does so with a key frame, so inside a group of pictures pts can be compared.
    """
    group = np.cumsum(packets.key)
    return order[np.lexsort((packets.pts[order], group[order]))]


def without_torn_groups(
    packets: Packets, order: NDArray[np.int64], lost: Collection[int]
) -> tuple[Packets, NDArray[np.int64]]:
    """The rest of a group of pictures as damaged, each packet with a place, where a loss leaves no order to it.

    B-frames without times: only the decoder knows where a lost one belongs. Pictures that were out before are at their
    places. Those that the decoder was holding when it met the damage it may drop without a word, also of the group
    before; and the group behind may begin with pictures that refer to what was lost.
    """
    if not lost:
        return packets, order
    group = np.cumsum(packets.key)
    count = int(group[-1]) + 1
    begin, end = np.searchsorted(group, np.arange(count)), np.searchsorted(group, np.arange(count), side="right")
    first_lost = end + TAIL_STEPS  # of each group, in packets
    at = np.array([name for name in lost if name < len(packets)], np.int64)
    np.minimum.at(first_lost, group[at], at)
    torn = np.unique(group[at])
    incomplete = np.bincount(group[order], minlength=count) < end - begin
    before = torn[(torn > 0) & incomplete[torn - 1]] - 1
    first_lost[before] = np.minimum(first_lost[before], end[before])
    behind = torn[torn < count - 1] + 1
    first_lost[behind] = begin[behind]
    order = order[np.argsort(group[order], kind="stable")]
    place = begin[group[order]] + np.arange(len(order)) - np.searchsorted(group[order], group[order])
    kept = order[place < (first_lost - TAIL_STEPS)[group[order]]]
    # What is before the first frame stays out of the index.
    affected = np.intersect1d(np.flatnonzero(first_lost < end + TAIL_STEPS), group[order])
    given_up = np.isin(group, affected) & ~np.isin(np.arange(len(packets)), kept)
    order = np.concatenate((kept, np.flatnonzero(given_up)))
    order = order[np.argsort(group[order], kind="stable")]
    return replace(packets, damaged=packets.damaged | given_up), order


def frame_rate(packets: Packets, stream: StreamFacts) -> Fraction:
    """Frames a second where frames have no times: the typical decoding step, else what the headers say.

    A header's rate is taken if it is within 5 % of the step, because it is exact where the step is rounded.
    """
    # Frames of one laced block or of a fragment without durations share a time, or have none.
    timed = np.flatnonzero(packets.dts != NO_PTS)
    timed = timed[np.diff(packets.dts[timed], prepend=NO_PTS) != 0]
    keys = timed[packets.key[timed]]
    if stream.reorders and len(timed) < len(packets) and len(keys) > 1:
        timed = keys  # others may stand before frames that are shown earlier
    frames = np.diff(timed)
    steps = np.repeat(np.diff(packets.dts[timed]) / frames, frames)
    steps = steps[steps > 0]
    low, high = _PLAUSIBLE_RATES
    stated = [rate for rate in stream.rates if low <= rate <= high]
    if len(steps):
        measured = 1 / (Fraction(float(np.median(steps))).limit_denominator(1000) * stream.time_base)
        return next((rate for rate in stated if abs(rate - measured) <= measured / 20), measured)
    return stated[0] if stated else Fraction(25)  # what FFmpeg assumes of raw streams
