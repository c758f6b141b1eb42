"""YUV to RGB in float64, from the planes of a decoded picture: the independent reference for colours.

The matrix is the tagged one, or that of BT.601. Chroma between samples is either interpolated or repeated; a chroma
sample lies in the middle of the pixels that it covers. As in FFmpeg's fast conversion, each product with a coefficient
of the matrix loses its fraction.
"""

import av
import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.float64]

# Kr and Kb of ITU-R BT.709, SMPTE 240M and BT.2020, by FFmpeg's number; else those of BT.601
_TAGGED = {1: (0.2126, 0.0722), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}


def to_rgb(frame: av.VideoFrame, *, interpolated: bool) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB of an 8-bit planar YUV picture."""
    full = frame.color_range == 2 or frame.format.name.startswith("yuvj")
    of_red, of_blue = _TAGGED.get(int(frame.colorspace), (0.299, 0.114))
    of_green = 1 - of_red - of_blue
    luma, blue, red = (_samples(plane) for plane in frame.planes[:3])
    luma = luma if full else np.floor((luma - 16) * 255 / 219)
    blue, red = (_spread((plane - 128) * (1 if full else 255 / 224), luma.shape, interpolated) for plane in (blue, red))
    rgb = [
        luma + np.floor(2 * (1 - of_red) * red),
        luma
        + np.floor(-2 * of_blue * (1 - of_blue) / of_green * blue)
        + np.floor(-2 * of_red * (1 - of_red) / of_green * red),
        luma + np.floor(2 * (1 - of_blue) * blue),
    ]
    return np.stack(rgb, -1).clip(0, 255).astype(np.uint8)


def _samples(plane: av.video.plane.VideoPlane) -> Plane:
    rows = np.frombuffer(bytes(plane), np.uint8).reshape(plane.height, plane.line_size)
    return np.asarray(rows[:, : plane.width], np.float64)


def _spread(chroma: Plane, shape: tuple[int, ...], interpolated: bool) -> Plane:
    """`chroma` at each pixel of a picture of `shape`."""
    for axis in (0, 1):
        places = (np.arange(shape[axis]) + 0.5) * round(chroma.shape[axis] / shape[axis] * 2) / 2 - 0.5
        if not interpolated:
            places = np.floor(places + 0.5)
        places = places.clip(0, chroma.shape[axis] - 1)
        before = np.minimum(np.floor(places).astype(int), chroma.shape[axis] - 2)
        share = (places - before).reshape((-1, 1) if axis == 0 else (1, -1))
        chroma = np.take(chroma, before, axis) * (1 - share) + np.take(chroma, before + 1, axis) * share
    return chroma
