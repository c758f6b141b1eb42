"""DALI colour: what makes of DALI's RGB what PyAV makes of the same picture, as two matrices for the graph.

DALI rounds each sum of products of BT.601, and clips. PyAV uses FFmpeg's fast conversion: of each product the fraction
is dropped. A level here and there is enough to move features, so DALI's RGB is turned back into whole levels of Y, Cb
and Cr, and these into RGB by FFmpeg's rule:

    RGB -> codes, rounded to uint8 -> products, the fraction dropped -> sums, clipped to uint8

What cannot be undone: DALI interpolates chroma where FFmpeg repeats it. docs/decoding.md has the figures.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

# Red is the first product and the second, green the first, third and fourth, blue the first and fifth.
SUMS = ((1, 1, 0, 0, 0), (1, 0, 1, 1, 0), (1, 0, 0, 0, 1))

# What these sum up, of Y, Cb and Cr around 0 in full range (ITU-R BT.601: in luma red weighs 0.299, green 0.587, blue
# 0.114).
_BT601 = np.array(
    [
        (1, 0, 0),
        (0, 0, 2 * (1 - 0.299)),
        (0, -2 * 0.114 * (1 - 0.114) / 0.587, 0),
        (0, 0, -2 * 0.299 * (1 - 0.299) / 0.587),
        (0, 2 * (1 - 0.114), 0),
    ]
)
_FULL_RANGE = 2  # AVCOL_RANGE_JPEG
_HAIR = 2.0**-10  # keeps whole products, such as luma's 0 and 255, from falling below themselves in float32


@dataclass(frozen=True, kw_only=True, eq=False)
class Conversion:
    """Two affine maps, the last column of each being added.

    Attributes:
        codes: (3, 4) float32, DALI's red, green and blue to the values that are rounded to uint8.
        products: (5, 4) float32, these to what `SUMS` adds up after its fractions are dropped.
    """

    codes: NDArray[np.float32]
    products: NDArray[np.float32]


def conversion(frame: "VideoFrame") -> Conversion:
    """How DALI's pictures of the file that `frame` is of become PyAV's. The file's matrix must be that of BT.601."""
    if _is_rounded(frame):  # DALI's are: one product for each colour, and half a level before its fraction goes
        same = np.zeros((5, 3))
        same[[1, 2, 4]] = np.eye(3)
        return _conversion(np.eye(3), np.zeros(3), same, np.full(5, 0.5))
    full = frame.color_range == _FULL_RANGE or frame.format.name.startswith("yuvj")
    ranges = np.array([1.0, 1.0, 1.0] if full else [255 / 219, 255 / 224, 255 / 224])
    zeros = np.array([0.0 if full else 16.0, 128.0, 128.0])
    products = _BT601 * ranges
    return _conversion(np.linalg.inv(np.array(SUMS) @ products), zeros, products, _HAIR - products @ zeros)


def _conversion(
    codes: NDArray[np.float64], zeros: NDArray[np.float64], products: NDArray[np.float64], added: NDArray[np.float64]
) -> Conversion:
    return Conversion(
        codes=np.column_stack([codes, zeros]).astype(np.float32),
        products=np.column_stack([products, added]).astype(np.float32),
    )


def _is_rounded(frame: "VideoFrame") -> bool:
    """FFmpeg has the fast conversion for 4:2:0 and 4:2:2 pictures with an even number of rows.

    Others it rounds, but for odd numbers of rows of even length, which `dali_files` refuses.
    """
    return "444" in frame.format.name or bool(frame.height % 2)
