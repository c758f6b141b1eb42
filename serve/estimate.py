"""Estimates before a run: rows, bytes of each token tier, and hours from a short calibration."""

import json
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coldframe.errors import UsageError
from coldframe.export import Bundle
from coldframe.serve.clips import PyAVReader, VideoClips
from coldframe.serve.extract import token_geometry
from coldframe.serve.gpu_runtime import GpuBackend
from coldframe.serve.runtime import Backend, Runtime, open_runtime
from coldframe.store.plan import Plan
from coldframe.store.schema import INT8_TIERS, TOKEN_TIERS, Status
from coldframe.store.text import text_to_path

CALIBRATION_CLIPS = 4


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan will take.

    Attributes:
        videos, failed_videos, clips, failed_clips: counts.
        copies: further files whose bytes are those of one of the videos, and which share its rows.
        video_seconds: summed length of the usable videos.
        tier_bytes: bytes that the tokens of all rows take, by tier that the encoder and the storage type can give.
        decode_seconds_per_clip, encode_seconds_per_clip: medians of a few clips on this machine; None if no clip can
            be decoded.
        hours: for one worker that overlaps decoding and encoding.
    """

    videos: int
    failed_videos: int
    clips: int
    failed_clips: int
    copies: int
    video_seconds: float
    tier_bytes: dict[str, int]
    decode_seconds_per_clip: float | None
    encode_seconds_per_clip: float | None
    hours: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimate(plan: Plan, bundle: Bundle, *, backend: Backend | GpuBackend, device: str | None = None) -> Estimate:
    """Count what `plan` holds and time a few of its clips on this machine, everything in one process."""
    runtime = open_runtime(bundle, backend=backend, precision=plan.recipe.precision, device=device)
    decode, encode = _calibrate(plan, runtime)
    usable = plan.videos.status == Status.OK
    todo = int((plan.clips.reason == 0).sum())
    slowest = None if decode is None or encode is None else max(decode, encode)
    return Estimate(
        videos=len(plan.videos),
        failed_videos=int((~usable).sum()),
        clips=len(plan.clips),
        failed_clips=len(plan.clips) - todo,
        copies=sum(len(json.loads(paths)) for paths in plan.videos.duplicates),
        video_seconds=float(np.nansum(plan.videos.frames[usable] / plan.videos.fps[usable])),
        tier_bytes=_tier_bytes(plan, bundle),
        decode_seconds_per_clip=decode,
        encode_seconds_per_clip=encode,
        hours=None if slowest is None else todo * slowest / 3600,
    )


def _tier_bytes(plan: Plan, bundle: Bundle) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for tier in TOKEN_TIERS:
        if plan.recipe.dtype == "int8" and tier not in INT8_TIERS:
            continue
        try:
            geometry = token_geometry(bundle, tier)
        except UsageError:  # a grid that this tier cannot pool
            continue
        sizes[tier] = len(plan.clips) * geometry.row_bytes(plan.recipe.dtype)
    return sizes


def _calibrate(plan: Plan, runtime: Runtime) -> tuple[float | None, float | None]:
    """Median seconds to decode and to encode one clip, from the first video that gives clips."""
    good = np.flatnonzero(plan.clips.reason == 0)
    if not len(good):
        return None, None
    video = int(plan.clips.video[good[0]])
    rows = good[plan.clips.video[good] == video][:CALIBRATION_CLIPS]
    source = VideoClips(
        path=text_to_path(plan.videos.path[video]),
        sha256=plan.videos.sha256[video],
        rows=rows,
        frame_index=plan.clips.frame_index[rows],
    )
    decode: list[float] = []
    encode: list[float] = []
    started = time.perf_counter()
    with closing(PyAVReader(image_size=plan.recipe.image_size)) as reader:
        for _, clip in reader.read(source):
            decode.append(time.perf_counter() - started)
            if isinstance(clip, np.ndarray):
                if not encode:
                    runtime(clip[None])  # the first call allocates and compiles
                started = time.perf_counter()
                runtime(clip[None])
                encode.append(time.perf_counter() - started)
            started = time.perf_counter()
    if not encode:
        return None, None
    return float(np.median(decode)), float(np.median(encode))
