"""Real frames: which frames of a clip are its own, and which only repeat one to fill it up.

Where a video ends too soon, its last frame is repeated behind the real ones. Where a window begins before the video
does, the first frame is repeated before them (`Flag.PADDED_FRONT`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.store.schema import Flag


def first_real(n_real: NDArray[np.integer[Any]], flags: NDArray[np.integer[Any]], frames: int) -> NDArray[np.int64]:
    """(n,) number of the first real frame of each clip; the `n_real` from there on are real.

    Args:
        n_real: (n,) real frames.
        flags: (n,) `Flag` bits.
        frames: frames a clip.
    """
    at_front = (np.asarray(flags) & Flag.PADDED_FRONT.value) != 0
    return np.where(at_front, frames - np.asarray(n_real, np.int64), 0)


def real_steps(
    n_real: NDArray[np.integer[Any]], flags: NDArray[np.integer[Any]], *, frames: int, steps: int
) -> NDArray[np.bool_]:
    """(n, steps) whether any frame of a time step is real, where `steps` tokens share a clip's `frames` evenly."""
    first = first_real(n_real, flags, frames)[:, None]
    step = np.arange(steps) * frames / steps  # the first frame of each, and the one behind its last
    mask: NDArray[np.bool_] = (step < first + np.asarray(n_real)[:, None]) & (step + frames / steps > first)
    return mask


def real_means(
    patch: NDArray[np.floating[Any]], n_real: NDArray[np.integer[Any]], flags: NDArray[np.integer[Any]], frames: int
) -> NDArray[np.float32]:
    """(n, dim) mean of the tokens (n, time, row, col, dim) of real frames, summed in float64."""
    mask = real_steps(n_real, flags, frames=frames, steps=patch.shape[1])
    parts = [tokens if real.all() else tokens[real] for tokens, real in zip(patch, mask, strict=True)]
    return np.stack([part.mean(axis=(0, 1, 2), dtype=np.float64) for part in parts]).astype(np.float32)
