"""Fragmented MP4 whose fragments contradict each other: right frames, or a flag or a reason for what is missing."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.mp4_boxes import boxes, frames_in_fragments
from coldframe.serve.pts_index import build_index
from coldframe.store.schema import Flag
from tests.barcode import cut, read_number, write_video

COUNT, A_FRAGMENT, STEP = 60, 10, 1000


@pytest.fixture(scope="module", params=["0", "2"], ids=["no_b", "b"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six fragments of ten frames, 1000 ticks each."""
    return write_video(
        tmp_path_factory.mktemp("fragments") / "a.mp4",
        COUNT,
        options={"crf": "10", "g": str(A_FRAGMENT), "bf": request.param},
        muxer={"movflags": "frag_keyframe+empty_moov+default_base_moof"},
        time_base=Fraction(1, 30 * STEP),
        pts=[STEP * number for number in range(COUNT)],
    )


def found(path: Path, *names: bytes) -> list[tuple[int, int]]:
    """Where the content of every box of that path begins and ends."""
    with path.open("rb") as file:
        places = [(0, path.stat().st_size)]
        for name in names:
            places = [inner for place in places for inner in boxes(file, name, *place)]
    return places


def changed(whole: Path, target: Path, at: Iterator[int], new: Callable[[int], int], width: int = 4) -> Path:
    data = bytearray(whole.read_bytes())
    for place in at:
        value = int.from_bytes(data[place : place + width], "big", signed=True)
        data[place : place + width] = (new(value) % (1 << 8 * width)).to_bytes(width, "big")
    target.write_bytes(data)
    return target


def numbers(path: Path) -> list[int | str]:
    index = build_index(str(path))
    answers = read_frames(str(path), index, range(len(index)))
    return [frame.reason if isinstance(frame, VideoError) else read_number(frame) for _, frame in answers]


