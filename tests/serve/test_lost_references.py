"""H.264 with whole pictures missing, as recorders of lossy networks write it: what refers to them is no good."""

from collections.abc import Collection
from pathlib import Path

import av
import pytest

from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.h264_headers import Picture
from coldframe.serve.lost_references import LostReferences
from coldframe.serve.pts_index import build_index
from coldframe.store.schema import Flag
from tests.barcode import read_number, write_video

COUNT = 60


def without(source: Path, target: Path, lost: Collection[int]) -> Path:
    """Copy all packets but those."""
    with av.open(str(source)) as reading, av.open(str(target), "w") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for number, packet in enumerate(packet for packet in reading.demux(video=0) if packet.size):
            if number not in lost:
                packet.stream = stream
                writing.mux(packet)
    return target


def shown(path: Path) -> dict[int, int | str]:
    """What is shown at each time, counted in thirtieths of a second."""
    index = build_index(str(path))
    answers = read_frames(str(path), index, range(len(index)))
    return {
        round(float(index.seconds[place]) * 30): frame.reason if isinstance(frame, VideoError) else read_number(frame)
        for place, frame in answers
    }


@pytest.mark.parametrize("suffix", [".mkv", ".mp4", ".ts", ".flv"])
@pytest.mark.parametrize("b_frames", [0, 2, 3])
@pytest.mark.parametrize("lost", [{10}, {11}, {12, 13}, {40, 41, 42}])
def test_no_picture_behind_a_lost_one_is_taken_for_good(
    tmp_path: Path, suffix: str, b_frames: int, lost: set[int]
) -> None:
    options = {"crf": "10", "g": "30", "bf": str(b_frames)}
    source = write_video(tmp_path / f"whole{suffix}", COUNT, options=options)
    found = shown(without(source, tmp_path / f"a{suffix}", lost))
    assert len(found) == COUNT - len(lost)
    assert all(number in (time, "decode_error") for time, number in found.items())
    other_half = range(30, COUNT) if min(lost) < 30 else range(30 - b_frames)
    assert [found[time] for time in other_half] == list(other_half)


@pytest.mark.parametrize("group", ["30", "30:open-gop=1"])
def test_a_loss_before_a_key_frame_costs_what_refers_to_it(tmp_path: Path, group: str) -> None:
    options = {"crf": "10", "x264-params": f"keyint={group}:bframes=2"}
    source = write_video(tmp_path / "whole.mkv", COUNT, options=options)
    with av.open(str(source)) as container:
        keys = [packet.is_keyframe for packet in container.demux(video=0) if packet.size]
    key = keys.index(True, 1)
    found = shown(without(source, tmp_path / "a.mkv", {key - 1, key - 2, key - 3}))
    assert all(number in (time, "decode_error") for time, number in found.items())
    assert [found[time] for time in range(31, COUNT)] == list(range(31, COUNT))


def test_whole_streams_lose_nothing(tmp_path: Path) -> None:
    for params in ("bframes=3:b-pyramid=normal", "bframes=0:ref=4", "intra-refresh=1", "keyint=12:open-gop=1"):
        options = {"crf": "10", "g": "30", "x264-params": params}
        path = write_video(tmp_path / "a.mp4", COUNT, options=options)
        index = build_index(str(path))
        assert not index.damaged
        assert Flag.TRUNCATED not in index.flags
        assert list(shown(path).values()) == list(range(COUNT))


def numbered(*pictures: tuple[int, bool]) -> list[int]:
    """Damage in a stream of (frame_num, is_reference) that counts modulo 16."""
    references = LostReferences()
    for number, (frame_num, is_reference) in enumerate(pictures):
        references.add(
            number,
            Picture(frame_num=frame_num, frame_nums=16, is_idr=number == 0, is_reference=is_reference),
            is_key=number == 0,
        )
    return references.damaged


def test_numbers_are_counted_as_the_standard_counts_them() -> None:
    reference, other = True, False
    assert numbered((0, reference), *((number % 16, reference) for number in range(1, 40))) == []
    assert numbered((0, reference), (1, other), (1, other), (1, reference), (2, other)) == []
    assert numbered((0, reference), (1, reference), (1, reference), (2, reference)) == []  # fields of one frame
    assert numbered((0, reference), (1, reference), (3, other)) == [2]
    assert numbered((0, reference), (2, reference), (3, reference), (5, reference)) == [1, 3]
    assert numbered((0, reference), (15, reference), (0, reference)) == [1]


def test_streams_that_may_leave_out_numbers_are_believed() -> None:
    references = LostReferences()
    for number, frame_num in enumerate((0, 1, 3, 7)):
        references.add(number, Picture(frame_num=frame_num, is_idr=number == 0, is_reference=True), is_key=number == 0)
    assert references.damaged == []
