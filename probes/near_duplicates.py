"""Near-duplicates: videos that are copies of each other although their bytes differ, found in feature space.

A store keeps no pixels, so nothing here proves that two videos show the same. What is measured, on centred, unit
[CLS] features:

    candidate   two windows of different components that are more alike than 99.9 % of such pairs
    agreeing    and more alike than each is to its own neighbour in time: a copy resembles the original more than
                the next seconds of the same video do
    confirmed   two videos agree, at one offset in time, in two or more windows and in at least half of those that
                overlap; or, where one of them has a single window, its frames find their counterparts in order
                (needs patch tokens)
    suspected   they agree, and nothing confirms it

Confirmed pairs become one leak component. A false alarm there costs sources, a miss costs honesty, and a static scene
is a likely miss: its neighbours in time are copies too. Suspected pairs are listed for people to look at.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.category import Category

QUANTILE = 0.999
MAX_WINDOWS = 20_000  # all pairs of them are 0.8 TFLOP at 1,024 dimensions
_SAMPLED_PAIRS = 1_000_000
_MIN_PAIRS = 1000  # below it a 99.9 % quantile is the maximum
_SAME_OFFSET_S = 0.05
_FRAMES_IN_ORDER = 0.75
_BLOCK_BYTES = 64 << 20
_SEED = 0

Frames = Callable[[int], NDArray[np.float32]]  # a window's mean patch token of each frame, (time, dim)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two videos that look like copies.

    Attributes:
        first, second: video numbers, first < second.
        similarity: cosine of their most alike windows, centred, in [-1, 1].
        windows: window pairs that agree at the commonest offset.
        offset_s: that offset, start in first minus start in second, in seconds.
        confirmed: whether they must stay on one side of a split.
    """

    first: int
    second: int
    similarity: float
    windows: int
    offset_s: float
    confirmed: bool


@dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """What the search found, and how far it looked.

    Attributes:
        threshold: similarity above which a pair of windows is a candidate; None if there were too few pairs to
            set one, so that nothing was searched.
        compared, windows: windows that were compared, of how many.
        pairs: most alike first.
    """

    threshold: float | None
    compared: int
    windows: int
    pairs: tuple[Pair, ...]

    def confirmed(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.confirmed]


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """Windows to compare, in row order.

    Attributes:
        features: (n, dim) float32.
        video: (n,) video of each.
        components: leak component of each.
        start_s: (n,) start in seconds.
    """

    features: NDArray[np.float32]
    video: NDArray[np.int64]
    components: Category
    start_s: NDArray[np.float64]


def find_near_duplicates(
    windows: Windows,
    frames: Frames | None = None,
    on_windows: Callable[[int], object] = lambda count: None,
    max_windows: int = MAX_WINDOWS,
) -> NearDuplicates:
    """Compare every window with those of all other components.

    Args:
        windows: all windows that will be split.
        frames: mean patch tokens of the window at a position, where the store has any.
        on_windows: called with the number of windows after each block.
        max_windows: above it, evenly spaced windows of each video are compared instead of all.
    """
    kept = _thinned(windows.video, max_windows)
    unit = _centred_unit(windows.features)[kept]
    video, component = windows.video[kept], windows.components.codes[kept]
    threshold = _threshold(unit, component)
    if threshold is None:
        return NearDuplicates(threshold=None, compared=len(kept), windows=len(windows.video), pairs=())
    own = _own_neighbour(unit, video)
    agreeing: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for block, similarity in _blocks(unit, component, on_windows):
        least = np.maximum(np.maximum(own[block][:, None], own[None, :]), threshold)
        for i, j in zip(*np.nonzero(similarity > least), strict=True):
            a, b = int(i) + block.start, int(j)
            a, b = (a, b) if video[a] < video[b] else (b, a)
            agreeing.setdefault((int(video[a]), int(video[b])), []).append((float(similarity[i, j]), a, b))
    found = [
        _pair(videos, matches, windows.start_s[kept], [video == v for v in videos], kept, frames)
        for videos, matches in agreeing.items()
    ]
    pairs = tuple(sorted(found, key=lambda pair: (-pair.similarity, pair.first, pair.second)))
    return NearDuplicates(threshold=threshold, compared=len(kept), windows=len(windows.video), pairs=pairs)


def clusters(pairs: list[Pair], videos: int) -> list[str]:
    """(videos) a text that confirmed copies share, empty for videos without one; a column for `leak_components`."""
    cluster = list(range(videos))
    for pair in pairs:
        low, high = sorted((cluster[pair.first], cluster[pair.second]))
        cluster = [low if value == high else value for value in cluster]
    paired = {video for pair in pairs for video in (pair.first, pair.second)}
    return [str(cluster[video]) if video in paired else "" for video in range(videos)]


