"""Preprocess: one decoded picture to the encoder's square input."""

from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from coldframe.errors import VideoError

# Of the resized picture before the crop; 2 x 4000 pixels brought to a short side of 224 would be 448,000
# wide.
MAX_RESIZED_PIXELS = 8192 * 8192


@dataclass(frozen=True, kw_only=True)
class CropWindow:
    """Where the square lies in the resized picture: its size and the square's first row and column, in pixels."""

    height: int
    width: int
    top: int
    left: int


def crop_window(height: int, width: int, size: int) -> CropWindow:
    """Resized size of a picture and its centre square, by the rules of `resize_crop`.

    Raises:
        VideoError: reason `limit` if the resized picture has more than `MAX_RESIZED_PIXELS` pixels.
    """
    short = min(height, width)
    new_height, new_width = (round(Fraction(side * size, short)) for side in (height, width))
    if new_height * new_width > MAX_RESIZED_PIXELS:
        raise VideoError(
            "limit",
            f"A picture of {width} x {height} pixels would be resized to {new_width} x {new_height}; "
            f"allowed are {MAX_RESIZED_PIXELS} pixels.",
        )
    return CropWindow(height=new_height, width=new_width, top=(new_height - size) // 2, left=(new_width - size) // 2)


def resize_crop(frame: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Centre square of `frame` after its short side was brought to `size`.

    Antialiased bicubic on uint8: PIL's BICUBIC to one grey level, except for at most 2 in 10,000 values,
    which differ by two. The long side is rounded half to even, the crop starts at floor((side - size) / 2).
    A picture that has the size already keeps its bytes.

    Args:
        frame: (H, W, 3) uint8 RGB in [0, 255].
        size: height and width of the result in pixels.

    Returns:
        (size, size, 3) uint8 RGB in [0, 255], contiguous.

    Raises:
        VideoError: reason `limit` if the picture is so long and thin that the resized one has more than
            `MAX_RESIZED_PIXELS` pixels.
    """
    height, width, _ = frame.shape
    window = crop_window(height, width, size)
    if (window.height, window.width) != (height, width):
        frame = _resize(frame, window.height, window.width)
    return np.ascontiguousarray(frame[window.top : window.top + size, window.left : window.left + size])


def _resize(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    pixels = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]  # (1, 3, H, W), channels last
    resized = torch.nn.functional.interpolate(
        pixels, size=(height, width), mode="bicubic", align_corners=False, antialias=True
    )
    return cast(NDArray[np.uint8], resized[0].permute(1, 2, 0).numpy())
