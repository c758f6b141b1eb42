"""Preprocess: one decoded picture to the encoder's input."""

from fractions import Fraction
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.store.recipe import ImageSize, height_width

# Of the resized picture before the crop; 2 x 4000 pixels brought to a short side of 224 would be 448,000
# wide.
MAX_RESIZED_PIXELS = 8192 * 8192


def resize_crop(frame: NDArray[np.uint8], size: ImageSize) -> NDArray[np.uint8]:
    """Centre of `frame` after it was resized to just cover `size`, keeping its shape.

    Antialiased bicubic on uint8: PIL's BICUBIC to one grey level, except for at most 2 in 10,000 values,
    which differ by two. For a square, the short side becomes `size`; else the side that would fall short first
    fits exactly. The other side is rounded half to even, the crop starts at floor((side - size) / 2). A picture
    that has the size already keeps its bytes.

    Args:
        frame: (H, W, 3) uint8 RGB in [0, 255].
        size: side of a square in pixels, or height and width.

    Returns:
        (height, width, 3) uint8 RGB in [0, 255], contiguous.

    Raises:
        VideoError: reason `limit` if the picture is so long and thin that the resized one has more than
            `MAX_RESIZED_PIXELS` pixels.
    """
    height, width, _ = frame.shape
    wanted_height, wanted_width = height_width(size)
    scale = max(Fraction(wanted_height, height), Fraction(wanted_width, width))
    new_height, new_width = round(height * scale), round(width * scale)
    if new_height * new_width > MAX_RESIZED_PIXELS:
        raise VideoError(
            "limit",
            f"A picture of {width} x {height} pixels would be resized to {new_width} x {new_height}; "
            f"allowed are {MAX_RESIZED_PIXELS} pixels.",
        )
    if (new_height, new_width) != (height, width):
        frame = _resize(frame, new_height, new_width)
    top, left = (new_height - wanted_height) // 2, (new_width - wanted_width) // 2
    return np.ascontiguousarray(frame[top : top + wanted_height, left : left + wanted_width])


def _resize(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    pixels = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]  # (1, 3, H, W), channels last
    resized = torch.nn.functional.interpolate(
        pixels, size=(height, width), mode="bicubic", align_corners=False, antialias=True
    )
    return cast(NDArray[np.uint8], resized[0].permute(1, 2, 0).numpy())
