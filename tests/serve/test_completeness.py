from pathlib import Path

import pytest

from coldframe.serve.completeness import is_cut_short
from tests.barcode import cut, write_video

FORMATS = {
    "mp4": ("mov,mp4,m4a,3gp,3g2,mj2", {"movflags": "+faststart"}, False),
    "mkv": ("matroska,webm", {}, False),
    "avi": ("avi", {}, False),
    "flv": ("flv", {}, False),
    "asf": ("asf", {}, False),
    "ts": ("mpegts", {}, None),
}


@pytest.mark.parametrize("suffix", FORMATS)
def test_cut_files_are_told_from_whole_ones(tmp_path: Path, suffix: str) -> None:
    name, muxer, whole = FORMATS[suffix]
    codec = "mpeg4" if suffix == "avi" else "libx264"
    options = {"qscale": "2"} if suffix == "avi" else {"crf": "10"}
    path = write_video(tmp_path / f"whole.{suffix}", 40, codec=codec, options=options, muxer=muxer)
    assert is_cut_short(str(path), name) is whole
    for share in (0.35, 0.6, 0.97):
        part = cut(path, tmp_path / "cut", share)
        if suffix == "ts" and part.stat().st_size % 188 == 0:
            part.write_bytes(part.read_bytes()[:-1])
        assert is_cut_short(str(part), name) is True


def test_a_transport_stream_of_whole_packets_promises_nothing(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.ts", 40)
    path.write_bytes(path.read_bytes()[: 188 * 50])
    assert is_cut_short(str(path), "mpegts") is None


def test_a_live_matroska_file_promises_nothing(tmp_path: Path) -> None:
    path = write_video(tmp_path / "live.mkv", 40, muxer={"live": "1"})
    assert is_cut_short(str(path), "matroska,webm") is None
    assert is_cut_short(str(cut(path, tmp_path / "cut.mkv", 0.5)), "matroska,webm") is None


def test_formats_without_sizes_promise_nothing(tmp_path: Path) -> None:
    path = write_video(tmp_path / "raw.h264", 10, container="h264")
    assert is_cut_short(str(path), "h264") is None
