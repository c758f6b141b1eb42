"""Clips come in row order from any number of readers, a bounded number ahead; errors and early ends stop everything."""

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

from coldframe.serve.clip_stream import PIECE_ROWS, ClipStream, UnitEnd
from coldframe.serve.clips import Answer, VideoClips

UNITS = {0: [3, 40], 1: [], 2: [1, 1, 33], 3: [17]}  # rows a video, by unit


def videos_of(unit: int) -> list[VideoClips]:
    start = 100 * unit
    videos = []
    for number, rows in enumerate(UNITS[unit]):
        frames = np.zeros((rows, 1), np.int32)
        numbers = np.arange(start, start + rows)
        videos.append(VideoClips(path=f"{unit}-{number}", sha256="", rows=numbers, frame_index=frames))
        start += rows
    return videos


class Reader:
    """Answers with the row's number; some readers are slower than others."""

    def __init__(self, seconds: float = 0.0, fail_at: int = -1) -> None:
        self.seconds, self.fail_at = seconds, fail_at
        self.read_rows: list[int] = []
        self.sizes: list[int] = []

    def begin(self, videos: Sequence[VideoClips]) -> None:
        self.sizes.append(sum(len(video.rows) for video in videos))

    def read(self, video: VideoClips) -> Generator[Answer]:
        for row in video.rows.tolist():
            if row == self.fail_at:
                raise RuntimeError("a defect")
            time.sleep(self.seconds)
            self.read_rows.append(row)
            yield row, np.full(1, row % 256, np.uint8)

    def provenance(self) -> dict[str, Any]:
        return {"decoder": "none"}

    def close(self) -> None:
        pass


def wanted() -> list[int | str]:
    """Row numbers, and the end of each unit behind its last."""
    return [
        entry for unit in UNITS for entry in [*(row for v in videos_of(unit) for row in v.rows.tolist()), f"end {unit}"]
    ]


@pytest.mark.parametrize("seconds", [[0.0], [0.003, 0.0], [0.0, 0.001, 0.002, 0.0]])
def test_rows_come_in_order_whoever_reads_them(seconds: list[float]) -> None:
    readers = [Reader(pause) for pause in seconds]
    found: list[int | str] = []
    with ClipStream(UNITS, videos_of, readers, ahead=3) as stream:
        for event in stream:
            if isinstance(event, UnitEnd):
                assert event.provenance == {"decoder": "none"}
                found.append(f"end {event.unit}")
            else:
                found.append(event[0])
    assert found == wanted()
    if len(readers) > 1:  # long videos are shared out
        assert all(size <= PIECE_ROWS for reader in readers for size in reader.sizes)
        assert sum(bool(reader.read_rows) for reader in readers) > 1


def test_readers_stay_a_bounded_number_of_clips_ahead() -> None:
    readers = [Reader(), Reader()]
    with ClipStream(UNITS, videos_of, readers, ahead=4) as stream:
        assert next(stream) is not None
        time.sleep(0.2)
        # what waits, what was taken, and one that each holds in its hand
        assert sum(len(reader.read_rows) for reader in readers) <= 2 * 4 + 1 + 2
    assert not [thread for thread in threading.enumerate() if thread.name == "decode-ahead"]


def test_next_unit_is_read_while_the_last_one_is_worked_on() -> None:
    reader = Reader()
    with ClipStream([3, 2], videos_of, [reader], ahead=30) as stream:
        while not isinstance(next(stream), UnitEnd):
            pass
        deadline = time.monotonic() + 10
        while 200 not in reader.read_rows and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 200 in reader.read_rows


@pytest.mark.parametrize("readers", [1, 3])
def test_error_of_a_reader_is_raised_where_its_clip_would_have_come(readers: int) -> None:
    team = [Reader(fail_at=5) for _ in range(readers)]
    with ClipStream(UNITS, videos_of, team, ahead=3) as stream:
        found = [event[0] for event in islice(stream, 5) if not isinstance(event, UnitEnd)]
        with pytest.raises(RuntimeError, match="a defect"):
            next(stream)
    assert found == [0, 1, 2, 3, 4]


def test_error_of_the_units_reaches_the_consumer() -> None:
    def units() -> Iterator[int]:
        yield 3
        raise ValueError("no more")

    with ClipStream(units(), videos_of, [Reader()], ahead=3) as stream:
        assert isinstance(list(islice(stream, 18))[-1], UnitEnd)
        with pytest.raises(ValueError, match="no more"):
            next(stream)
