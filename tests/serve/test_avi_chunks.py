"""AVI chunks that are no picture of their own: empty ones, packed B-frames, pictures that are not coded."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import pytest

from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from coldframe.store.schema import Flag
from tests.barcode import read_number, write_video

COUNT = 41
Chunk = tuple[int, bytes, bool]  # place, data, is a key frame

# A P picture that is not coded: type 1, no second, 5 bits of time (ISO/IEC 14496-2, 6.2.5).
NOT_CODED = b"\0\0\1\xb6" + (0b01_0_1_00000_1_0_00000).to_bytes(2, "big")
SAYS_PACKED = b"\0\0\1\xb2DivX503b1393p"
B_PICTURE = 2


def source(folder: Path, codec: str, b_frames: int) -> tuple[Path, list[tuple[bytes, bool]]]:
    options = {"g": "12", "bf": str(b_frames), **({"crf": "10"} if codec == "libx264" else {"b": "8000000"})}
    path = write_video(folder / "source.avi", COUNT, codec=codec, options=options, time_base=Fraction(1, 30))
    with av.open(str(path)) as container:
        return path, [(bytes(packet), packet.is_keyframe) for packet in container.demux(video=0) if packet.size]


def write(path: Path, template: Path, chunks: Sequence[Chunk]) -> Path:
    """The muxer fills places that are left out with empty chunks."""
    with av.open(str(template)) as reading, av.open(str(path), "w") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for place, data, is_key in chunks:
            packet = av.Packet(data)
            packet.pts = packet.dts = place
            packet.time_base, packet.is_keyframe, packet.stream = Fraction(1, 30), is_key, stream
            writing.mux(packet)
    return path


def shown(path: Path) -> tuple[list[int | str], list[int], Flag]:
    """What the frames show, when in frames, and the flags."""
    index = build_index(str(path))
    answers = read_frames(str(path), index, range(len(index)))
    numbers = [frame.reason if isinstance(frame, VideoError) else read_number(frame) for _, frame in answers]
    return numbers, [round(second * 30) for second in index.seconds.tolist()], index.flags


@pytest.mark.parametrize(("codec", "b_frames"), [("mpeg4", 0), ("mpeg4", 2), ("libx264", 0), ("libx264", 2)])
def test_empty_chunks_keep_the_times_of_those_behind_them(tmp_path: Path, codec: str, b_frames: int) -> None:
    template, packets = source(tmp_path, codec, b_frames)
    chunks = [(place + 3 * (place >= 24), data, is_key) for place, (data, is_key) in enumerate(packets)]
    numbers, times, flags = shown(write(tmp_path / "a.avi", template, chunks))
    assert numbers == list(range(COUNT))
    # With B-frames the chunk of a picture is another than its place: the gap may be off by how far they are moved.
    gaps = [place for place, (a, b) in enumerate(pairwise(times)) if b - a != 1]
    assert len(gaps) == 1
    assert abs(gaps[0] - 23) <= b_frames
    assert times[-1] == COUNT + 2
    assert Flag.VARIABLE_RATE in flags


def kind(data: bytes) -> int:
    return data[data.find(b"\0\0\1\xb6") + 4] >> 6


@pytest.mark.parametrize("says_so", [True, False])
def test_packed_b_frames(tmp_path: Path, says_so: bool) -> None:
    # DivX put a B-frame into the chunk of the frame before it, and an empty picture in its place.
    template, packets = source(tmp_path, "mpeg4", 1)
    chunks: list[tuple[bytes, bool]] = []
    for data, is_key in packets:
        if kind(data) == B_PICTURE:
            chunks[-1] = (chunks[-1][0] + data, chunks[-1][1])
            chunks.append((NOT_CODED, False))
        else:
            mark = SAYS_PACKED if says_so and is_key else b""
            chunks.append((data.replace(b"\0\0\1\xb6", mark + b"\0\0\1\xb6", 1), is_key))
    path = write(tmp_path / "a.avi", template, [(place, *chunk) for place, chunk in enumerate(chunks)])
    numbers, times, _ = shown(path)
    if says_so:
        assert (numbers, times) == (list(range(COUNT)), list(range(COUNT)))
    else:  # FFmpeg drops them; the others stay where they are, within a frame
        assert numbers == list(range(0, COUNT, 2))
        assert all(time - 2 * place in (0, -1) for place, time in enumerate(times))


@pytest.mark.parametrize("suffix", [".avi", ".mp4", ".mkv"])
def test_pictures_that_are_not_coded_leave_the_one_before(tmp_path: Path, suffix: str) -> None:
    template, packets = source(tmp_path, "mpeg4", 0)
    chunks = [(place + place // 5, data, is_key) for place, (data, is_key) in enumerate(packets)]
    chunks += [(place, NOT_CODED, False) for place in range(5, 48, 6)]
    numbers, times, flags = shown(write(tmp_path / f"a{suffix}", template, sorted(chunks)))
    assert numbers == list(range(COUNT))
    assert times == [place + place // 5 for place in range(COUNT)]
    assert Flag.VARIABLE_RATE in flags
