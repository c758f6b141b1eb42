"""Clip stream: the clips of one unit after the other, in row order, decoded ahead of whoever takes them.

Each reader has a thread, which takes the next piece of work as soon as its last one is read: across the border
between two units too, so that the encoder does not wait at the start of every unit. Clips come out in row order
however many readers there are.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from coldframe.serve.clips import Answer, ClipReader, VideoClips

PIECE_ROWS = 16  # of one video that one of several readers takes at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitEnd:
    """Every row of `unit` was answered.

    Attributes:
        decode_seconds: that readers were waited for, summed over them.
        provenance: which decoder made the rows.
    """

    unit: int
    decode_seconds: float
    provenance: dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class _PieceEnd:
    seconds: float
    provenance: dict[str, Any]


@dataclass(kw_only=True, eq=False)
class _Piece:
    """Videos that one reader reads in one go; `room` has one place for each event that may wait to be taken."""

    unit: int
    videos: Sequence[VideoClips]
    is_last: bool
    room: threading.Semaphore = field(default_factory=threading.Semaphore)
    events: "queue.SimpleQueue[Answer | _PieceEnd | BaseException]" = field(default_factory=queue.SimpleQueue)


class ClipStream:
    """Iterates over `Answer`s, row by row, and a `UnitEnd` behind the last of each unit.

    An error in a reader is raised in the consumer; leaving the context stops the threads.

    Args:
        units: taken one by one, when a reader has room for more, from a reader's thread.
        videos_of: the videos of a unit, in row order.
        readers: one gets whole units; of several each gets up to `PIECE_ROWS` rows of a video at a time.
        ahead: clips that each reader may be in front. More would only take memory.
    """

    def __init__(
        self,
        units: Iterable[int],
        videos_of: Callable[[int], list[VideoClips]],
        readers: Sequence[ClipReader],
        *,
        ahead: int,
    ) -> None:
        self._videos_of = videos_of
        self._whole_units = len(readers) == 1
        self._pieces = self._split(units)
        self._taking = threading.Lock()
        self._order: queue.SimpleQueue[_Piece | BaseException | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._rooms = [threading.Semaphore(ahead) for _ in readers]
        self._threads = [
            threading.Thread(target=self._work, args=(reader, room), name="decode-ahead", daemon=True)
            for reader, room in zip(readers, self._rooms, strict=True)
        ]

    def __enter__(self) -> Iterator[Answer | UnitEnd]:
        for thread in self._threads:
            thread.start()
        return self._consume()

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for room in self._rooms:
            room.release()  # a reader that waits for room must be let go before it can see the stop
        for thread in self._threads:
            thread.join()

    def _split(self, units: Iterable[int]) -> Iterator[_Piece]:
        for unit in units:
            videos = self._videos_of(unit)
            parts = [videos] if self._whole_units or not videos else [[part] for part in _parts(videos)]
            for place, part in enumerate(parts):
                yield _Piece(unit=unit, videos=part, is_last=place == len(parts) - 1)

    def _work(self, reader: ClipReader, room: threading.Semaphore) -> None:
        while (piece := self._take(room)) is not None:
            try:
                self._read(reader, piece)
            except BaseException as error:
                piece.events.put(error)
                return

    def _take(self, room: threading.Semaphore) -> _Piece | None:
        """The next piece, which is at the same time put in line for the consumer."""
        with self._taking:
            if self._stop.is_set():
                return None
            try:
                piece = next(self._pieces, None)
            except BaseException as error:
                self._order.put(error)
                return None
            if piece is not None:
                piece.room = room
            self._order.put(piece)
            return piece

    def _read(self, reader: ClipReader, piece: _Piece) -> None:
        seconds, began = 0.0, time.perf_counter()
        reader.begin(piece.videos)
        for video in piece.videos:
            with closing(reader.read(video)) as answers:
                for answer in answers:
                    seconds += time.perf_counter() - began
                    if not self._put(piece, answer):
                        return
                    began = time.perf_counter()
        seconds += time.perf_counter() - began
        self._put(piece, _PieceEnd(seconds=seconds, provenance=reader.provenance()))

    def _put(self, piece: _Piece, event: Answer | _PieceEnd) -> bool:
        """Hand `event` on when there is room; False if nobody wants it any more.

        The consumer takes the pieces in the order in which they were given to readers, and a reader reads one piece
        after the other. So what fills a reader's room is never behind the piece that the consumer waits for.
        """
        piece.room.acquire()
        if self._stop.is_set():
            return False
        piece.events.put(event)
        return True

    def _consume(self) -> Iterator[Answer | UnitEnd]:
        seconds = 0.0
        while (piece := self._order.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            while not isinstance(event := piece.events.get(), _PieceEnd):
                piece.room.release()
                if isinstance(event, BaseException):
                    raise event
                yield event
            piece.room.release()
            seconds += event.seconds
            if piece.is_last:
                yield UnitEnd(unit=piece.unit, decode_seconds=seconds, provenance=event.provenance)
                seconds = 0.0


def _parts(videos: Sequence[VideoClips]) -> Iterator[VideoClips]:
    for video in videos:
        for start in range(0, len(video.rows), PIECE_ROWS):
            span = slice(start, start + PIECE_ROWS)
            yield VideoClips(
                path=video.path, sha256=video.sha256, rows=video.rows[span], frame_index=video.frame_index[span]
            )