def _thinned(video: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Positions to compare: all, or as many evenly spaced ones of each video as fit."""
    if len(video) <= limit:
        return np.arange(len(video))
    _, starts, counts = np.unique(video, return_index=True, return_counts=True)
    each = max(1, limit // len(starts))
    order = np.argsort(video, kind="stable")
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    chosen = [
        order[first + np.unique(np.linspace(0, count - 1, min(each, count)).round().astype(np.int64))]
        for first, count in zip(firsts, counts, strict=True)
    ]
    return np.sort(np.concatenate(chosen))


def _centred_unit(features: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = features - features.mean(axis=0, dtype=np.float64).astype(np.float32)
    # squares in float64: those of very large or small features leave float32, and no copy would be found
    lengths = np.sqrt(np.einsum("nd,nd->n", centred, centred, dtype=np.float64))[:, None]
    unit: NDArray[np.float64] = np.divide(centred, lengths, out=np.zeros(centred.shape), where=lengths > 0)
    return unit.astype(np.float32)


def _threshold(unit: NDArray[np.float32], component: NDArray[np.int64]) -> float | None:
    rng = np.random.default_rng(_SEED)
    wanted = min(_SAMPLED_PAIRS, len(unit) ** 2)
    first, second = rng.integers(0, len(unit), (2, wanted))
    apart = component[first] != component[second]
    first, second = first[apart], second[apart]
    if len(first) < _MIN_PAIRS:
        return None
    step = max(1, _BLOCK_BYTES // (8 * unit.shape[1]))
    values = [
        np.einsum("nd,nd->n", unit[first[s : s + step]], unit[second[s : s + step]]) for s in range(0, len(first), step)
    ]
    return float(np.quantile(np.concatenate(values), QUANTILE))


def _own_neighbour(unit: NDArray[np.float32], video: NDArray[np.int64]) -> NDArray[np.float32]:
    """(n,) similarity of each window to the more alike of its neighbours in time; the median where it has none."""
    following = np.einsum("nd,nd->n", unit[:-1], unit[1:])
    same = video[:-1] == video[1:]
    own = np.full(len(unit), -1.0, np.float32)
    own[:-1][same] = following[same]
    own[1:][same] = np.maximum(own[1:][same], following[same])
    alone = np.ones(len(unit), bool)
    alone[:-1][same] = alone[1:][same] = False
    own[alone] = np.median(own[~alone]) if (~alone).any() else -1.0
    return own


def _blocks(
    unit: NDArray[np.float32], component: NDArray[np.int64], on_windows: Callable[[int], object]
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Similarities of a block of windows to all later ones of other components; -2 elsewhere."""
    step = max(1, _BLOCK_BYTES // (4 * len(unit)))
    for start in range(0, len(unit), step):
        block = slice(start, min(start + step, len(unit)))
        similarity = unit[block] @ unit.T
        earlier = np.arange(len(unit))[None, :] <= np.arange(block.start, block.stop)[:, None]
        similarity[earlier | (component[block][:, None] == component[None, :])] = -2.0
        yield block, similarity
        on_windows(block.stop - block.start)


def _pair(
    videos: tuple[int, int],
    matches: list[tuple[float, int, int]],
    start_s: NDArray[np.float64],
    members: list[NDArray[np.bool_]],
    kept: NDArray[np.int64],
    frames: Frames | None,
) -> Pair:
    best, a, b = max(matches)
    offsets = np.array([start_s[i] - start_s[j] for _, i, j in matches])
    rounded, counts = np.unique(np.round(offsets / _SAME_OFFSET_S), return_counts=True)
    windows, offset = int(counts.max()), float(rounded[counts.argmax()])
    ticks = [np.round(start_s[which] / _SAME_OFFSET_S) for which in members]
    overlap = np.count_nonzero(np.abs(ticks[0][:, None] - ticks[1][None, :] - offset) <= 1)
    confirmed = bool(windows >= 2 and windows >= overlap / 2)
    if min(map(len, ticks)) == 1 and frames is not None:
        confirmed = _in_order(frames(int(kept[a])), frames(int(kept[b])))
    return Pair(
        first=videos[0],
        second=videos[1],
        similarity=best,
        windows=windows,
        offset_s=offset * _SAME_OFFSET_S,
        confirmed=confirmed,
    )


def _in_order(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    """Whether most frames of one window are most alike to the frame of the other at the same place."""
    one, other = (_centred_unit(frames) for frames in (first, second))
    nearest = (one @ other.T).argmax(axis=1)
    return bool((nearest == np.arange(len(nearest))).mean() >= _FRAMES_IN_ORDER)
