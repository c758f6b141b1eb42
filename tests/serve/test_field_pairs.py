"""Pictures coded as fields: as many frames as there are, each whole and at its place; half a frame is none."""

from pathlib import Path
from typing import Literal

import av
import pytest

from coldframe.errors import VideoError
from coldframe.serve.dali_files import Refusal, examine
from coldframe.serve.field_pairs import FieldPairs
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import PtsIndex, build_index
from coldframe.store.schema import Flag
from tests.barcode import cut, write_video
from tests.h264_fields import Field, coded_frames, coded_picture, headers, mux, read_fields

COUNT = 28


def shown(path: Path, index: PtsIndex, wanted: list[int] | None = None) -> list[tuple[int, int] | str]:
    """What both fields of each frame show, or why there is none."""
    answers = read_frames(str(path), index, range(len(index)) if wanted is None else wanted)
    return [frame.reason if isinstance(frame, VideoError) else read_fields(frame) for _, frame in answers]


def whole(numbers: list[int]) -> list[tuple[int, int]]:
    return [(number, number) for number in numbers]


@pytest.mark.parametrize("suffix", [".ts", ".mp4", ".mkv"])
@pytest.mark.parametrize("packet_a_field", [False, True], ids=["frame_packets", "field_packets"])
@pytest.mark.parametrize("coding", ["field", "both"])
@pytest.mark.parametrize("b_frames", [False, True], ids=["no_b", "b"])
def test_both_fields_of_every_frame_are_its_own(
    tmp_path: Path, suffix: str, packet_a_field: bool, coding: Literal["field", "both"], b_frames: bool
) -> None:
    frames = coded_frames(COUNT, b_frames=b_frames, coding=coding)
    path = mux(tmp_path / f"a{suffix}", frames, packet_a_field=packet_a_field)
    index = build_index(str(path))
    assert shown(path, index) == whole(list(range(COUNT)))
    assert index.seconds.tolist() == pytest.approx([number / 25 for number in range(COUNT)], abs=1e-3)
    assert index.seekable
    assert index.flags & ~Flag.COLOUR_UNTAGGED == Flag.INTERLACED
    for number in (COUNT - 1, 20, 3):  # by a seek of its own, other frames not wanted
        assert shown(path, index, [number]) == whole([number])
    refused = examine(str(path), index, device="gpu", size=32)
    assert isinstance(refused, Refusal)
    assert refused.reason == "interlaced"


def test_a_raw_stream_of_fields_is_numbered_by_frames(tmp_path: Path) -> None:
    pictures = [picture for frame in coded_frames(COUNT) for picture in frame]
    path = tmp_path / "a.h264"
    path.write_bytes(headers() + b"".join(map(coded_picture, pictures)))
    index = build_index(str(path))
    assert shown(path, index) == whole(list(range(COUNT)))
    assert Flag.INTERLACED | Flag.PTS_SYNTHESISED in index.flags


@pytest.mark.parametrize("number", [12, 15, 16, 18, 27])
@pytest.mark.parametrize("field", ["top", "bottom"])
@pytest.mark.parametrize(("suffix", "packet_a_field"), [(".mkv", True), (".ts", True), (".mp4", False), (".ts", False)])
def test_a_frame_with_one_field_is_no_good_frame(
    tmp_path: Path, suffix: str, packet_a_field: bool, number: int, field: Field
) -> None:
    lost = [(number, field)]
    path = mux(tmp_path / f"a{suffix}", coded_frames(COUNT), packet_a_field=packet_a_field, lost=lost)
    found = shown(path, build_index(str(path)))
    assert found[number] == "decode_error"
    assert found[:12] == whole(list(range(12)))
    assert number >= 24 or found[24:] == whole(list(range(24, COUNT)))  # the next key frame
    assert all(frame in ((place, place), "decode_error") for place, frame in enumerate(found))


def test_fields_of_two_frames_are_not_taken_for_one(tmp_path: Path) -> None:
    # B-frames bear one number between them, so the second field of one would go with the first field of the next.
    path = mux(tmp_path / "a.mkv", coded_frames(COUNT), packet_a_field=True, lost=[(16, "top"), (18, "bottom")])
    found = shown(path, build_index(str(path)))
    assert all(frame in ((place, place), "decode_error") for place, frame in enumerate(found))
    assert found.count("decode_error") < 12


def test_fields_behind_the_first_frames_are_flagged(tmp_path: Path) -> None:
    path = mux(tmp_path / "a.mp4", coded_frames(COUNT, first_frame=24))
    assert Flag.INTERLACED in build_index(str(path)).flags
    progressive = mux(tmp_path / "b.mp4", coded_frames(COUNT, coding="frame"))
    assert Flag.INTERLACED not in build_index(str(progressive)).flags


@pytest.mark.parametrize("suffix", [".ts", ".mp4", ".mkv"])
def test_fields_within_frames(tmp_path: Path, suffix: str) -> None:
    options = {"crf": "10", "g": "12", "bf": "2", "flags": "+ildct+ilme", "x264-params": "tff=1"}
    path = write_video(tmp_path / f"a{suffix}", COUNT, options=options)
    index = build_index(str(path))
    found = shown(path, index)
    assert [frame[0] for frame in found] == list(range(COUNT))
    assert Flag.INTERLACED in index.flags


@pytest.mark.parametrize("suffix", [".ts", ".mkv"])
def test_a_cut_between_the_fields_of_a_frame_leaves_no_half(tmp_path: Path, suffix: str) -> None:
    source = mux(tmp_path / f"a{suffix}", coded_frames(COUNT, b_frames=False), packet_a_field=True)
    for share in (0.5, 0.51, 0.52, 0.53, 0.54):
        path = cut(source, tmp_path / f"b{suffix}", share)
        index = build_index(str(path))
        found = shown(path, index)
        assert len(found) > 10
        assert all(frame in ((place, place), "decode_error") for place, frame in enumerate(found))
        assert found[:-1] == whole(list(range(len(found) - 1)))


@pytest.mark.parametrize("profile", ["high", "high422", "high444"])
def test_parameter_sets_of_other_encoders_are_read(tmp_path: Path, profile: str) -> None:
    # Scaling lists and the chroma format come before the field flag.
    pixels = {"high": "yuv420p", "high422": "yuv422p", "high444": "yuv444p"}[profile]
    for is_interlaced in (True, False):
        options = {"crf": "10", "x264-params": f"cqm=jvt:interlaced={int(is_interlaced)}"}
        path = write_video(tmp_path / "a.mkv", 8, pixels=pixels, options=options)
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            pairs = FieldPairs(stream.codec_context.extradata, checks=True)
            assert not any(pairs.joins(packet) for packet in container.demux(stream) if packet.size)
        assert pairs.is_interlaced == is_interlaced
        assert not pairs.damaged
