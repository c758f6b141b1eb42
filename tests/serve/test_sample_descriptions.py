"""MP4 tracks of several sample descriptions: right pictures of all parts, or a flag or a reason."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import pytest

from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from coldframe.store.schema import Flag
from tests.barcode import read_number, write_video

HALF = 30
H264: dict[str, Any] = {"options": {"crf": "10", "g": "12", "bf": "0"}}
MANY_NUMBERS: dict[str, Any] = {"options": {"crf": "10", "g": "12", "bf": "0", "x264-params": "ref=16:intra-refresh=0"}}
MPEG4: dict[str, Any] = {"codec": "mpeg4", "options": {"g": "12", "qscale": "2"}}
HEVC: dict[str, Any] = {"codec": "libx265", "options": {"x265-params": "bframes=0:log-level=none:crf=8"}}
MJPEG: dict[str, Any] = {"codec": "mjpeg", "options": {"q": "2"}, "pixels": "yuvj420p"}
LARGER: dict[str, Any] = {"size": (240, 120)}


def box(name: str, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I4s", 8 + len(body), name.encode()) + body


def table(name: str, count: int, *values: int) -> bytes:
    return box(name, struct.pack(f">II{len(values)}I", 0, count, *values))


def description(path: Path) -> bytes:
    """The one entry of the file's `stsd` box."""
    data = path.read_bytes()
    at = data.find(b"stsd") - 4
    return data[at + 16 : at + int.from_bytes(data[at : at + 4], "big")]


def joined(parts: Sequence[Path], target: Path) -> Path:
    """One track of all pictures, 30 a second, with the description of each part. Without B-frames."""
    packets, counts = [], []
    for part in parts:
        with av.open(str(part)) as container:
            found = [(bytes(packet), packet.is_keyframe) for packet in container.demux(video=0) if packet.size]
        packets += found
        counts.append(len(found))
    head = box("ftyp", b"isom\0\0\2\0isomiso2")
    sizes = [len(data) for data, _ in packets]
    places = [len(head) + 8 + sum(sizes[:number]) for number in range(len(sizes))]
    keys = [number for number, (_, is_key) in enumerate(packets, 1) if is_key]
    runs = [value for at in range(len(parts)) for value in (1 + sum(counts[:at]), 1, 1 + at)]
    samples = box(
        "stbl",
        box("stsd", struct.pack(">II", 0, len(parts)), *map(description, parts)),
        table("stts", 1, len(sizes), 1000),
        table("stsc", len(parts), *runs),
        box("stsz", struct.pack(f">III{len(sizes)}I", 0, 0, len(sizes), *sizes)),
        table("stco", len(places), *places),
        table("stss", len(keys), *keys),
    )
    unit = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    length = 1000 * len(sizes)
    media = box(
        "mdia",
        box("mdhd", struct.pack(">IIIIIHH", 0, 0, 0, 30_000, length, 0x55C4, 0)),
        box("hdlr", struct.pack(">II4s13x", 0, 0, b"vide")),
        box("minf", box("vmhd", struct.pack(">I8x", 1)), samples),
    )
    track = box(
        "tkhd", struct.pack(">IIIII8xII", 7, 0, 0, 1, 0, 0, 0), b"\0" * 4, unit, struct.pack(">II", 192 << 16, 96 << 16)
    )
    movie = box("mvhd", struct.pack(">IIIIIIH10x", 0, 0, 0, 30_000, length, 1 << 16, 256), unit, bytes(24), b"\0\0\0\2")
    content = box("mdat", *(data for data, _ in packets))
    target.write_bytes(head + content + box("moov", movie, box("trak", track, media)))
    return target


def two(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> Path:
    parts = [
        write_video(folder / f"{at}.mp4", HALF, first=HALF * at, **options)
        for at, options in enumerate((first, second))
    ]
    return joined(parts, folder / "both.mp4")


def numbers(path: Path) -> list[int | str]:
    index = build_index(str(path))
    found: list[int | str] = []
    for wanted in (range(len(index)), [len(index) - 1], [len(index) - 20], [3]):
        answers = [frame for _, frame in read_frames(str(path), index, wanted)]
        shown = [frame.reason if isinstance(frame, VideoError) else read_number(frame) for frame in answers]
        assert not found or shown == [found[wanted[0]]]
        found = found or shown
    return found


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (H264, H264),
        (H264, H264 | LARGER),
        (H264, MANY_NUMBERS),
        (MANY_NUMBERS, H264),
        (HEVC, HEVC | LARGER),
        (MJPEG, MJPEG | LARGER),
    ],
    ids=["h264", "h264_size", "h264_numbers", "h264_numbers_back", "hevc_size", "mjpeg_size"],
)
def test_settings_that_change_are_followed(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> None:
    path = two(tmp_path, first, second)
    assert numbers(path) == list(range(2 * HALF))
    assert not build_index(str(path)).flags & ~Flag.COLOUR_UNTAGGED


@pytest.mark.parametrize("second", [HEVC, MJPEG], ids=["hevc", "mjpeg"])
def test_a_part_in_another_codec_is_left_out_and_flagged(tmp_path: Path, second: dict[str, Any]) -> None:
    path = two(tmp_path, H264, second)
    assert numbers(path) == list(range(HALF))
    assert Flag.TRUNCATED in build_index(str(path)).flags


def test_settings_that_ffmpeg_does_not_follow_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="2 descriptions of its mpeg4 pictures") as caught:
        build_index(str(two(tmp_path, MPEG4, MPEG4 | LARGER)))
    assert caught.value.reason == "unreadable"
    assert numbers(two(tmp_path, MPEG4, MPEG4)) == list(range(2 * HALF))
