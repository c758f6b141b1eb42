"""Frame sizes: which picture sizes a stream holds, read from the coded data.

DALI takes the size of the first picture for all: a later, smaller one is put into the corner of an otherwise stale
picture, without an error (seen with 2.4.0, VP9). Containers do not tell; WebRTC recordings change size often.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coldframe.serve.bits import Bits
from coldframe.serve.container import open_container, pyav

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

Size = tuple[int, int]

_VP8_START = b"\x9d\x01\x2a"
_VP9_SYNC = 0x498342
_VP9_RGB = 7


def other_size(path: str, stream_index: int, codec: str, size: Size) -> Size | None:
    """The first (width, height) in the stream that is not `size`; None if there is none.

    VP8, VP9 and MJPEG tell it in their frame headers. Of other codecs the key frames are decoded, where alone their
    sizes can change. Data that cannot be read is left out: the decoder will meet it.

    Raises:
        VideoError: the file cannot be opened.
    """
    readers = {"vp8": _vp8, "vp9": _vp9, "mjpeg": _mjpeg}
    with open_container(path) as container:
        stream: VideoStream = container.streams[stream_index]  # type: ignore[assignment]
        if codec not in readers:
            return next((found for found in _of_key_frames(container, stream) if found != size), None)
        try:
            for packet in container.demux(stream):
                for found in readers[codec](bytes(packet)):
                    if found != size:
                        return found
        except pyav().FFmpegError:
            pass
    return None


def _of_key_frames(container: "InputContainer", stream: "VideoStream") -> Iterator[Size]:
    stream.codec_context.skip_frame = "NONKEY"
    try:
        for frame in container.decode(stream):
            yield frame.width, frame.height
    except pyav().FFmpegError:
        return


def _vp8(data: bytes) -> Iterator[Size]:
    """RFC 6386, 9.1: key frames have bit 0 clear and carry 14 bits each of width and height."""
    if len(data) >= 10 and not data[0] & 1 and data[3:6] == _VP8_START:
        yield int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(data[8:10], "little") & 0x3FFF


def _mjpeg(data: bytes) -> Iterator[Size]:
    """ITU-T T.81, B.2.2: the start-of-frame segment."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            yield int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
            return
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _vp9(data: bytes) -> Iterator[Size]:
    """VP9 bitstream specification, 6.2 and annex B. Frames that copy a reference's size add nothing new."""
    for frame in _vp9_frames(data):
        size = _vp9_size(Bits(frame))
        if size is not None:
            yield size


def _vp9_frames(data: bytes) -> Iterator[bytes]:
    if not data:
        return
    last = data[-1]
    count, width = (last & 7) + 1, (last >> 3 & 3) + 1
    index = 2 + count * width
    if last & 0xE0 != 0xC0 or len(data) < index or data[-index] != last:
        yield data
        return
    at = 0
    for place in range(len(data) - index + 1, len(data) - 1, width):
        length = int.from_bytes(data[place : place + width], "little")
        if length:
            yield data[at : at + length]
        at += length


def _vp9_size(bits: Bits) -> Size | None:
    if bits.read(2) != 2:
        return None
    profile = bits.read(1) + 2 * bits.read(1)
    if profile == 3:
        bits.read(1)
    if bits.read(1):  # shows a frame that was decoded before
        return None
    is_inter, is_shown, is_resilient = bits.read(1), bits.read(1), bits.read(1)
    is_intra_only = is_inter and not is_shown and bits.read(1)
    if is_inter and not is_resilient:
        bits.read(2)
    if is_inter and not is_intra_only:
        bits.read(8 + 3 * 4)
        if any(bits.read(1) for _ in range(3)):
            return None
    else:
        if bits.read(24) != _VP9_SYNC:
            return None
        if not is_inter or profile > 0:
            _skip_vp9_colour(bits, profile)
        if is_inter:
            bits.read(8)
    width, height = bits.read(16) + 1, bits.read(16) + 1
    return None if bits.is_over else (width, height)


def _skip_vp9_colour(bits: Bits, profile: int) -> None:
    if profile >= 2:
        bits.read(1)
    if bits.read(3) != _VP9_RGB:
        bits.read(1)
        if profile in (1, 3):
            bits.read(3)
    elif profile in (1, 3):
        bits.read(1)
