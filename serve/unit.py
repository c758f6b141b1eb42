"""Unit runner: decodes, encodes and commits units. The next one is decoded and encoded while one is written."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coldframe
from coldframe.errors import VideoError
from coldframe.serve.baselines import clip_baselines
from coldframe.serve.clip_stream import ClipStream, UnitEnd
from coldframe.serve.clips import Answer, VideoClips
from coldframe.serve.control import frame_order, window_name
from coldframe.serve.decode_process import STALL_SECONDS
from coldframe.serve.frame_cache import FrameCache
from coldframe.serve.gpu_runtime import GpuBackend
from coldframe.serve.guard import FailureGuard, FailureLimits
from coldframe.serve.readers import DecoderName, open_reader
from coldframe.serve.runtime import Backend, Runtime, open_runtime
from coldframe.serve.stages import StageSeconds
from coldframe.serve.tiers import keep_tier
from coldframe.serve.unit_writer import UnitWriter
from coldframe.store import Store, UnitResult, keep_rows, open_store, rows_to_extract, write_unit
from coldframe.store.int8_tokens import Int8Tokens
from coldframe.store.real_frames import first_real
from coldframe.store.schema import BASELINE_ARRAYS, Reason, Status, layer_array
from coldframe.store.text import text_to_path
from coldframe.store.units import PatchTokens, stored_arrays

Clip = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class RunnerSettings:
    """How a worker runs; none of it changes a number beyond the precision tier's measured parity.

    Attributes:
        store, bundle: paths.
        backend: runtime of the encoder.
        threads: threads for encoding; each decoder uses one, in a process of its own.
        batch_clips: clips encoded together.
        decoder: `pyav`, `dali` or `dali-cpu` (`open_reader`).
        device: `cpu` or `cuda`; None for the backend's own.
        decoders: decode processes that feed the encoder; only `pyav` takes more than one.
        retry: failed rows with these reasons are extracted again where a unit is committed.
        failures_in_a_row: videos, one after the other, that may give no clip before the run stops; 0 for any number.
    """

    store: str
    bundle: str
    backend: Backend | GpuBackend
    threads: int
    batch_clips: int
    stall_seconds: float = STALL_SECONDS
    decoder: DecoderName = "pyav"
    device: str | None = None
    decoders: int = 1
    retry: tuple[Reason, ...] = ()
    failures_in_a_row: int = 0


@dataclass
class _Rows:
    """The arrays of one unit while it is being filled; a row's tokens mean something once its status is ok.

    Tokens have the type that is stored, so that nothing large is cast again while it is written. `int8` are the patch
    tokens of a store that keeps them so, `tokens` all others.
    """

    rows: range
    status: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    tokens: dict[str, NDArray[np.floating[Any]]]
    int8: dict[str, Int8Tokens]
    failures: list[dict[str, Any]] = field(default_factory=list)
    encode_seconds: float = 0.0


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
        self._readers = [
            open_reader(
                settings.decoder,
                image_size=self.store.recipe.image_size,
                threads=settings.threads,
                stall_seconds=settings.stall_seconds,
            )
            for _ in range(settings.decoders)
        ]
        self._paths = self.store.video_paths
        self._sha256 = self.store.video_column("sha256")
        self._errors = self.store.video_column("error")
        self._reasons = self.store.video_column("reason")
        self._video = self.store.row_videos
        self._frame_index = self.store.column("frame_index")
        self._n_real = self.store.column("n_real")
        self._first_real = first_real(self._n_real, self.store.column("flags"), self.store.recipe.frames)
        self._guard = FailureGuard(FailureLimits(in_a_row=settings.failures_in_a_row))

    def close(self) -> None:
        """End the decode processes."""
        for reader in self._readers:
            reader.close()

    def run(self, units: Iterable[int]) -> StageSeconds:
        """Fill and commit `units`, one after the other, and return how long each stage was at work.

        Rows that cannot be extracted are committed as failed, with their reason. A batch never holds clips of two
        units, so that a row does not depend on which units a worker has. At most two units are in memory: one that
        is filled, and one that is written.

        Args:
            units: taken one by one from another thread, some clips before they are needed.
        """
        started = time.perf_counter()
        decode_seconds = encode_seconds = 0.0
        ahead = 2 * self.settings.batch_clips
        with (
            UnitWriter() as writer,
            ClipStream(units, self.videos_of, self._readers, ahead=ahead) as answers,
        ):
            for filled, end in self._fill(answers):
                writer.hand_over(self._commit, filled, end)
                decode_seconds += end.decode_seconds
                encode_seconds += filled.encode_seconds
            writer.wait()
        seconds = time.perf_counter() - started
        return StageSeconds(
            decode=decode_seconds,
            encode=encode_seconds,
            write=writer.seconds,
            decode_available=seconds * len(self._readers),
            encode_available=seconds,
            write_available=seconds,
        )

    def _fill(self, answers: Iterator[Answer | UnitEnd]) -> Iterator[tuple[_Rows, UnitEnd]]:
        """Each unit with its encoded rows."""
        filled: _Rows | None = None
        batch: list[Answer] = []
        for event in answers:
            unit = event.unit if isinstance(event, UnitEnd) else event[0] // self.store.unit_rows
            filled = filled or self._begin(unit)
            if not isinstance(event, UnitEnd):
                batch.append(event)
            if len(batch) == self.settings.batch_clips or isinstance(event, UnitEnd):
                self._encode(filled, batch)
                self._on_clips(len(batch))
                batch = []
            if isinstance(event, UnitEnd):
                done, filled = filled, None
                yield done, event

    def _begin(self, unit: int) -> _Rows:
        """Room for the rows of `unit`, with what is taken over from an earlier attempt or known from the plan."""
        rows = self.store.unit_range(unit)
        count = len(rows)
        filled = _Rows(
            rows=rows,
            status=np.full(count, Status.FAILED, np.uint8),
            reason=np.zeros(count, np.uint8),
            tokens={},
            int8={},
        )
        for name, array in self.store.token_arrays.items():
            shape = (count, *array.values.row_shape)
            if array.scale is None:
                filled.tokens[name] = np.empty(shape, array.values.numpy_dtype)
            else:
                filled.int8[name] = Int8Tokens.empty(shape)
        kept = keep_rows(
            self.store,
            unit,
            retry=self.settings.retry,
            status=filled.status,
            reason=filled.reason,
            tokens={**stored_arrays(filled.int8), **filled.tokens},
        )
        filled.failures += kept.failures
        filled.int8 = {
            name: replace(tokens, earlier=kept.reconstruction.get(name)) for name, tokens in filled.int8.items()
        }
        known = [int(row) for row in self._wanted(unit) if self._frame_index[row, 0] < 0]
        for row in known:
            self._fail(filled, row, self._known_error(row))
        self._on_clips(len(kept.rows) + len(known))
        return filled

    def _known_error(self, row: int) -> VideoError:
        """Why a row has no clip, as the plan knows it."""
        reason = Reason(int(self._reasons[self._video[row]]))
        if reason != Reason.NONE:
            return VideoError(reason.name.lower(), self._errors[self._video[row]])
        name, start, stop = (self.store.annotation_column(column)[row] for column in ("id", "start_s", "stop_s"))
        seconds = self.store.video_column("duration_s")[self._video[row]]
        return VideoError(
            "no_window",
            f"Annotation {name} lasts from {start:.2f} to {stop:.2f} s: the window {self.store.recipe.window}, "
            f"{self.store.recipe.anticipation_s:g} s ahead, has no frame in this video of {seconds:.2f} s.",
        )

    def _wanted(self, unit: int) -> NDArray[np.int64]:
        return rows_to_extract(self.store, unit, self.settings.retry)

    def videos_of(self, unit: int) -> list[VideoClips]:
        """What of `unit` is to be decoded, a video at a time."""
        todo = []
        for video, numbers in groupby(self._wanted(unit), key=lambda row: int(self._video[row])):
            rows = np.fromiter(numbers, np.int64)
            rows = rows[self._frame_index[rows, 0] >= 0]
            if len(rows):
                path = text_to_path(self._paths[video])
                todo.append(
                    VideoClips(path=path, sha256=self._sha256[video], rows=rows, frame_index=self._frame_index[rows])
                )
        return todo

    def _encode(self, filled: _Rows, batch: Sequence[Answer]) -> None:
        clips: list[tuple[int, Clip]] = []
        for row, clip in batch:
            if isinstance(clip, VideoError):
                self._fail(filled, row, clip)
                self._guard.failed(self._paths[self._video[row]], clip.reason)
            else:
                clips.append((row, self._in_order(row, clip)))
        if not clips:
            return
        self._guard.succeeded()
        started = time.perf_counter()
        tokens = self.runtime(np.stack([clip for _, clip in clips]))
        rows = np.array([row for row, _ in clips])
        n_real, first = self._n_real[rows], self._first_real[rows]
        kept = keep_tier(tokens, self.store.recipe.tokens, n_real, first).arrays
        named = {name: values for name, values in kept.items() if values is not None}
        if self.store.recipe.baselines != "none":
            named |= clip_baselines([clip for _, clip in clips], n_real.tolist(), first.tolist())
        at = rows - filled.rows.start
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name when it is written
            for name, values in filled.tokens.items():
                values[at] = named[name]
        for name, quantised in filled.int8.items():
            quantised.put(at, named[name])
        filled.status[at] = Status.OK
        filled.encode_seconds += time.perf_counter() - started

    def _in_order(self, row: int, clip: Clip) -> Clip:
        """The clip as it is, or in the frame order of the recipe's control."""
        recipe = self.store.recipe
        if recipe.control == "none":
            return clip
        window = window_name(self._sha256[self._video[row]], self._frame_index[row])
        order = frame_order(recipe.control, int(self._n_real[row]), len(clip), window, first=int(self._first_real[row]))
        return clip[order]

    def _fail(self, filled: _Rows, row: int, error: VideoError) -> None:
        reason = Reason[error.reason.upper()]
        filled.reason[row - filled.rows.start] = reason
        video = int(self._video[row])
        filled.failures.append(
            {"row": row, "video": video, "path": self._paths[video], "reason": reason.name.lower(), "error": str(error)}
        )

    def _commit(self, filled: _Rows, end: UnitEnd) -> None:
        patches: dict[str, PatchTokens] = {**filled.tokens, **filled.int8}
        result = UnitResult(
            rows=filled.rows,
            status=filled.status,
            reason=filled.reason,
            cls=filled.tokens.get("cls"),
            patch=patches.get("patch"),
            layers={layer: patches[layer_array(layer)] for layer in self.store.geometry.layers},
            baselines={name: filled.tokens[name] for name in BASELINE_ARRAYS if name in filled.tokens},
            frame_cls=filled.tokens.get("frame_cls"),
            failures=sorted(filled.failures, key=lambda failure: int(failure["row"])),
            seconds={"decode": end.decode_seconds, "encode": filled.encode_seconds},
            provenance={"coldframe": coldframe.__version__, **end.provenance, **self.runtime.provenance()},
        )
        write_unit(self.store, end.unit, result)
