"""Decoding times of MP4 tracks that do not advance are an error with a reason; odd ones that do are no error."""

import struct
from fractions import Fraction
from pathlib import Path

import pytest

from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from tests.barcode import read_number, write_video

COUNT = 60


def with_delta(path: Path, delta: int, *, entry: int = 0, b_frames: int = 2, steps: int = 1) -> Path:
    """A video whose table of decoding times has another `delta` in one entry; three entries if `steps` is 3."""
    pts = [1000 * number + (number > 20 and steps == 3) for number in range(COUNT)]
    options = {"crf": "10", "g": "12", "bf": str(b_frames)}
    write_video(path, COUNT, options=options, time_base=Fraction(1, 30000), pts=pts)
    data = bytearray(path.read_bytes())
    at = data.find(b"stts")
    assert int.from_bytes(data[at + 8 : at + 12], "big") == steps
    data[at + 16 + 8 * entry : at + 20 + 8 * entry] = struct.pack(">i", delta)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("delta", [0, -1, -1000, -400000])
def test_frames_that_do_not_advance_have_no_times(tmp_path: Path, delta: int, b_frames: int) -> None:
    path = with_delta(tmp_path / "a.mp4", delta, b_frames=b_frames)
    with pytest.raises(
        VideoError, match=f"for {COUNT - 1} that they last none" if delta == 0 else "less than no time and"
    ) as caught:
        build_index(str(path))
    assert caught.value.reason == "unreadable"


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_one_step_back_is_enough(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(VideoError, match=f"1 of {COUNT} frames that they last less"):
        build_index(str(with_delta(tmp_path / f"a{suffix}", -1000, entry=1, steps=3)))


def test_one_frame_that_lasts_no_time_leaves_the_others(tmp_path: Path) -> None:
    path = with_delta(tmp_path / "a.mp4", 0, entry=1, steps=3, b_frames=0)
    index = build_index(str(path))
    found = [
        frame if isinstance(frame, VideoError) else read_number(frame)
        for _, frame in read_frames(str(path), index, range(COUNT))
    ]
    assert found == list(range(COUNT))


@pytest.mark.parametrize("muxer", [{}, {"movflags": "faststart"}, {"movflags": "frag_keyframe+empty_moov"}])
def test_a_single_frame_and_fragments_are_no_error(tmp_path: Path, muxer: dict[str, str]) -> None:
    for count in (1, 2, 30):
        path = write_video(tmp_path / f"{count}.mp4", count, muxer=muxer)
        assert len(build_index(str(path))) == count


@pytest.mark.parametrize("length", [0, 1, 7, 2**31])
def test_boxes_of_wrong_sizes_end_the_search(tmp_path: Path, length: int) -> None:
    path = with_delta(tmp_path / "a.mp4", 0)
    data = bytearray(path.read_bytes())
    at = data.find(b"stbl") - 4
    data[at : at + 4] = length.to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(VideoError):
        build_index(str(path))
