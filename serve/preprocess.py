"""Preprocess: one decoded picture to the encoder's input."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.store.recipe import ImageSize, height_width

# Of the resized picture before the crop; 2 x 4000 pixels brought to a short side of 224 would be 448,000
# wide.
MAX_RESIZED_PIXELS = 8192 * 8192


@dataclass(frozen=True, kw_only=True)
class CropWindow:
    """What is cut out of a resized picture: the picture's size and the cut's first row and column, in pixels."""

    height: int
    width: int
    top: int
    left: int


def crop_window(height: int, width: int, size: ImageSize) -> CropWindow:
    """Resized size of a picture and what is cut out of it, by the rules of `resize_crop`.

    Raises:
        VideoError: reason `limit` if the resized picture has more than `MAX_RESIZED_PIXELS` pixels.
    """
    wanted_height, wanted_width = height_width(size)
    scale = max(Fraction(wanted_height, height), Fraction(wanted_width, width))
    new_height, new_width = round(height * scale), round(width * scale)
    if new_height * new_width > MAX_RESIZED_PIXELS:
        raise VideoError(
            "limit",
            f"A picture of {width} x {height} pixels would be resized to {new_width} x {new_height}; "
            f"allowed are {MAX_RESIZED_PIXELS} pixels.",
        )
    top, left = (new_height - wanted_height) // 2, (new_width - wanted_width) // 2
    return CropWindow(height=new_height, width=new_width, top=top, left=left)


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
    window = crop_window(height, width, size)
    wanted_height, wanted_width = height_width(size)
    bottom, right = window.top + wanted_height, window.left + wanted_width
    if (window.height, window.width) != (height, width):
        return _resize(frame, (window.height, window.width), (window.top, window.left, bottom, right))
    return np.ascontiguousarray(frame[window.top : bottom, window.left : right])


def use_one_thread() -> None:
    """Resize with one thread from now on in this process, as it suits one of several workers."""
    torch.set_num_threads(1)


def _resize(frame: NDArray[np.uint8], to: tuple[int, int], box: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    """What lies in `box` (top, left, bottom, right) of `frame` resized to the height and width `to`, bit for bit.

    What lies right of it or below is not computed, which takes a fifth off a 16:9 picture. `interpolate` cannot be told
    so: it derives the scale from the size of its output, and here the two are separate.
    """
    height, width, _ = frame.shape
    top, left, bottom, right = box
    pixels = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]  # (1, 3, H, W), channels last
    resized = torch.ops.aten._upsample_bicubic2d_aa(pixels, [bottom, right], False, to[0] / height, to[1] / width)
    planes = resized[0, :, top:, left:].numpy()  # (3, bottom - top, right - left)
    cut = np.empty((bottom - top, right - left, 3), np.uint8)
    for channel in range(3):  # three strided copies are twice as fast as one transposed
        cut[:, :, channel] = planes[channel]
    return cut
