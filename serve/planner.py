"""Planner: input videos under one recipe become the table of videos and clips that fixes every row."""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError, VideoError
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.guard import FailureGuard, FailureLimits
from coldframe.serve.inputs import InputVideo
from coldframe.serve.pts_index import PtsIndex
from coldframe.serve.sampling import SampledClips
from coldframe.serve.survey import Survey, survey
from coldframe.serve.windows import annotation_columns
from coldframe.store.plan import Clips, Column, Plan, Videos
from coldframe.store.recipe import Recipe
from coldframe.store.schema import Reason, Status
from coldframe.store.text import path_to_text
from coldframe.store.windows import leaking_rows

_BLOCK_VIDEOS = 1024
_CLIP_TYPES: Mapping[str, type[np.generic]] = {
    "start_s": np.float64,
    "end_s": np.float64,
    "frame_index": np.int32,
    "frame_pts_s": np.float64,
    "n_real": np.int16,
    "flags": np.uint32,
}


class _Facts(NamedTuple):
    """What the table of videos says of an index. The index itself, eight bytes a frame and more, is not kept."""

    codec: str = ""
    width: int = 0
    height: int = 0
    rotation: int = 0
    fps: float = math.nan
    frames: int = 0
    duration_s: float = math.nan
    promised_s: float = math.nan
    flags: int = 0

    @classmethod
    def of(cls, index: PtsIndex | None) -> "_Facts":
        if index is None:
            return cls()
        picture = (index.codec, index.width, index.height, index.rotation)
        return cls(*picture, index.fps, len(index.pts), index.duration_s, index.promised_s, int(index.flags))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Surveyed:
    """One input and what was found in it."""

    video: InputVideo
    found: Survey
    facts: _Facts


def make_plan(
    videos: Sequence[InputVideo],
    recipe: Recipe,
    *,
    threads: int = 1,
    on_video: Callable[[], object] | None = None,
    limits: FailureLimits | None = None,
) -> Plan:
    """Hash and index every video, sample its clips and lay out the rows: videos as given, clips in time order.

    Files with equal content are extracted once, under the first of their paths; the others are listed as duplicates.
    A video that cannot be used keeps one row that says why. Where the recipe's window is not `grid`, the rows of a
    video are its annotations, in their order, whether it can be used or not.

    Args:
        videos: inputs in row order (`collect_inputs` sorts them).
        recipe: decides frames, rate and hop.
        threads: files surveyed at once, each in a process that can be killed; does not change the plan.
        on_video: called after each file, for a progress bar.
        limits: how many videos may be unusable; None for any number.

    Raises:
        UsageError: files with equal content carry different labels or other columns.
        ColdframeError: more videos are unusable than `limits` allows.
    """
    guard = FailureGuard(limits or FailureLimits(in_a_row=0))
    processes: SimpleQueue[DecodeProcess] = SimpleQueue()

    def examine(video: InputVideo) -> _Surveyed:
        process = processes.get()
        try:
            found = _survey(process, video, recipe)
            return _Surveyed(video=video, found=replace(found, index=None), facts=_Facts.of(found.index))
        finally:
            processes.put(process)
            if on_video:
                on_video()

    with ExitStack() as stack, ThreadPoolExecutor(threads) as pool:
        for _ in range(min(threads, len(videos))):
            process = DecodeProcess()
            stack.callback(process.close)
            processes.put(process)
        table = _Table(recipe.frames)
        for item in _in_order(pool, examine, videos, ahead=4 * threads):
            table.add(item)
            if item.found.error is None:
                guard.succeeded()
            else:
                guard.failed(path_to_text(item.video.path), item.found.error.reason)
    plan = Plan(recipe=recipe, videos=_video_table(table.kept, table.duplicates), clips=table.clips())
    clips = plan.clips
    leaking = leaking_rows(recipe, clips.annotations, clips.frame_pts_s, clips.n_real)
    assert not len(leaking), f"row {leaking[0]} would show frames that its window {recipe.window} forbids"
    return plan


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[InputVideo], _Surveyed], videos: Sequence[InputVideo], *, ahead: int
) -> Iterator[_Surveyed]:
    """`pool.map` with at most `ahead` calls under way: a consumer that stops has little to wait for."""
    waiting: deque[Future[_Surveyed]] = deque()
    try:
        for video in videos:
            waiting.append(pool.submit(work, video))
            if len(waiting) == ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _survey(process: DecodeProcess, video: InputVideo, recipe: Recipe) -> Survey:
    found = Survey()
    try:
        for answer in process.run(survey, video.path, recipe, video.annotations):
            found = answer
    except VideoError as error:  # the process had to be killed, or died
        return replace(found, error=error)
    return found


