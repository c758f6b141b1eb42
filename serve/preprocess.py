"""Preprocess: one decoded picture to the encoder's square input."""

from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from coldframe.errors import VideoError

# Of the resized picture before the crop; 2 x 4000 pixels brought to a short side of 224 would be 448,000
# wide.
MAX_RESIZED_PIXELS = 8192 * 8192


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
    short = min(height, width)
    new_height, new_width = (round(Fraction(side * size, short)) for side in (height, width))
    if new_height * new_width > MAX_RESIZED_PIXELS:
        raise VideoError(
            "limit",
            f"A picture of {width} x {height} pixels would be resized to {new_width} x {new_height}; "
            f"allowed are {MAX_RESIZED_PIXELS} pixels.",
        )
    top, left = (new_height - size) // 2, (new_width - size) // 2
    if (new_height, new_width) != (height, width):
        return _resize(frame, (new_height, new_width), top, left, size)
    return np.ascontiguousarray(frame[top : top + size, left : left + size])


def use_one_thread() -> None:
    """Resize with one thread from now on in this process, as it suits one of several workers."""
    torch.set_num_threads(1)


def _resize(frame: NDArray[np.uint8], to: tuple[int, int], top: int, left: int, size: int) -> NDArray[np.uint8]:
    """The square at `top`, `left` of `frame` resized to the height and width `to`, bit for bit.

    What lies right of it or below is not computed, which takes a fifth off a 16:9 picture. `interpolate` cannot be told
    so: it derives the scale from the size of its output, and here the two are separate.
    """
    height, width, _ = frame.shape
    pixels = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]  # (1, 3, H, W), channels last
    resized = torch.ops.aten._upsample_bicubic2d_aa(
        pixels, [top + size, left + size], False, to[0] / height, to[1] / width
    )
    planes = resized[0, :, top:, left:].numpy()  # (3, size, size)
    square = np.empty((size, size, 3), np.uint8)
    for channel in range(3):  # three strided copies are twice as fast as one transposed
        square[:, :, channel] = planes[channel]
    return square
