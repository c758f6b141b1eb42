"""Edit lists of several edits: the pictures that the list names, or a reason; never those of another edit."""

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from tests.barcode import read_number, write_video

COUNT, STEP = 60, 1000
Edit = tuple[float, int | None, float]  # seconds, first frame or None, rate


@pytest.fixture(scope="module", params=["0", "2"], ids=["no_b", "b"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"crf": "10", "g": "12", "bf": request.param}
    path = tmp_path_factory.mktemp("edits") / "plain.mp4"
    times = [STEP * number for number in range(COUNT)]
    return write_video(path, COUNT, options=options, time_base=Fraction(1, 30 * STEP), pts=times)


def edited(source: Path, target: Path, edits: Sequence[Edit], version: int = 0) -> Path:
    """The same file with another edit list; its moov box is at the end, so nothing else moves."""
    data = bytearray(source.read_bytes())
    old = data.find(b"elst")
    (delay,) = struct.unpack(">i", data[old + 16 : old + 20])  # of the first picture behind its decoding
    data[old - 8 : old - 4] = b"free" if data[old - 8 : old - 4] == b"edts" else data[old - 8 : old - 4]
    layout = ">QqI" if version else ">IiI"
    body = b"".join(
        struct.pack(
            layout,
            round(1000 * seconds),
            -1 if first is None else delay + STEP * first,
            round(65536 * rate) % (1 << 32),
        )
        for seconds, first, rate in edits
    )
    table = struct.pack(">I4sB3xI", 16 + len(body), b"elst", version, len(edits)) + body
    box = struct.pack(">I4s", 8 + len(table), b"edts") + table
    header = data.find(b"tkhd") - 4
    at = header + int.from_bytes(data[header : header + 4], "big")
    data[at:at] = box
    for name in (b"moov", b"trak"):
        place = data.find(name) - 4
        data[place : place + 4] = (int.from_bytes(data[place : place + 4], "big") + len(box)).to_bytes(4, "big")
    target.write_bytes(data)
    return target


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("edits", "shown"),
    [
        ([(2, 0, 1)], [*range(60)]),
        ([(1, None, 1), (2, 0, 1)], [*range(60)]),
        ([(0.5, 0, 1), (0.5, 45, 1)], [*range(15), *range(45, 60)]),
        ([(0.5, 0, 1), (0.5, 0, 1)], [*range(15), *range(15)]),
        ([(0.5, 30, 1), (0.5, 0, 1)], [*range(30, 45), *range(15)]),
        ([(1, 17, 1)], [*range(17, 47)]),
    ],
    ids=["whole", "late", "middle_left_out", "twice", "swapped", "within_a_group"],
)
def test_edits_that_are_played(
    plain: Path, tmp_path: Path, edits: Sequence[Edit], shown: list[int], version: int
) -> None:
    path = edited(plain, tmp_path / "a.mp4", edits, version)
    index = build_index(str(path))
    answers = [frame for _, frame in read_frames(str(path), index, range(len(index)))]
    assert [None if isinstance(frame, VideoError) else read_number(frame) for frame in answers] == shown
    assert index.seconds.tolist() == pytest.approx([place / 30 for place in range(len(shown))], abs=1e-3)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([(0.5, 0, 1), (0.5, 15, 0), (0.5, 15, 1)], "rates 0;"),
        ([(1, 0, 2)], "rates 2;"),
        ([(4, 0, 0.5)], "rates 0.5;"),
        ([(1, 0, -1)], "rates -1;"),
        ([(0.5, 0, 1), (1, None, 1), (0.5, 15, 1)], "has a pause"),
    ],
    ids=["frozen", "fast", "slow", "backwards", "pause"],
)
def test_edits_that_ffmpeg_plays_otherwise_are_refused(
    plain: Path, tmp_path: Path, edits: Sequence[Edit], message: str, version: int
) -> None:
    with pytest.raises(VideoError, match=f"The edit list .*{message}") as caught:
        build_index(str(edited(plain, tmp_path / "a.mp4", edits, version)))
    assert caught.value.reason == "unreadable"
