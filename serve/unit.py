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
from coldframe.serve.clips import Answer, ClipReader, VideoClips
from coldframe.serve.control import frame_order, window_name
from coldframe.serve.decode_process import STALL_SECONDS
from coldframe.serve.frame_cache import FrameCache
from coldframe.serve.gpu_runtime import GpuBackend
from coldframe.serve.readers import DecoderName, open_reader
from coldframe.serve.runtime import Backend, Runtime, open_runtime
from coldframe.serve.tiers import keep_tier
from coldframe.store import Store, UnitResult, open_store, write_unit
from coldframe.store.schema import Reason, Status, layer_array
from coldframe.store.text import text_to_path

Clip = NDArray[np.uint8]
_END = None


@dataclass(frozen=True, kw_only=True)
class RunnerSettings:
    """How a worker runs; none of it changes a number beyond the precision tier's measured parity.

    Attributes:
        store, bundle: paths.
        backend: runtime of the encoder.
        threads: threads for encoding; decoding uses one, in a process of its own.
        batch_clips: clips encoded together.
        decoder: `pyav`, `dali` or `dali-cpu` (`open_reader`).
        device: `cpu` or `cuda`; None for the backend's own.
    """

    store: str
    bundle: str
    backend: Backend | GpuBackend
    threads: int
    batch_clips: int
    stall_seconds: float = STALL_SECONDS
    decoder: DecoderName = "pyav"
    device: str | None = None


@dataclass
class _Rows:
    """The arrays of one unit while it is being filled; NaN and `failed` until a row's tokens arrive."""

    rows: range
    status: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    tokens: dict[str, NDArray[np.float32]]
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"decode": 0.0, "encode": 0.0})


class UnitRunner:
    """Opens store and encoder once, then runs any number of units."""

    def __init__(self, settings: RunnerSettings, on_clips: Callable[[int], object] | None = None) -> None:
        self.settings = settings
        self.store: Store = open_store(settings.store, writable=True)
        runtime = open_runtime(
            settings.bundle,
            backend=settings.backend,
            precision=self.store.recipe.precision,
            threads=settings.threads,
            device=settings.device,
        )
        self.runtime: Runtime = FrameCache(runtime) if self.store.recipe.attention == "per_frame" else runtime
        self._on_clips = on_clips or (lambda count: None)
        self._reader: ClipReader = open_reader(
            settings.decoder,
            image_size=self.store.recipe.image_size,
            threads=settings.threads,
            stall_seconds=settings.stall_seconds,
        )
        self._paths = self.store.video_paths
        self._sha256 = self.store.video_column("sha256")
        self._errors = self.store.video_column("error")
        self._reasons = self.store.video_column("reason")
        self._video = self.store.row_videos
        self._frame_index = self.store.column("frame_index")
        self._n_real = self.store.column("n_real")

    def close(self) -> None:
        """End the decode process."""
        self._reader.close()

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
        count = len(rows)
        arrays = {name: spec for name, spec in self.store.unit_arrays.items() if spec.sharded}
        return _Rows(
            rows=rows,
            status=np.full(count, Status.FAILED, np.uint8),
            reason=np.zeros(count, np.uint8),
            tokens={name: np.full((count, *spec.row_shape), np.nan, np.float32) for name, spec in arrays.items()},
        )

    def _planned(self, filled: _Rows) -> list[VideoClips]:
        """Rows to decode, a video at a time; rows that the plan already knows to fail are settled here."""
        todo = []
        for video, numbers in groupby(filled.rows, key=lambda row: int(self._video[row])):
            rows = np.fromiter(numbers, np.int64)
            if self._frame_index[rows[0], 0] < 0:
                reason = Reason(int(self._reasons[video]))
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
        self._reader.begin(todo)
        for video in todo:
            started = time.perf_counter()
            for answer in self._reader.read(video):
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
                clips.append((row, self._in_order(row, clip)))
        if not clips:
            return
        started = time.perf_counter()
        tokens = self.runtime(np.stack([clip for _, clip in clips]))
        rows = np.array([row for row, _ in clips])
        kept = keep_tier(tokens, self.store.recipe.tokens, self._n_real[rows]).arrays
        filled.seconds["encode"] += time.perf_counter() - started
        at = rows - filled.rows.start
        for name, values in filled.tokens.items():
            values[at] = kept[name]
        filled.status[at] = Status.OK

    def _in_order(self, row: int, clip: Clip) -> Clip:
        """The clip as it is, or in the frame order of the recipe's control."""
        recipe = self.store.recipe
        if recipe.control == "none":
            return clip
        window = window_name(self._sha256[self._video[row]], self._frame_index[row])
        return clip[frame_order(recipe.control, int(self._n_real[row]), len(clip), window)]

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
            cls=filled.tokens.get("cls"),
            patch=filled.tokens.get("patch"),
            layers={layer: filled.tokens[layer_array(layer)] for layer in self.store.geometry.layers},
            frame_cls=filled.tokens.get("frame_cls"),
            failures=sorted(filled.failures, key=lambda failure: int(failure["row"])),
            seconds=filled.seconds,
            provenance=self.provenance(),
        )
        write_unit(self.store, unit, result)

    def provenance(self) -> dict[str, Any]:
        """What made the numbers without being allowed to change them: versions, decoder, runtime, machine."""
        return {"coldframe": coldframe.__version__, **self._reader.provenance(), **self.runtime.provenance()}


class DecodeAhead:
    """Iterates over `answers` produced by a thread that stays at most `ahead` items in front.

    The clips come from another process, and the runtimes release the interpreter lock, so decoding overlaps
    encoding. An error in the thread is raised in the consumer; leaving the context stops the thread and closes the
    generator.
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
