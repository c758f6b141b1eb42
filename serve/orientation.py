"""Orientation: how a coded picture is turned and mirrored to stand upright."""

from math import atan2, pi
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av.buffer import Buffer
    from av.video.frame import VideoFrame


def orientation(frame: "VideoFrame") -> tuple[int, bool]:
    """Quarter turns clockwise (0 to 3), and whether the picture is mirrored left to right before turning.

    From the display matrix of ISO/IEC 14496-12, 6.2.2: x' = a x + c y, y' = b x + d y, with y downwards.
    Angles between quarter turns go to the nearest one; scaling and shear are ignored, as is the pixel aspect.
    """
    try:
        data = cast("Buffer | None", frame.side_data.get("DISPLAYMATRIX"))
    except ValueError:  # PyAV 18 does not know every kind of side data of its own FFmpeg
        return round(-frame.rotation / 90) % 4, False
    if data is None:
        return 0, False
    a, b, _, c, d = (int(value) for value in np.frombuffer(bytes(data)[:20], np.int32))
    mirrored = a * d - b * c < 0
    if mirrored:
        a, b = -a, -b
    return round(atan2(b, a) / (pi / 2)) % 4, mirrored


def upright(picture: NDArray[np.uint8], quarter_turns: int, mirrored: bool) -> NDArray[np.uint8]:
    """Apply what `orientation` returned to a (H, W, 3) picture; contiguous."""
    if mirrored:
        picture = picture[:, ::-1]
    return np.ascontiguousarray(np.rot90(picture, k=-quarter_turns))
