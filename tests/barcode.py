"""Barcode videos: every frame carries its own number, so that a test can ask which frame it got.

The number is 12 black or white bars in the top half of the picture, and survives lossy coding.
"""

import random
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

WIDTH, HEIGHT = 192, 96
BARS = 12
X264 = {"crf": "10", "g": "12", "bf": "2"}
X265_OPEN_GOP = {"x265-params": "keyint=30:bframes=3:log-level=none:crf=8"}

# Display matrices (a, b, c, d) by degrees clockwise, and mirrored left to right before that.
MATRICES: dict[int | str, tuple[int, int, int, int]] = {
    0: (1, 0, 0, 1),
    90: (0, 1, -1, 0),
    180: (-1, 0, 0, -1),
    270: (0, -1, 1, 0),
    "mirrored": (-1, 0, 0, 1),
    "mirrored 90": (0, -1, -1, 0),
    "mirrored 180": (1, 0, 0, -1),
    "mirrored 270": (0, 1, 1, 0),
}


def draw(number: int, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """(height, width, 3) picture of `number`, which is below 4096."""
    picture = np.full((height, width, 3), 90, np.uint8)
    bar = width // BARS
    for bit in range(BARS):
        picture[: height // 2, bit * bar : (bit + 1) * bar] = 230 if number >> bit & 1 else 20
    return picture


def read_number(picture: NDArray[np.uint8]) -> int:
    """The number in an upright picture."""
    height, width = picture.shape[:2]
    bar, grey = width // BARS, picture.astype(np.float64).mean(axis=2)
    rows = grey[height // 8 : height * 3 // 8]
    inner = [rows[:, bit * bar + bar // 4 : (bit + 1) * bar - bar // 4].mean() for bit in range(BARS)]
    return sum(1 << bit for bit, level in enumerate(inner) if level > 125)


def write_video(
    path: Path,
    frames: int,
    *,
    first: int = 0,
    codec: str = "libx264",
    fps: Fraction | int = 30,
    pts: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    pixels: str = "yuv420p",
    options: Mapping[str, str] = X264,
    container: str | None = None,
    muxer: Mapping[str, str] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    aspect: Fraction | None = None,
) -> Path:
    """Write `frames` pictures numbered from `first`, at 0, 1 / fps, 2 / fps, ... or at the given pts."""
    base = time_base or Fraction(1, round(float(fps) * 1000))
    with av.open(str(path), "w", format=container, options=dict(muxer or {})) as output:
        stream = output.add_stream(codec, rate=fps, options=dict(options))
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        stream.codec_context.time_base = base
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(draw(first + number, *size), format="rgb24")
            frame.pts = round(number / Fraction(fps) / base) if pts is None else pts[number]
            frame.time_base = base
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def write_plane(path: Path, yuv: tuple[int, int, int], *, matrix: int | None, full: bool, tagged: bool) -> Path:
    """Five lossless frames of one YUV 4:2:0 colour. `matrix` is FFmpeg's number, used only if `tagged`."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=30, options={"crf": "0"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        if tagged and matrix is not None:
            stream.codec_context.colorspace = matrix
            stream.codec_context.color_range = 2 if full else 1
        for number in range(5):
            frame = av.VideoFrame(64, 64, "yuv420p")
            for plane, value in zip(frame.planes, yuv, strict=True):
                plane.update(bytes([value]) * plane.buffer_size)
            frame.pts = number
            if tagged and matrix is not None:
                frame.colorspace, frame.color_range = matrix, 2 if full else 1
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def write_sound(path: Path) -> Path:
    """Half a second of silence and no picture."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("aac", rate=8000, layout="mono")
        for start in range(0, 4096, 1024):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 8000, start
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def trim(source: Path, target: Path, start_s: float, end_s: float) -> Path:
    """Copy packets without decoding; what the first picture needs from before gets negative times."""
    with av.open(str(source)) as reading, av.open(str(target), "w") as writing:
        stream = reading.streams.video[0]
        copy = writing.add_stream_from_template(stream)
        assert stream.time_base is not None
        offset = round(start_s / stream.time_base)
        reading.seek(offset, stream=stream, backward=True)
        for packet in reading.demux(stream):
            if packet.dts is None or packet.pts is None or packet.pts * stream.time_base >= end_s:
                continue
            packet.pts, packet.dts = packet.pts - offset, packet.dts - offset
            packet.stream = copy
            writing.mux(packet)
    return target


def set_matrix(source: Path, target: Path, matrix: int | str | tuple[float, float, float, float]) -> Path:
    """Copy an MP4 file with another display matrix, by its name or (a, b, c, d), in its first track header."""
    data = bytearray(source.read_bytes())
    box = data.find(b"tkhd")
    at = box + 8 + (20 if data[box + 4] == 0 else 32) + 16
    a, b, c, d = (round(65536 * value) for value in (matrix if isinstance(matrix, tuple) else MATRICES[matrix]))
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    target.write_bytes(data)
    return target


def cut(source: Path, target: Path, share: float) -> Path:
    """The first `share` of a file's bytes."""
    data = source.read_bytes()
    target.write_bytes(data[: int(len(data) * share)])
    return target


def flip_bits(source: Path, target: Path, *, seed: int, bits: int = 40) -> Path:
    """Copy an MP4 file with random bits flipped in the middle third of its coded data."""
    data = bytearray(source.read_bytes())
    box = data.find(b"mdat")
    start = box + 4
    size = struct.unpack(">I", data[box - 4 : box])[0] - 8
    chance = random.Random(seed)
    for _ in range(bits):
        data[chance.randrange(start + size // 3, start + 2 * size // 3)] ^= 1 << chance.randrange(8)
    target.write_bytes(data)
    return target
