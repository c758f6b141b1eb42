"""Damage: bytes of a file that its container's own checks show to be wrong or missing, and the packets in them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Bytes `start` to `end`, half-open. `reaches_back`: the packet that begins before `start` is damaged too."""

    start: int
    end: int
    reaches_back: bool = False


def damaged_packets(damages: Iterable[Damage], pos: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) True for packets that begin in a damage, and for the one before it where that reaches back.

    A damage in which no packet begins has swallowed some; the packet before it then bears the mark, so that a clip
    across the place is not taken for whole.

    Args:
        damages: any number of them.
        pos: (n,) where each packet begins in the file, in bytes; -1 if unknown.
    """
    order = np.argsort(pos, kind="stable")
    in_order, hit = pos[order], np.zeros(len(pos), np.bool_)
    for damage in damages:
        first, last = np.searchsorted(in_order, (damage.start, damage.end)).tolist()
        hit[order[max(0, first - (damage.reaches_back or first == last)) : last]] = True
    return hit
