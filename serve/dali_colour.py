"""DALI colour: what makes of DALI's RGB what PyAV makes of the same picture, as two matrices for the graph.

DALI reads every file by BT.601, rounds each sum, and clips. PyAV uses FFmpeg's fast conversion: the file's own matrix,
and of each product the fraction is dropped. A level here and there is enough to move features, so DALI's RGB is turned
back into whole levels of Y, Cb and Cr, and these into RGB by FFmpeg's rule:

    RGB -> codes, rounded to uint8 -> products, the fraction dropped -> sums, clipped to uint8

What cannot be undone: DALI interpolates chroma where FFmpeg repeats it, and what it clipped is lost. Of colours that
another matrix can show, only green is ever clipped. docs/decoding.md has the figures.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

# What red and blue weigh in luma (ITU-R BT.601, BT.709, BT.2020; SMPTE 240M), by FFmpeg's number of the matrix.
# Untagged is read as BT.601.
_BT601 = (0.299, 0.114)
WEIGHTS: dict[int, tuple[float, float]] = {
    1: (0.2126, 0.0722),
    2: _BT601,
    5: _BT601,
    6: _BT601,
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}
# Red is the first product and the second, green the first, third and fourth, blue the first and fifth.
SUMS = ((1, 1, 0, 0, 0), (1, 0, 1, 1, 0), (1, 0, 0, 0, 1))

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
    """How DALI's pictures of the file that `frame` is of become PyAV's. The file's matrix must be one of `WEIGHTS`."""
    full = frame.color_range == _FULL_RANGE or frame.format.name.startswith("yuvj")
    ranges = np.array([1.0, 1.0, 1.0] if full else [255 / 219, 255 / 224, 255 / 224])
    zeros = np.array([0.0 if full else 16.0, 128.0, 128.0])
    from_codes, to_rgb = (_products(weights) * ranges for weights in (_BT601, WEIGHTS[int(frame.colorspace)]))
    sums = np.array(SUMS, np.float64)
    if _is_rounded(frame):
        # FFmpeg rounds once here, as DALI does: one product for each colour, and half a level before its fraction goes
        products = np.zeros((5, 3))
        products[[1, 2, 4]] = sums @ to_rgb @ np.linalg.inv(sums @ from_codes)
        return _conversion(np.eye(3), np.zeros(3), products, np.full(5, 0.5))
    codes = np.linalg.inv(sums @ from_codes)
    return _conversion(codes, zeros, to_rgb, _HAIR - to_rgb @ zeros)


def _conversion(
    codes: NDArray[np.float64], zeros: NDArray[np.float64], products: NDArray[np.float64], added: NDArray[np.float64]
) -> Conversion:
    return Conversion(
        codes=np.column_stack([codes, zeros]).astype(np.float32),
        products=np.column_stack([products, added]).astype(np.float32),
    )


def _products(weights: tuple[float, float]) -> NDArray[np.float64]:
    """(5, 3) what `SUMS` adds up, of Y, Cb and Cr around 0 in full range."""
    red, blue = weights
    green = 1 - red - blue
    return np.array(
        [
            (1, 0, 0),
            (0, 0, 2 * (1 - red)),
            (0, -2 * blue * (1 - blue) / green, 0),
            (0, 0, -2 * red * (1 - red) / green),
            (0, 2 * (1 - blue), 0),
        ]
    )


def _is_rounded(frame: "VideoFrame") -> bool:
    """FFmpeg has the fast conversion for 4:2:0 and 4:2:2 pictures with an even number of rows.

    Others it rounds, but for odd numbers of rows of even length, which `dali_files` refuses.
    """
    return "444" in frame.format.name or bool(frame.height % 2)