def without(*fragments: int) -> list[int]:
    return [number for number in range(COUNT) if number // A_FRAGMENT not in fragments]


def begin_times(whole: Path, *fragments: int) -> Iterator[int]:
    """Places of the 64-bit decoding times at which fragments begin."""
    places = found(whole, b"moof", b"traf", b"tfdt")
    return (places[fragment][0] + 4 for fragment in fragments)


@pytest.mark.parametrize(
    ("fragments", "shift", "kept"),
    [
        ((3, 4, 5), 20 * STEP, without()),  # a gap
        ((3,), -15 * STEP, without(3)),  # into the time of others
        ((1, 2, 3, 4, 5), -(2**40), None),
        ((3, 4, 5), -20 * STEP, None),
        ((3,), 2**62, None),
    ],
)
def test_fragments_that_begin_at_other_times(
    whole: Path, tmp_path: Path, fragments: tuple[int, ...], shift: int, kept: list[int] | None
) -> None:
    path = changed(whole, tmp_path / "a.mp4", begin_times(whole, *fragments), lambda time: time + shift, 8)
    if kept is None:
        with pytest.raises(VideoError, match=r"Fragments must not overlap|frames span") as caught:
            build_index(str(path))
        assert caught.value.reason in ("unreadable", "limit")
        return
    index = build_index(str(path))
    assert numbers(path) == kept
    assert (Flag.TRUNCATED in index.flags) == (len(kept) < COUNT)
    assert Flag.PTS_SYNTHESISED not in index.flags
    steps = [round(second * 30) for second in index.seconds]
    assert steps == [number + (20 if shift > 0 and number >= 30 else 0) for number in kept]


def test_fragments_that_all_begin_at_zero_are_called_short(whole: Path, tmp_path: Path) -> None:
    path = changed(whole, tmp_path / "a.mp4", begin_times(whole, *range(6)), lambda time: 0, 8)
    assert Flag.TRUNCATED in build_index(str(path)).flags
    assert numbers(path) == list(range(A_FRAGMENT))


def test_fragments_without_a_time_follow_one_another(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    (tmp_path / "a.mp4").write_bytes(data.replace(b"tfdt", b"free"))
    index = build_index(str(tmp_path / "a.mp4"))
    assert numbers(tmp_path / "a.mp4") == list(range(COUNT))
    assert index.seconds.tolist() == pytest.approx([number / 30 for number in range(COUNT)])


@pytest.mark.parametrize("duration", [0, 2**31, -500])
def test_sample_durations_that_are_none(whole: Path, tmp_path: Path, duration: int) -> None:
    at = [begin + 8 for begin, _ in found(whole, b"moof", b"traf", b"tfhd")]  # default_sample_duration
    assert whole.read_bytes()[at[0] : at[0] + 4] == STEP.to_bytes(4, "big")
    path = changed(whole, tmp_path / "a.mp4", iter(at), lambda _: duration)
    if duration:
        with pytest.raises(VideoError, match=r"name more frames than|frames span"):
            build_index(str(path))
        return
    index = build_index(str(path))
    assert numbers(path) == list(range(COUNT))
    assert Flag.PTS_SYNTHESISED in index.flags
    assert index.fps == pytest.approx(30)  # from the times at which fragments begin


@pytest.mark.parametrize("offset", [0, -5000, 10**8, 8])
@pytest.mark.parametrize("fragments", [[3], list(range(6))], ids=["one", "all"])
def test_data_offsets_that_point_elsewhere(whole: Path, tmp_path: Path, offset: int, fragments: list[int]) -> None:
    runs = found(whole, b"moof", b"traf", b"trun")
    path = changed(whole, tmp_path / "a.mp4", (runs[fragment][0] + 8 for fragment in fragments), lambda _: offset)
    if len(fragments) > 1:
        with pytest.raises(VideoError) as caught:
            build_index(str(path))
        assert caught.value.reason == "no_frames"
        return
    shown = numbers(path)
    if offset in (-5000, 10**8):  # FFmpeg gives up there
        assert shown == list(range(30))
        assert Flag.TRUNCATED in build_index(str(path)).flags
    else:
        assert shown == [number if number in without(3) else "decode_error" for number in range(COUNT)]


@pytest.mark.parametrize(
    ("order", "kept"),
    [
        ([0, 1, 3, 2, 4, 5], without(2)),
        ([5, 4, 3, 2, 1, 0], without(0, 1, 2, 3, 4)),
        ([0, 1, 2, 2, 3, 4, 5], without()),
        ([1, 2, 3, 4, 5], without(0)),
    ],
)
def test_fragments_in_another_order(whole: Path, tmp_path: Path, order: list[int], kept: list[int]) -> None:
    data, heads = whole.read_bytes(), [begin - 8 for begin, _ in found(whole, b"moof")]
    ends = [*heads[1:], found(whole, b"mfra")[0][0] - 8]
    pieces = [data[begin:end] for begin, end in zip(heads, ends, strict=True)]
    path = tmp_path / "a.mp4"
    path.write_bytes(data[: heads[0]] + b"".join(pieces[place] for place in order))
    assert numbers(path) == kept
    # A fragment that is not there at all leaves a gap, if anything; one that is there and cannot be shown is a loss.
    assert (Flag.TRUNCATED in build_index(str(path)).flags) == (len(kept) < COUNT and len(order) == 6)


def test_frames_of_fragments_are_counted_for_each_track(whole: Path) -> None:
    assert frames_in_fragments(str(whole), 1) == COUNT
    assert frames_in_fragments(str(whole), 2) == 0


def test_mp4_files_without_a_description_say_what_to_do(whole: Path, tmp_path: Path) -> None:
    plain, path = write_video(tmp_path / "plain.mp4", 30), tmp_path / "b.mp4"
    cut(plain, path, 0.5)
    with pytest.raises(VideoError, match=r"no moov box.*was not finished.*record again"):
        build_index(str(path))
    (end,) = (end for _, end in found(whole, b"moov"))
    path.write_bytes(whole.read_bytes()[end:])
    with pytest.raises(VideoError, match=r"fragments without a moov box.*initialisation segment"):
        build_index(str(path))
