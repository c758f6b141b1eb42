"""Matroska as few muxers write it, by a muxer of our own: laced blocks, odd elements, cues and durations that lie."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import pytest

from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from coldframe.store.schema import Flag
from tests.barcode import read_number, write_video

COUNT, A_CLUSTER = 36, 9
XIPH, FIXED, EBML = 1, 2, 3
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "h264": ("V_MPEG4/ISO/AVC", {"options": {"crf": "10", "g": "12", "bf": "0"}}),
    "h264_b": ("V_MPEG4/ISO/AVC", {}),
    "mjpeg": ("V_MJPEG", {"codec": "mjpeg", "pixels": "yuvj420p", "options": {"q": "2"}}),
}


@dataclass(frozen=True, kw_only=True)
class Stream:
    codec_id: str
    private: bytes
    packets: list[tuple[int, bytes, bool]]


@pytest.fixture(scope="module", params=STREAMS)
def stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return encoded(tmp_path_factory.mktemp("blocks"), request.param)


def encoded(folder: Path, name: str) -> Stream:
    codec_id, options = STREAMS[name]
    path = write_video(folder / "source.mkv", COUNT, **options)
    with av.open(str(path)) as container:
        private = container.streams.video[0].codec_context.extradata or b""
        packets = [
            (packet.pts or 0, bytes(packet), packet.is_keyframe) for packet in container.demux(video=0) if packet.size
        ]
    return Stream(codec_id=codec_id, private=private, packets=packets)


def size(value: int) -> bytes:
    return (value | 1 << 28).to_bytes(4, "big")


def number(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def element(name: str, *content: bytes, is_open: bool = False) -> bytes:
    body = b"".join(content)
    return bytes.fromhex(name) + (b"\x01" + b"\xff" * 7 if is_open else size(len(body))) + body


def laced(kind: int, frames: Sequence[bytes]) -> bytes:
    """RFC 9559, 10.3."""
    sizes = [len(frame) for frame in frames]
    head = bytes([len(frames) - 1])
    if kind == XIPH:
        head += b"".join(b"\xff" * (length // 255) + bytes([length % 255]) for length in sizes[:-1])
    elif kind == EBML:
        steps = [b - a for a, b in pairwise(sizes[:-1])]
        head += size(sizes[0]) + b"".join(size(step + (1 << 27) - 1) for step in steps)
    return head + b"".join(frames)


def block(name: str, time: int, frames: Sequence[bytes], is_key: bool, kind: int) -> bytes:
    flags = (0x80 if is_key and name == "A3" else 0) | (kind << 1 if len(frames) > 1 else 0)
    content = laced(kind, frames) if len(frames) > 1 else frames[0]
    return element(name, b"\x81" + struct.pack(">hB", time, flags), content)


def write(
    path: Path,
    stream: Stream,
    *,
    kind: int = 0,
    a_block: int = 1,
    frame_ns: int | None = 33_333_333,
    has_voids: bool = False,
    is_open: bool = False,
    group_ms: Callable[[int], int | None] | None = None,
    cues: Callable[[list[tuple[int, int]]], list[tuple[int, int]]] | None = None,
) -> Path:
    """One cluster for 9 frames. `group_ms` gives a block group's duration, or None for a simple block instead."""
    packets = [
        (time, data + bytes(-len(data) % 4096 if kind == FIXED else 0), key) for time, data, key in stream.packets
    ]
    head = element("1A45DFA3", element("4282", b"matroska"), element("4287", b"\4"), element("4285", b"\2"))
    frame_duration = element("23E383", number(frame_ns)) if frame_ns else b""
    private = element("63A2", stream.private) if stream.private else b""
    picture = element("E0", element("B0", number(192)), element("BA", number(96)))
    track = element("D7", b"\1") + element("73C5", b"\1") + element("83", b"\1") + element("9C", number(kind > 0))
    track += element("86", stream.codec_id.encode()) + private + frame_duration + picture
    body = element("1549A966", element("2AD7B1", number(1_000_000))) + element("1654AE6B", element("AE", track))
    places = []
    for begin in range(0, len(packets), A_CLUSTER):
        base = packets[begin][0]
        content = [element("E7", number(base))]
        for at in range(begin, min(begin + A_CLUSTER, len(packets)), a_block):
            time, _, is_key = packets[at]
            frames = [data for _, data, _ in packets[at : at + a_block]]
            duration = None if group_ms is None else group_ms(at)
            if duration is None:
                content.append(block("A3", time - base, frames, is_key, kind))
            else:
                group = block("A1", time - base, frames, is_key, kind) + element("9B", number(duration))
                content.append(element("A0", group, b"" if is_key else element("FB", b"\x21")))
            content += [element("EC", bytes(70))] if has_voids else []
        places.append((base, len(body)))
        body += element("1F43B675", *content, is_open=is_open)
        body += element("EC", bytes(300)) if has_voids else b""
    for time, place in cues(places) if cues else []:
        where = element("B7", element("F7", b"\1"), element("F1", number(place)))
        body += element("1C53BB6B", element("BB", element("B3", number(time)), where))
    path.write_bytes(head + element("18538067", body, is_open=is_open))
    return path


