"""Agreement: whether two decoders gave the same pictures, and if not, in what way."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Square = NDArray[np.uint8]
Verdict = Literal["agree", "other frames", "other colours", "other pictures"]

# One decoder rounds where another drops fractions: 1 to 2 levels. Chroma that is interpolated or repeated differs at
# edges, much but in few places, and not in the mean of a block. A wrong matrix or range shows in the blocks.
MAX_MEAN_LEVELS = 2.0
MAX_BLOCK_LEVELS = 5.0
_OTHER_PICTURE_LEVELS = 64.0  # beyond what a wrong matrix or range does to natural colours
_BLOCK = 8  # blocks along each side of a picture
# Two neighbouring frames of a still scene are too alike to say which of them a picture is.
_CLEARLY_NEARER = 0.5
_SAME_PICTURE = 4.0  # mean levels; a picture that is further from every frame nearby is of none of them


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Comparison of some frames of one video with a reference.

    Attributes:
        frames: how many were compared.
        misplaced: how many are clearly another frame of the same video.
        max_levels, mean_levels: absolute difference of values, largest and mean.
        block_levels: largest difference of the means of a block, a 64th of the picture.
    """

    frames: int
    misplaced: int
    max_levels: int
    mean_levels: float
    block_levels: float

    @property
    def verdict(self) -> Verdict:
        if self.misplaced:
            return "other frames"
        if self.block_levels > MAX_BLOCK_LEVELS:
            return "other colours" if self.block_levels < _OTHER_PICTURE_LEVELS else "other pictures"
        return "agree" if self.mean_levels <= MAX_MEAN_LEVELS else "other colours"


def compare(found: Mapping[int, Square], reference: Mapping[int, Square]) -> Agreement:
    """Compare squares by frame number.

    Args:
        found: (S, S, 3) squares under test.
        reference: squares of at least the same frames; further ones nearby tell which frame a picture really is.
    """
    misplaced, largest, total, blocks = 0, 0, 0.0, 0.0
    for number, square in found.items():
        difference = square.astype(np.int16) - reference[number]
        distance = float(np.abs(difference).mean())
        largest = max(largest, int(np.abs(difference).max()))
        total += distance
        blocks = max(blocks, _block_levels(difference))
        nearest = min(_distance(square, other) for other in reference.values())
        misplaced += nearest <= _SAME_PICTURE and nearest + _CLEARLY_NEARER < distance
    return Agreement(
        frames=len(found),
        misplaced=misplaced,
        max_levels=largest,
        mean_levels=total / max(1, len(found)),
        block_levels=blocks,
    )


def _distance(left: Square, right: Square) -> float:
    return float(np.abs(left.astype(np.int16) - right).mean())


def _block_levels(difference: NDArray[np.int16]) -> float:
    side = max(1, len(difference) // _BLOCK)
    used = side * (len(difference) // side)
    blocks = difference[:used, :used].reshape(used // side, side, used // side, side, 3)
    return float(np.abs(blocks.mean(axis=(1, 3))).max())
