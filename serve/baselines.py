"""Baselines: what colour and motion alone say of a clip, from the very frames that the encoder is given.

An encoder that does not beat them on a task has shown nothing. Padding is left out: `n_real` frames count.

    colour   HSV histogram of 8 x 8 x 8 bins a frame, mean over frames, square root (Hellinger); its squares sum to 1.
             Bin 64 h + 8 s + v; hue, saturation and value are cut into 8 equal parts of [0, 1], grey has hue 0.
    motion   for each step between two frames, the mean absolute difference of luma (0.299 R + 0.587 G + 0.114 B, in
             [0, 1]) on a grid of 14 x 14 cells; then one histogram of flow directions over all steps on 4 x 4 cells,
             8 directions each, weighted by length, summing to 1 (all 0 where nothing moves). Direction k is within
             22.5 degrees of 45 k, counted from rightwards towards downwards.

Flow is that of Lucas and Kanade (1981) in 28 x 28 windows, with 1e-4 a pixel added to both diagonal terms, so that
a window without texture has none. Cell i of n covers the pixels [floor(i S / n), floor((i + 1) S / n)) of a side S.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.store.recipe import ImageSize, height_width

COLOUR_BINS = 8**3
_GRID, _WINDOWS, _CELLS, _DIRECTIONS = 14, 28, 4, 8
_FLAT = 1e-4  # squared luma a pixel; a gradient of 1 % weighs as much

Clip = NDArray[np.uint8]
Luma = NDArray[Any]  # float32; arithmetic of numpy's stubs forgets it


def motion_values(frames: int) -> int:
    """Length of the motion baseline of a clip of `frames` frames."""
    return (frames - 1) * _GRID**2 + _CELLS**2 * _DIRECTIONS


def require_baselines(frames: int, image_size: ImageSize) -> None:
    """Refuse pictures that are too small for the flow's windows, and clips of one frame.

    Raises:
        UsageError: fewer than 28 pixels a side, or fewer than 2 frames.
    """
    if min(height_width(image_size)) < _WINDOWS or frames < 2:
        raise UsageError(
            f"the encoder takes {frames} frames of {image_size} px; baselines need 2 frames and {_WINDOWS} px or more "
            "a side. Leave --baselines away."
        )


def clip_baselines(
    clips: Sequence[Clip], n_real: Sequence[int], first: Sequence[int]
) -> dict[str, NDArray[np.float32]]:
    """`baseline_colour` (n, 512) and `baseline_motion` of `clips`, by the name of the store's array."""
    cases = list(zip(clips, n_real, first, strict=True))
    return {
        "baseline_colour": np.stack([colour_baseline(clip, real, at) for clip, real, at in cases]),
        "baseline_motion": np.stack([motion_baseline(clip, real, at) for clip, real, at in cases]),
    }


def colour_baseline(clip: Clip, n_real: int, first: int = 0) -> NDArray[np.float32]:
    """(512,) float32 in [0, 1].

    Args:
        clip: (frames, height, width, 3) uint8 RGB.
        n_real: frames that count, at least 1.
        first: the first that counts; above 0 where padding comes first.
    """
    # Whole numbers throughout: a colour lies in exactly one bin, and no rounding decides which.
    red, green, blue = np.moveaxis(clip[first : first + n_real].astype(np.int16), -1, 0)
    most = np.maximum(np.maximum(red, green), blue)
    spread = most - np.minimum(np.minimum(red, green), blue)
    sixth = np.where(
        most == red, green - blue, np.where(most == green, blue - red + 2 * spread, red - green + 4 * spread)
    )
    sixth += np.where(sixth < 0, 6 * spread, 0).astype(np.int16)
    hue = 4 * sixth // (3 * np.maximum(spread, 1))  # 8 parts of 6 sixths, each `spread` long
    saturation = np.minimum(8 * spread // np.maximum(most, 1), 7)
    bins = (64 * hue + 8 * saturation + (most >> 5)).ravel()
    counts = np.bincount(bins, minlength=COLOUR_BINS)  # frames have equally many pixels, so this is their mean
    found: NDArray[np.float32] = np.sqrt(counts / counts.sum()).astype(np.float32)
    return found


def motion_baseline(clip: Clip, n_real: int, first: int = 0) -> NDArray[np.float32]:
    """((frames - 1) * 196 + 128,) float32 in [0, 1]; steps to or from padding are 0.

    Args:
        clip, n_real, first: as `colour_baseline`; pictures of 28 pixels or more a side.
    """
    real = clip[first : first + n_real]
    luma: Luma = real.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32) / np.float32(255)
    steps = luma[1:] - luma[:-1]  # (n_real - 1, height, width)
    differences = np.zeros((len(clip) - 1, _GRID, _GRID), np.float32)
    differences[first : first + len(steps)] = _cell_means(np.abs(steps), _GRID)
    return np.concatenate([differences.ravel(), _directions(luma, steps).ravel()])


def _directions(luma: Luma, steps: Luma) -> NDArray[np.float32]:
    """(4, 4, 8) histogram of flow directions over all steps."""
    middle: Luma = (luma[1:] + luma[:-1]) / np.float32(2)
    down, right = np.gradient(middle, axis=(1, 2)) if len(steps) else (middle, middle)
    xx, xy, yy, xt, yt = (
        _cell_means(one * other, _WINDOWS).astype(np.float64)
        for one, other in ((right, right), (right, down), (down, down), (right, steps), (down, steps))
    )
    xx, yy = xx + _FLAT, yy + _FLAT
    determinant = xx * yy - xy * xy
    x, y = (xy * yt - yy * xt) / determinant, (xy * xt - xx * yt) / determinant  # pixels a step
    direction = np.rint(np.arctan2(y, x) / (2 * np.pi) * _DIRECTIONS).astype(np.int64) % _DIRECTIONS
    cell = np.arange(_WINDOWS) * _CELLS // _WINDOWS
    place = (cell[:, None] * _CELLS + cell) * _DIRECTIONS + direction  # (steps, 28, 28)
    found = np.bincount(place.ravel(), weights=np.hypot(x, y).ravel(), minlength=_CELLS**2 * _DIRECTIONS)
    total = found.sum()
    return (found / total if total > 0 else found).astype(np.float32).reshape(_CELLS, _CELLS, _DIRECTIONS)


def _cell_means(pictures: Luma, cells: int) -> NDArray[np.float32]:
    """(n, cells, cells) means of `pictures` (n, height, width)."""
    _, height, width = pictures.shape
    means: NDArray[np.float32] = _averaging(height, cells) @ pictures @ _averaging(width, cells).T
    return means


@cache
def _averaging(side: int, cells: int) -> NDArray[np.float32]:
    """(cells, side) matrix whose product with a column of pixels is the mean of each cell."""
    owner = np.searchsorted(np.arange(1, cells + 1) * side // cells, np.arange(side), side="right")
    members = owner == np.arange(cells)[:, None]
    matrix: NDArray[np.float32] = (members / members.sum(axis=1, keepdims=True)).astype(np.float32)
    matrix.setflags(write=False)
    return matrix
