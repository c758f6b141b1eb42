"""DALI files: which files DALI answers as PyAV does, and for which it would give other frames or other colours.

DALI returns no timestamps, so a wrong frame cannot be seen in its answer. Instead its indices are trusted only in
files where they are plainly the presentation order: every packet is one shown picture, and every key frame can be
started from. Each rule below was seen to matter or follows from how DALI reads a file (docs/decoding.md).
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from coldframe.errors import VideoError
from coldframe.serve.container import open_container, pyav
from coldframe.serve.dali_colour import Conversion, conversion
from coldframe.serve.dali_graph import DaliDevice
from coldframe.serve.frame_sizes import other_size
from coldframe.serve.preprocess import crop_window
from coldframe.serve.pts_index import PtsIndex
from coldframe.store.schema import Flag

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame

RefusalReason = Literal[
    "codec", "container", "streams", "pixel_format", "colour_matrix", "rotation", "interlaced", "size_changes",
    "truncated", "pts_synthesised", "hidden_frames", "open_gop", "key_frames", "enlarged", "size", "damaged",
    "dali_error",
]  # fmt: skip

CODECS: dict[DaliDevice, tuple[str, ...]] = {
    "cpu": ("vp8", "vp9", "mjpeg"),
    "gpu": ("h264", "hevc", "av1", "vp8", "vp9", "mjpeg"),
}

# Of other formats DALI's seeks were not tried; MPEG-TS seeks by decoding time, and DALI by presentation time.
_CONTAINERS = ("mov", "matroska", "avi")
# 8 bits a value. NVDEC gives NV12, so on the GPU only what loses nothing on the way there.
_PIXEL_FORMATS: dict[DaliDevice, tuple[str, ...]] = {
    "cpu": ("yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "yuvj444p", "yuva420p"),
    "gpu": ("yuv420p", "yuvj420p"),
}
# DALI converts by BT.601, whatever the file says: AVCOL_SPC_UNSPECIFIED, BT470BG, SMPTE170M. Saturated colours of other
# matrices are clipped on the way, and what was clipped cannot be had back.
_MATRICES = (2, 5, 6)
# A file is in memory whole, once for each of the videos in flight.
MAX_ENCODED_BYTES = 512 * 1024 * 1024

_BY_FLAG: tuple[tuple[Flag, RefusalReason, str], ...] = (
    (Flag.ROTATED, "rotation", "DALI does not apply display matrices"),
    (Flag.INTERLACED, "interlaced", "decoders differ in how they join fields"),
    (Flag.TRUNCATED, "truncated", "DALI does not tell a cut file from a whole one"),
    (Flag.PTS_SYNTHESISED, "pts_synthesised", "the file has no timestamps that DALI could sort by"),
)


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """DALI gets the file; `conversion` makes PyAV's colours of its pictures."""

    conversion: Conversion


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a file is decoded by PyAV although DALI was asked for."""

    reason: RefusalReason
    detail: str


def examine(path: str, index: PtsIndex, *, device: DaliDevice, size: int) -> Accepted | Refusal:
    """Whether `path` is given to DALI, or the first reason why not.

    Args:
        path, index: the file and its PTS index.
        device: where DALI would decode.
        size: side of the squares in pixels.

    Raises:
        MissingDependency: PyAV is not installed.
    """
    if index.codec not in CODECS[device]:
        return Refusal(reason="codec", detail=f"{index.codec} is not decoded by DALI on the {device.upper()}")
    for flag, reason, why in _BY_FLAG:
        if flag in index.flags:
            return Refusal(reason=reason, detail=why)
    return _by_index(index) or _by_size(path, index, size) or _by_content(path, index, device)


def _by_index(index: PtsIndex) -> Refusal | None:
    """Refuse unless the packets are exactly the shown pictures, none is damaged, and none crosses a key frame."""
    if index.damaged:
        detail = f"the container's checks find {len(index.damaged)} packets damaged, which DALI would decode"
        return Refusal(reason="damaged", detail=detail)
    if int(index.packet.max()) + 1 != len(index):
        return Refusal(
            reason="hidden_frames",
            detail="packets that are not shown (edit list, leading or reference pictures) shift DALI's count",
        )
    key = np.isin(index.pts, index.key_pts)
    latest = np.maximum.accumulate(index.packet)
    if (key & (latest > index.packet)).any():
        return Refusal(reason="open_gop", detail="pictures shown before a key frame are stored after it")
    return None


def _by_size(path: str, index: PtsIndex, size: int) -> Refusal | None:
    if min(index.width, index.height) < size:
        return Refusal(reason="enlarged", detail="DALI's enlarging differs from the reference by more than 3 levels")
    try:
        crop_window(index.height, index.width, size)
    except VideoError as error:
        return Refusal(reason="size", detail=str(error))
    length = os.path.getsize(path) if os.path.exists(path) else 0
    if length > MAX_ENCODED_BYTES:
        return Refusal(
            reason="size", detail=f"{length} bytes; DALI wants the file in memory, limit {MAX_ENCODED_BYTES}"
        )
    return None


def _by_content(path: str, index: PtsIndex, device: DaliDevice) -> Accepted | Refusal:
    try:
        with open_container(path) as container:
            names = container.format.name.split(",")
            if not set(names) & set(_CONTAINERS):
                return Refusal(reason="container", detail=f"{container.format.name} was not tried with DALI")
            if not index.seekable:
                return Refusal(reason="key_frames", detail="frames that refer to others are marked as key frames")
            if len(container.streams.video) > 1:
                return Refusal(reason="streams", detail="DALI chooses among several video streams by its own rule")
            frame = _first_frame(container)
        other = other_size(path, index.stream_index, index.codec, (index.width, index.height))
    except VideoError as error:
        return Refusal(reason="damaged", detail=str(error))
    if frame is None:
        return Refusal(reason="damaged", detail="the first picture cannot be decoded")
    if other is not None:
        detail = f"{index.width} x {index.height} and {other[0]} x {other[1]}; DALI takes one picture size a file"
        return Refusal(reason="size_changes", detail=detail)
    if frame.format.name not in _PIXEL_FORMATS[device]:
        return Refusal(reason="pixel_format", detail=f"{frame.format.name} is not handled by DALI's colour conversion")
    if frame.height % 2 and not frame.width % 2 and "444" not in frame.format.name:
        detail = "FFmpeg converts an odd number of rows of even length by tables, 1 to 2 levels away from DALI"
        return Refusal(reason="pixel_format", detail=detail)
    if frame.colorspace not in _MATRICES:
        detail = f"tagged with colour matrix {int(frame.colorspace)}; DALI assumes BT.601"
        return Refusal(reason="colour_matrix", detail=detail)
    return Accepted(conversion=conversion(frame))


def _first_frame(container: "InputContainer") -> "VideoFrame | None":
    try:
        return next(iter(container.decode(container.streams.video[0])), None)
    except pyav().FFmpegError:
        return None