def require_every_frame(path: Path) -> Flag:
    index = build_index(str(path))
    wanted = [list(range(len(index))), *([at] for at in (COUNT - 1, COUNT - 2, 20, 3))]
    for numbers in wanted:
        answers = [frame for _, frame in read_frames(str(path), index, numbers)]
        assert [None if isinstance(frame, VideoError) else read_number(frame) for frame in answers] == numbers
    assert len(index) == COUNT
    assert index.seconds.tolist() == pytest.approx([at / 30 for at in range(COUNT)], abs=2e-3)
    return index.flags


@pytest.mark.parametrize("frame_ns", [33_333_333, None], ids=["rate", "no_rate"])
@pytest.mark.parametrize("kind", [XIPH, EBML], ids=["xiph", "ebml"])
def test_frames_of_laced_blocks_are_frames_of_their_own(
    stream: Stream, tmp_path: Path, kind: int, frame_ns: int | None
) -> None:
    # Only the first frame of a block has a time; the others' follow from the rate, or from the next block.
    flags = require_every_frame(write(tmp_path / "a.mkv", stream, kind=kind, a_block=3, frame_ns=frame_ns))
    assert (Flag.PTS_SYNTHESISED in flags) or frame_ns is not None


@pytest.mark.parametrize("frame_ns", [33_333_333, None], ids=["rate", "no_rate"])
def test_laces_of_one_size(tmp_path: Path, frame_ns: int | None) -> None:
    # JPEG pictures may have zeros behind them.
    source = encoded(tmp_path, "mjpeg")
    require_every_frame(write(tmp_path / "a.mkv", source, kind=FIXED, a_block=3, frame_ns=frame_ns))


ODD: dict[str, dict[str, Any]] = {
    "plain": {},
    "voids": {"has_voids": True},
    "open": {"is_open": True},
    "open_with_voids": {"is_open": True, "has_voids": True},
    "groups_without_time": {"group_ms": lambda at: 0},
    "groups_of_hours": {"group_ms": lambda at: 10**7},
    "groups_between_blocks": {"group_ms": lambda at: None if at % 2 else 7},
    "rate_of_a_second": {"frame_ns": 10**9},
    "right_cues": {"cues": lambda places: places},
    "cues_of_others": {
        "cues": lambda places: [(t, p) for (t, _), (_, p) in zip(places, places[1:] + places[:1], strict=True)]
    },
    "late_cues": {"cues": lambda places: [(time + 100, place) for time, place in places]},
    "cues_within_elements": {"cues": lambda places: [(time, place + 3) for time, place in places]},
    "cues_beyond_the_end": {"cues": lambda places: [(time, 10**9) for time, _ in places]},
}


@pytest.mark.parametrize("name", ODD)
def test_structures_and_hints_change_no_frame(stream: Stream, tmp_path: Path, name: str) -> None:
    flags = require_every_frame(write(tmp_path / "a.mkv", stream, **ODD[name]))
    assert not flags & ~Flag.COLOUR_UNTAGGED
