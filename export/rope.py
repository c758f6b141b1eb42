"""Rotary positions of LeVJEPA and V-JEPA 2, in closed form.

A head of `d` dims has three groups of width `a = 2 * floor(floor(d / 3) / 2)`, for time, height and width in
this order; the `d - 3a` dims that remain are not rotated. Within a group, adjacent dims form a pair, and dim
`m` turns by `position * 10000 ** (-(m mod a/2) / (a/2))`. The frequencies are therefore laid out in two
halves ("tiled") while the pairs are adjacent, so the two dims of a pair turn by different angles and lengths
are not preserved. Upstream knows (facebookresearch/vjepa2 PR 15) and keeps it, since weights were trained
with it.
"""

import numpy as np
import torch
from numpy.typing import NDArray

BASE = 10000.0


def axis_width(head_dim: int) -> int:
    """Dims of one head that each of the three axes rotates."""
    return 2 * (head_dim // 3 // 2)


def rope_angles(head_dim: int, *, frames: int, rows: int, cols: int) -> NDArray[np.float64]:
    """Angle by which each dim of each patch turns.

    Positions are whole grid indices from 0 and are not rescaled with the size of the input.

    Returns:
        `(frames * rows * cols, head_dim)` float64 in radians, patches in (time, row, col) order; 0 for dims
        that are not rotated.
    """
    width = axis_width(head_dim)
    half = width // 2
    frequency = BASE ** (-(np.arange(width) % half) / half)
    angles = np.zeros((frames, rows, cols, head_dim))
    for axis, length in enumerate((frames, rows, cols)):
        shape = [1, 1, 1, width]
        shape[axis] = length
        angles[..., axis * width : (axis + 1) * width] = np.outer(np.arange(length), frequency).reshape(shape)
    return angles.reshape(frames * rows * cols, head_dim)


def rotate(tokens: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn adjacent pairs of dims.

    Args:
        tokens: `(..., n, d)` with even `d`.
        cos, sin: `(n, d)` cosine and sine of `rope_angles`.
    """
    partner = torch.stack((-tokens[..., 1::2], tokens[..., 0::2]), dim=-1).flatten(-2)
    return tokens * cos + partner * sin