class _Table:
    """Videos in row order, each content once, and their clips, joined in blocks: six arrays a video would take 2 KB."""

    def __init__(self, frames: int) -> None:
        self.kept: list[_Surveyed] = []
        self.duplicates: list[list[str]] = []
        self._frames = frames
        self._place: dict[str, int] = {}
        self._counts: list[int] = []
        self._blocks: list[SampledClips] = []
        self._waiting: list[SampledClips] = []

    def add(self, item: _Surveyed) -> None:
        """Raises UsageError for content that is there already with another description."""
        usable = item.found.error is None
        at = self._place.get(item.found.sha256) if usable else None
        if at is not None:
            _require_same_description(self.kept[at].video, item.video)
            self.duplicates[at].append(path_to_text(item.video.path))
            return
        if usable:
            self._place[item.found.sha256] = len(self.kept)
        rows = len(item.video.annotations) or 1
        clips = item.found.clips if item.found.clips is not None else _failed_clips(rows, self._frames)
        self.kept.append(replace(item, found=replace(item.found, clips=None)))
        self.duplicates.append([])
        self._counts.append(len(clips.n_real))
        self._waiting.append(clips)
        if len(self._waiting) == _BLOCK_VIDEOS:
            self._blocks.append(_joined(self._waiting))
            self._waiting = []

    def clips(self) -> Clips:
        whole = _joined([*self._blocks, *self._waiting])
        video_flags = np.array([item.facts.flags for item in self.kept], np.uint32)
        of_video = np.repeat(np.array([_reason(item) for item in self.kept], np.uint8), self._counts)
        without_window = (whole.n_real == 0) & (of_video == Reason.NONE)
        return Clips(
            video=np.repeat(np.arange(len(self.kept), dtype=np.int32), self._counts),
            start_s=whole.start_s,
            end_s=whole.end_s,
            frame_index=whole.frame_index,
            frame_pts_s=whole.frame_pts_s,
            n_real=whole.n_real,
            flags=np.bitwise_or(whole.flags, np.repeat(video_flags, self._counts), dtype=np.uint32),
            reason=np.where(without_window, Reason.NO_WINDOW, of_video).astype(np.uint8),
            annotations=annotation_columns([one for item in self.kept for one in item.video.annotations]),
        )


def _joined(parts: Sequence[SampledClips]) -> SampledClips:
    def column(name: str, dtype: type[np.generic]) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts]).astype(dtype, copy=False)

    return SampledClips(**{name: column(name, dtype) for name, dtype in _CLIP_TYPES.items()})


def _require_same_description(first: InputVideo, other: InputVideo) -> None:
    if first.annotations or other.annotations:
        raise UsageError(
            f"{path_to_text(first.path)} and {path_to_text(other.path)} have the same content, and annotations name "
            "both. Keep one of the files, and one set of annotations."
        )
    if (first.source, first.columns) != (other.source, other.columns):
        raise UsageError(
            f"{path_to_text(first.path)} and {path_to_text(other.path)} have the same content but different "
            f"columns (source {first.source!r}, {dict(first.columns)} and source {other.source!r}, "
            f"{dict(other.columns)}). Keep one of them, or give both the same columns."
        )


def _video_table(kept: Sequence[_Surveyed], duplicates: Sequence[Sequence[str]]) -> Videos:
    def column(name: str, dtype: type[np.generic]) -> NDArray[Any]:
        return np.array([getattr(item.facts, name) for item in kept], dtype)

    return Videos(
        path=[path_to_text(item.video.path) for item in kept],
        sha256=[item.found.sha256 for item in kept],
        # without content there is nothing to share a source with, except the path itself
        source=[item.video.source or item.found.sha256 or path_to_text(item.video.path) for item in kept],
        duplicates=[json.dumps(list(paths)) for paths in duplicates],
        bytes=np.array([item.found.bytes for item in kept], np.int64),
        codec=[item.facts.codec for item in kept],
        width=column("width", np.int32),
        height=column("height", np.int32),
        rotation=column("rotation", np.int32),
        fps=column("fps", np.float64),
        frames=column("frames", np.int32),
        duration_s=column("duration_s", np.float64),
        promised_s=column("promised_s", np.float64),
        status=np.array([Status.FAILED if item.found.error else Status.OK for item in kept], np.uint8),
        reason=np.array([_reason(item) for item in kept], np.uint8),
        error=[str(item.found.error) if item.found.error else "" for item in kept],
        flags=column("flags", np.uint32),
        columns=_manifest_columns([item.video.columns for item in kept]),
    )


def _reason(item: _Surveyed) -> Reason:
    return Reason[item.found.error.reason.upper()] if item.found.error else Reason.NONE


def _manifest_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """Columns of equal type stay numbers, a missing float NaN; anything else becomes text, a missing value ''."""
    names = sorted({name for row in rows for name in row})
    return {name: _one_column([row.get(name) for row in rows]) for name in names}


def _one_column(values: list[Any]) -> Column:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return np.array(values, np.int64)
    if kinds in ({float}, {float, type(None)}):
        return np.array([np.nan if value is None else value for value in values], np.float64)
    return ["" if value is None else str(value) for value in values]


def _failed_clips(rows: int, frames: int) -> SampledClips:
    return SampledClips(
        start_s=np.full(rows, np.nan),
        end_s=np.full(rows, np.nan),
        frame_index=np.full((rows, frames), -1, np.int32),
        frame_pts_s=np.full((rows, frames), np.nan),
        n_real=np.zeros(rows, np.int16),
        flags=np.zeros(rows, np.uint32),
    )
