"""Container: a video file opened by its content, from an allow-list, without reaching any other file."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from coldframe.errors import MissingDependency, VideoError
from coldframe.serve.heartbeat import beat
from coldframe.serve.mp4_boxes import why_unfinished

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

# FFmpeg's demuxer names. Left out on purpose: concat, hls, dash, sdp and image2 open further files or
# addresses, so a text file named evil.mp4 would make one video answer with another one's pictures.
ALLOWED_FORMATS = (
    "mov", "matroska", "webm", "avi", "mpegts", "mpeg", "mpegvideo", "ogg", "flv", "asf", "rm", "gif",
    "h264", "hevc", "ivf", "dv",
)  # fmt: skip

# 8192 x 8192 is beyond 8K UHD; one RGB frame of it takes 201 MB.
MAX_PIXELS = 8192 * 8192

_CHUNK_BYTES = 1 << 20


def pyav() -> ModuleType:
    """The module `av`, imported at first use; video modules take it from here.

    Raises:
        MissingDependency: PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise MissingDependency("PyAV", "cpu") from error
    return av


@contextmanager
def open_container(path: str) -> Iterator["InputContainer"]:
    """Open `path` for reading; closed again on leaving the context, whatever happens inside.

    The format is recognised from the bytes, never from the name. Streams of the container must not be
    touched after the context is left.

    Raises:
        VideoError: `not_found`, `empty_file`, or `unreadable` (also for directories, pipes and devices).
        MissingDependency: PyAV is not installed.
    """
    av = pyav()
    _require_regular_file(path)
    try:
        container = av.open(
            "file:" + os.path.abspath(path),  # without the prefix, a name such as http:x.mp4 is an address
            container_options={"format_whitelist": ",".join(ALLOWED_FORMATS), "protocol_whitelist": "file"},
            metadata_errors="replace",  # tags in Latin-1 are common and say nothing about the pictures
        )
    except (FileNotFoundError, PermissionError) as error:
        raise VideoError("not_found", f"The file cannot be read: {error.strerror}.") from error
    except (av.FFmpegError, ValueError, AssertionError) as error:
        unfinished = why_unfinished(path)
        if unfinished is not None:
            raise VideoError("unreadable", unfinished) from error
        why = getattr(error, "strerror", None) or str(error)
        raise VideoError(
            "unreadable",
            f"No allowed video container was recognised in the bytes, whatever the file's name: {why}. "
            "Allowed are MP4/MOV, Matroska/WebM, AVI, MPEG-TS and -PS, Ogg, FLV, ASF/WMV, RealMedia, DV, GIF, IVF, "
            "and raw MPEG-1/2, H.264 and HEVC; pictures and playlists are not.",
        ) from error
    try:
        yield container
    finally:
        container.close()


def video_streams(container: "InputContainer") -> list["VideoStream"]:
    """Streams that may be the video, in file order: no cover pictures, no streams without a decoder.

    Raises:
        VideoError: `no_video` if there is none.
    """
    disposition = pyav().stream.Disposition
    stills = disposition.attached_pic | disposition.timed_thumbnails
    found = [
        stream
        for stream in container.streams.video
        if stream.codec_context is not None and stream.time_base and not stream.disposition & stills
    ]
    if not found:
        raise VideoError("no_video", "The file has no video stream that can be decoded; cover pictures do not count.")
    return found


def demuxed(container: "InputContainer", streams: Sequence["VideoStream"]) -> Iterator["Packet[Any]"]:
    """Packets of `streams` in file order, those without data left out.

    Raises:
        FFmpegError: the demuxer cannot go on.
    """
    packets = container.demux(*streams)
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except IndexError:  # PyAV's answer to a stream that begins later in the file, of which it has the first packet
            packets = container.demux(*streams)
            continue
        beat()
        if packet.size:
            yield packet


def require_pixels(width: int, height: int) -> None:
    """Raise `VideoError("limit")` if a picture has more than `MAX_PIXELS` pixels."""
    if width * height > MAX_PIXELS:
        raise VideoError("limit", f"The picture is {width} x {height}; allowed are {MAX_PIXELS} pixels.")


def file_sha256(path: str) -> tuple[str, int]:
    """Digest of the file's bytes in hexadecimal, and how many bytes there are.

    Raises:
        VideoError: `not_found`, `empty_file` or `unreadable`.
    """
    _require_regular_file(path)
    digest, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                beat()
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise VideoError("not_found", f"The file cannot be read: {error.strerror}.") from error
    return digest.hexdigest(), size


def decoder_version() -> str:
    """PyAV's version and that of its libavcodec, for provenance.

    Raises:
        MissingDependency: PyAV is not installed.
    """
    av = pyav()
    codec = ".".join(str(part) for part in av.library_versions["libavcodec"])
    return f"PyAV {av.__version__}, libavcodec {codec}"


def _require_regular_file(path: str) -> None:
    try:
        found = os.stat(path)
    except OSError as error:
        raise VideoError("not_found", f"The file cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a NUL byte, after which C would see another, shorter name
        raise VideoError("not_found", f"The file name is not one that can exist: {error}.") from error
    if not stat.S_ISREG(found.st_mode):
        raise VideoError("unreadable", "Not a regular file.")
    if found.st_size == 0:
        raise VideoError("empty_file", "The file has 0 bytes.")
