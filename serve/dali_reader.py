"""DALI reader: clips of many videos decoded in common batches, ahead of whoever reads them.

A video's wanted frames are cut into pieces that fit into memory; pieces of several videos make a batch, and two
batches are in flight. Answers come in the order of the videos whatever a batch held. What DALI is not trusted with
(`dali_files`), or gives up on, PyAV decodes, and which rows that were is part of the provenance.
"""

from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError, VideoError
from coldframe.serve.clips import Answer, PyAVReader, VideoCache, VideoClips, assemble, read_squares
from coldframe.serve.container import decoder_version
from coldframe.serve.dali_colour import Conversion
from coldframe.serve.dali_files import Refusal, examine
from coldframe.serve.dali_graph import BYTES_A_PIXEL, DaliDevice, DaliError, DaliGraph, Sample, dali_version, gpu_count
from coldframe.serve.preprocess import crop_window
from coldframe.serve.pts_index import PtsIndex

BATCH_PIECES = 4
_BATCHES_IN_FLIGHT = 2
_LOOK_AHEAD_VIDEOS = 16
# Full-size pictures of one piece. A piece starts decoding at a key frame, so that short ones decode much twice.
_PIECE_BYTES: dict[DaliDevice, int] = {"cpu": 384 * 2**20, "gpu": 2048 * 2**20}

_Result = NDArray[np.uint8] | Refusal


@dataclass(kw_only=True, eq=False)
class _Job:
    """One video between being looked at and being read."""

    video: VideoClips
    index: PtsIndex | None = None
    error: VideoError | None = None
    refusal: Refusal | None = None
    conversion: Conversion | None = None
    pieces: list[NDArray[np.int64]] = field(default_factory=list)
    results: deque[_Result] = field(default_factory=deque)
    encoded: NDArray[np.uint8] | None = None


@dataclass(kw_only=True)
class _Tally:
    """Who made the rows of one unit."""

    rows: dict[str, list[int]] = field(default_factory=dict)
    videos: Counter[str] = field(default_factory=Counter)
    fallback_rows: Counter[str] = field(default_factory=Counter)


