"""Unit runner: decodes, encodes and commits one unit of rows at a time, decoding ahead of the encoder."""

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coldframe
from coldframe.errors import VideoError
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.serve.container import decoder_version
from coldframe.serve.gpu_runtime import GpuBackend
from coldframe.serve.runtime import Backend, Runtime, open_runtime
from coldframe.serve.tiers import keep_tier
from coldframe.store import Store, UnitResult, open_store, write_unit
from coldframe.store.schema import Reason, Status
from coldframe.store.text import text_to_path

Clip = NDArray[np.uint8]
Answer = tuple[int, Clip | VideoError]
_END = None


@dataclass(frozen=True, kw_only=True)
class RunnerSettings:
    """How a worker runs; none of it changes a number beyond the precision tier's measured parity.

    Attributes:
        store, bundle: paths.
        backend: runtime of the encoder.
        threads: threads for encoding; decoding uses one.
        batch_clips: clips encoded together.
        device: `cpu` or `cuda`; None for the backend's own.
    """

    store: str
    bundle: str
    backend: Backend | GpuBackend
    threads: int
    batch_clips: int
    device: str | None = None


@dataclass
class _Rows:
    """The arrays of one unit while it is being filled; NaN and `failed` until a row's tokens arrive."""

    rows: range
    status: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    cls: NDArray[np.float32]
    patch: NDArray[np.float32] | None
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"decode": 0.0, "encode": 0.0})


class UnitRunner:
    """Opens store and encoder once, then runs any number of units."""

    def __init__(self, settings: RunnerSettings, on_clips: Callable[[int], object] | None = None) -> None:
        self.settings = settings
        self.store: Store = open_store(settings.store, writable=True)
        self.runtime: Runtime = open_runtime(
            settings.bundle,
            backend=settings.backend,
            precision=self.store.recipe.precision,
            threads=settings.threads,
            device=settings.device,
        )
        self._on_clips = on_clips or (lambda count: None)
        self._cache = VideoCache()
        self._paths = self.store.video_column("path")
        self._sha256 = self.store.video_column("sha256")
        self._errors = self.store.video_column("error")
        self._video = self.store.column("video")
        self._frame_index = self.store.column("frame_index")

    def run(self, unit: int) -> None:
        """Fill and commit `unit`. Rows that cannot be extracted are committed as failed, with their reason."""
        rows = self.store.unit_range(unit)
        filled = self._empty(rows)
        todo = self._planned(filled)
        with DecodeAhead(self._decode(todo, filled.seconds), ahead=2 * self.settings.batch_clips) as answers:
            for batch in _batches(answers, self.settings.batch_clips):
                self._encode(filled, batch)
                self._on_clips(len(batch))
        self._commit(unit, filled)

    def _empty(self, rows: range) -> _Rows:
        shape, count = self.store.geometry, len(rows)
        grid = (count, shape.time, shape.rows, shape.cols, shape.dim)
        return _Rows(
            rows=rows,
            status=np.full(count, Status.FAILED, np.uint8),
            reason=np.zeros(count, np.uint8),
            cls=np.full((count, shape.dim), np.nan, np.float32),
            patch=np.full(grid, np.nan, np.float32) if shape.time else None,
        )

    def _planned(self, filled: _Rows) -> list[VideoClips]:
        """Rows to decode, a video at a time; rows that the plan already knows to fail are settled here."""
        todo = []
        for video, numbers in groupby(filled.rows, key=lambda row: int(self._video[row])):
            rows = np.fromiter(numbers, np.int64)
            if self._frame_index[rows[0], 0] < 0:
                reason = Reason(int(self.store.video_column("reason")[video]))
                error = VideoError(reason.name.lower(), self._errors[video])
                for row in rows:
                    self._fail(filled, int(row), error)
                self._on_clips(len(rows))
                continue
            path = text_to_path(self._paths[video])
            todo.append(
                VideoClips(path=path, sha256=self._sha256[video], rows=rows, frame_index=self._frame_index[rows])
            )
        return todo

    def _decode(self, todo: Sequence[VideoClips], seconds: dict[str, float]) -> Generator[Answer]:
        size = self.store.recipe.image_size
        for video in todo:
            started = time.perf_counter()
            for answer in read_clips(video, self._cache, image_size=size, threads=1):
                seconds["decode"] += time.perf_counter() - started
                yield answer
                started = time.perf_counter()
            seconds["decode"] += time.perf_counter() - started

    def _encode(self, filled: _Rows, batch: Sequence[Answer]) -> None:
        clips: list[tuple[int, Clip]] = []
        for row, clip in batch:
            if isinstance(clip, VideoError):
                self._fail(filled, row, clip)
            else:
                clips.append((row, clip))
        if not clips:
            return
        started = time.perf_counter()
        tokens = self.runtime(np.stack([clip for _, clip in clips]))
        cls, patch = keep_tier(tokens, self.store.recipe.tokens)
        filled.seconds["encode"] += time.perf_counter() - started
        at = np.array([row for row, _ in clips]) - filled.rows.start
        filled.cls[at] = cls
        if filled.patch is not None:
            filled.patch[at] = patch
        filled.status[at] = Status.OK

    def _fail(self, filled: _Rows, row: int, error: VideoError) -> None:
        reason = Reason[error.reason.upper()]
        filled.reason[row - filled.rows.start] = reason
        video = int(self._video[row])
        filled.failures.append(
            {"row": row, "video": video, "path": self._paths[video], "reason": reason.name.lower(), "error": str(error)}
        )

    def _commit(self, unit: int, filled: _Rows) -> None:
        result = UnitResult(
            rows=filled.rows,
            status=filled.status,
            reason=filled.reason,
            cls=filled.cls,
            patch=filled.patch,
            failures=sorted(filled.failures, key=lambda failure: int(failure["row"])),
            seconds=filled.seconds,
            provenance=self.provenance(),
        )
        write_unit(self.store, unit, result)

    def provenance(self) -> dict[str, str]:
        """What made the numbers without being allowed to change them: versions, decoder, runtime, machine."""
        return {"coldframe": coldframe.__version__, "decoder": decoder_version(), **self.runtime.provenance()}


class DecodeAhead:
    """Iterates over `answers` produced by a thread that stays at most `ahead` items in front.

    PyAV and the runtimes release the interpreter lock, so decoding overlaps encoding. An error in the thread is
    raised in the consumer; leaving the context stops the thread and closes the generator.
    """

    def __init__(self, answers: Generator[Answer], ahead: int) -> None:
        self._answers = answers
        self._queue: queue.Queue[Answer | BaseException | None] = queue.Queue(ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="decode-ahead", daemon=True)

    def __enter__(self) -> Iterator[Answer]:
        self._thread.start()
        return self._consume()

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        while self._thread.is_alive():
            # a producer that waits for room must be let go before it can see the stop
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def _produce(self) -> None:
        try:
            for answer in self._answers:
                if self._stop.is_set():
                    break
                self._queue.put(answer)
            self._queue.put(_END)
        except BaseException as error:
            self._queue.put(error)
        finally:
            self._answers.close()

    def _consume(self) -> Iterator[Answer]:
        while (item := self._queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item


def _batches(answers: Iterator[Answer], size: int) -> Iterator[list[Answer]]:
    batch: list[Answer] = []
    for answer in answers:
        batch.append(answer)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
