"""Another picture size anywhere in a stream is found, in whatever way the codec says it."""

from pathlib import Path
from typing import Any

import pytest

from coldframe.serve.frame_sizes import _vp9, other_size
from coldframe.serve.pts_index import build_index
from tests import barcode
from tests.serve.test_dali_files import joined

VPX = {"b": "2000000", "g": "12", "deadline": "realtime", "cpu-used": "8"}
CODECS: dict[str, dict[str, Any]] = {
    "vp8": {"codec": "libvpx", "options": VPX},
    "vp9": {"codec": "libvpx-vp9", "options": VPX},
    "vp9 4:4:4": {"codec": "libvpx-vp9", "options": {**VPX, "profile": "1"}, "pixels": "yuv444p"},
    "vp9 superframes": {"codec": "libvpx-vp9", "options": {"b": "500000", "g": "20", "cpu-used": "5"}},
    "mjpeg": {"codec": "mjpeg", "options": {"q:v": "2"}, "pixels": "yuvj420p"},
    "h264": {},
}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("size", [(192, 96), (191, 95)])
def test_one_size_is_one_size(tmp_path: Path, name: str, size: tuple[int, int]) -> None:
    if name == "h264" and size == (191, 95):
        size = (190, 94)  # 4:2:0 in x264 takes even sizes
    path = barcode.write_video(tmp_path / "a.mkv", 30, size=size, **CODECS[name])
    index = build_index(str(path))
    assert other_size(str(path), 0, index.codec, size) is None
    assert other_size(str(path), 0, index.codec, (100, 100)) == size


@pytest.mark.parametrize("name", ["vp8", "vp9", "mjpeg"])
@pytest.mark.parametrize("sizes", [((240, 120), (192, 96)), ((192, 96), (240, 120))])
def test_a_change_is_found(tmp_path: Path, name: str, sizes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    files = [
        barcode.write_video(tmp_path / f"{place}.mkv", 10, size=size, **CODECS[name])
        for place, size in enumerate(sizes)
    ]
    path = joined(tmp_path / "c.mkv", *files)
    assert other_size(str(path), 0, name, sizes[0]) == sizes[1]


def bits(*fields: tuple[int, int]) -> bytes:
    """(value, width) fields from the most significant bit, filled up with zeros."""
    text = "".join(f"{value:0{width}b}" for value, width in fields)
    return int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8), "big")


# A frame of profile 0 between key frames: marker, profile, shows nothing old, inter, shown, not resilient, no reset.
INTER = ((2, 2), (0, 2), (0, 1), (1, 1), (1, 1), (0, 1), (0, 2))
REFERENCES = ((0b10, 8), (0, 4), (1, 4), (2, 4))


def test_vp9_frame_that_scales_its_references_is_found() -> None:
    # as WebRTC changes size: no key frame, the size is written out because no reference has it
    frame = bits(*INTER, *REFERENCES, (0, 1), (0, 1), (0, 1), (319, 16), (179, 16))
    assert list(_vp9(frame + bytes(8))) == [(320, 180)]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_vp9_frame_with_the_size_of_a_reference_tells_nothing(place: int) -> None:
    found = [(0, 1)] * place + [(1, 1)]
    assert list(_vp9(bits(*INTER, *REFERENCES, *found) + bytes(16))) == []


def test_vp9_superframe_is_taken_apart() -> None:
    key = bits((2, 2), (0, 2), (0, 1), (0, 1), (1, 1), (0, 1), (0x498342, 24), (1, 3), (0, 1), (639, 16), (359, 16))
    inter = bits(*INTER, *REFERENCES, (0, 1), (0, 1), (0, 1), (319, 16), (179, 16)) + bytes(4)
    marker = 0b110_00_001  # two frames, sizes of one byte
    packet = inter + key + bytes([marker, len(inter), len(key), marker])
    assert list(_vp9(packet)) == [(320, 180), (640, 360)]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x82", b"\x82\x49\x83\x42", b"\xff" * 40])
def test_vp9_rubbish_tells_nothing(data: bytes) -> None:
    assert list(_vp9(data)) == []