class DaliReader:
    """Reads clips with DALI, and with PyAV where DALI would answer differently.

    Args:
        image_size: side of the squares in pixels.
        device: `gpu` for NVDEC; `cpu` for the same graph without one.
        threads: threads of DALI's CPU parts.

    Raises:
        UsageError: `gpu` on a machine where DALI sees none.
        MissingDependency: DALI is not installed.
    """

    def __init__(self, *, image_size: int, device: DaliDevice, threads: int) -> None:
        if device == "gpu" and not gpu_count():
            raise UsageError(
                "The decoder dali needs an NVIDIA GPU and finds none. Use pyav, or dali-cpu, which decodes VP8, VP9 "
                "and MJPEG."
            )
        self._version = f"DALI {dali_version()} ({device}); {decoder_version()}"
        self._size, self._device, self._threads = image_size, device, threads
        self._cache = VideoCache(2 * _LOOK_AHEAD_VIDEOS)
        self._pyav = PyAVReader(image_size=image_size)
        self._graph: DaliGraph | None = None
        self._tally = _Tally()
        self.begin(())

    def begin(self, videos: Sequence[VideoClips]) -> None:
        self._todo: deque[VideoClips] = deque(videos)
        self._jobs: deque[_Job] = deque()
        self._pending: deque[tuple[_Job, NDArray[np.int64]]] = deque()
        if self._graph is not None and self._in_flight:
            self._graph.restart()  # a consumer that stopped early left results behind
        self._in_flight: deque[list[tuple[_Job, Sample]]] = deque()
        self._tally = _Tally()

    def read(self, video: VideoClips) -> Generator[Answer]:
        job = self._job(video)
        rows = self._with_pyav(job) if job.refusal is not None else self._with_dali(job)
        for place, answer in enumerate(rows):
            if job.error is None:
                self._record(job, place)
            yield answer
        if job.refusal is not None:
            self._tally.videos[job.refusal.reason] += 1

    def provenance(self) -> dict[str, Any]:
        """`decoder_rows`: half-open row ranges by decoder; `dali+pyav` where one clip has frames of both.

        `decoder_fallbacks`: videos and rows that PyAV decoded although DALI was asked for, by reason.
        """
        return {
            "decoder": self._version,
            "decoder_rows": {name: _ranges(rows) for name, rows in sorted(self._tally.rows.items())},
            "decoder_fallbacks": {
                reason: {"videos": videos, "rows": self._tally.fallback_rows[reason]}
                for reason, videos in sorted(self._tally.videos.items())
            },
        }

    def close(self) -> None:
        self.begin(())
        self._graph = None
        self._pyav.close()

    def _job(self, video: VideoClips) -> _Job:
        if not any(job.video is video for job in self._jobs) and not any(other is video for other in self._todo):
            self.begin((video,))
        while True:
            if not self._jobs:
                self._look_ahead()
            job = self._jobs.popleft()
            if job.video is video:
                return job

    def _look_ahead(self) -> None:
        video = self._todo.popleft()
        job = _Job(video=video)
        self._jobs.append(job)
        try:
            job.index = self._cache.index(video.path, video.sha256)
        except VideoError as error:
            job.error = error
            return
        found = examine(video.path, job.index, device=self._device, size=self._size)
        if isinstance(found, Refusal):
            job.refusal = found
        else:
            job.conversion = found.conversion
            wanted = np.unique(video.frame_index).astype(np.int64)
            frames = max(1, _PIECE_BYTES[self._device] // (BYTES_A_PIXEL * job.index.width * job.index.height))
            job.pieces = [wanted[start : start + frames] for start in range(0, len(wanted), frames)]
            self._pending.extend((job, numbers) for numbers in job.pieces)

    def _with_pyav(self, job: _Job) -> Generator[Answer]:
        return self._pyav.read(job.video)

    def _with_dali(self, job: _Job) -> Generator[Answer]:
        video, answered = job.video, 0
        try:
            if job.error is not None:
                raise job.error
            for clip in assemble(video, self._squares(job)):
                yield int(video.rows[answered]), clip
                answered += 1
        except VideoError as error:
            for row in video.rows[answered:]:
                yield int(row), error

    def _squares(self, job: _Job) -> Generator[Answer]:
        for place, numbers in enumerate(job.pieces):
            while not job.results:
                self._collect(job)
            result = job.results.popleft()
            if isinstance(result, Refusal):
                job.refusal = result
                rest = np.concatenate(job.pieces[place:])
                job.pieces = job.pieces[:place]
                assert job.index is not None
                yield from read_squares(job.video.path, job.index, rest, image_size=self._size, threads=1)
                return
            yield from zip(numbers.tolist(), result, strict=True)

    def _record(self, job: _Job, place: int) -> None:
        """Note which decoder made row `place` of the video."""
        frames = job.video.frame_index[place]
        by_dali = int(sum(len(piece) for piece in job.pieces))
        # pieces that DALI answered are the first ones; a refusal has cut off the others
        border = -1 if not by_dali else int(job.pieces[-1][-1])
        first, last = int(frames.min()) <= border, int(frames.max()) <= border
        name = "dali" if first and last else "dali+pyav" if first else "pyav"
        self._tally.rows.setdefault(name, []).append(int(job.video.rows[place]))
        if job.refusal is not None and name != "dali":
            self._tally.fallback_rows[job.refusal.reason] += 1

    def _fill(self) -> None:
        """Keep two batches in flight."""
        while len(self._in_flight) < _BATCHES_IN_FLIGHT:
            batch = self._next_batch()
            if not batch:
                return
            if self._graph is None:
                self._graph = DaliGraph(device=self._device, size=self._size, threads=self._threads, batch=BATCH_PIECES)
            self._in_flight.append(batch)
            self._graph.submit([sample for _, sample in batch])

    def _next_batch(self) -> list[tuple[_Job, Sample]]:
        batch: list[tuple[_Job, Sample]] = []
        while len(batch) < BATCH_PIECES:
            while not self._pending and self._todo and len(self._jobs) < _LOOK_AHEAD_VIDEOS:
                self._look_ahead()
            if not self._pending:
                break
            job, numbers = self._pending.popleft()
            if job.refusal is not None:  # given up since, because of an earlier piece
                continue
            try:
                batch.append((job, _sample(job, numbers, self._size)))
            except OSError as error:
                job.results.append(Refusal(reason="dali_error", detail=f"the file cannot be read: {error.strerror}"))
        return batch

    def _collect(self, waiting: _Job) -> None:
        self._fill()
        if waiting.results:  # its file went away
            return
        assert self._graph is not None
        batch = self._in_flight.popleft()
        try:
            results: Sequence[_Result] = self._graph.collect()
        except DaliError:
            # One file fails the whole batch and every later one, so each is tried alone.
            self._graph.restart()
            results = [self._alone(sample) for _, sample in batch]
            for later in self._in_flight:
                self._graph.submit([sample for _, sample in later])
        for (job, _), result in zip(batch, results, strict=True):
            job.results.append(result)
        self._fill()

    def _alone(self, sample: Sample) -> _Result:
        assert self._graph is not None
        try:
            self._graph.submit([sample])
            return self._graph.collect()[0]
        except DaliError as error:
            self._graph.restart()
            return Refusal(reason="dali_error", detail=str(error))


def _sample(job: _Job, numbers: NDArray[np.int64], size: int) -> Sample:
    assert job.index is not None
    assert job.conversion is not None
    height, width = job.index.height, job.index.width
    if job.encoded is None:
        job.encoded = np.fromfile(job.video.path, np.uint8)
    return Sample(
        encoded=job.encoded,
        frames=numbers,
        height=height,
        width=width,
        window=crop_window(height, width, size),
        conversion=job.conversion,
    )


def _ranges(rows: Sequence[int]) -> list[list[int]]:
    """Half-open ranges that hold exactly `rows`, which are increasing."""
    found: list[list[int]] = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1][1] = row + 1
        else:
            found.append([row, row + 1])
    return found
