"""Extraction: plan, extract, seal. A finished store accounts for every planned row."""

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coldframe.errors import UsageError
from coldframe.export import Bundle
from coldframe.export.image_config import ImageEncoderConfig
from coldframe.serve.baselines import COLOUR_BINS, motion_values, require_baselines
from coldframe.serve.cores import share_cores
from coldframe.serve.destination import grown, made, open_part, require_appendable, require_store_path
from coldframe.serve.execution import Execution
from coldframe.serve.gpu_runtime import is_gpu_request
from coldframe.serve.guard import FailureLimits
from coldframe.serve.inputs import InputVideo
from coldframe.serve.parts import Part, count_rows, seal_once
from coldframe.serve.planner import make_plan
from coldframe.serve.ray_workers import run_on_ray
from coldframe.serve.stages import StageSeconds
from coldframe.serve.tiers import require_even_grid
from coldframe.serve.unit import RunnerSettings
from coldframe.serve.watch import StoreWatch
from coldframe.serve.workers import run_units
from coldframe.store import (
    Store,
    finish_growth,
    finish_replacements,
    open_store,
    pending_units,
    rows_to_retry,
    seal,
)
from coldframe.store.files import place_of
from coldframe.store.plan import Plan
from coldframe.store.recipe import Baselines, Control, Recipe, Sampling, Window
from coldframe.store.root import is_taken
from coldframe.store.schema import WITHOUT_PATCHES, Reason, StorageDtype, TokenGeometry, Tokens

# a display for one stage: called with a label and a length, its context yields a function that advances it
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What one call of `extract` did.

    Attributes:
        store: path of the store.
        rows, ok, failed: rows planned, extracted and failed, of the part if there is one; `rows == ok + failed`.
        resumed_rows: those of them that an earlier run had already committed.
        seconds: wall time of this run.
        stages: how long each stage was at work.
        part: the share of the store that this run had; None for all of it.
        sealed: whether the whole store is complete and this run said so in its summary.
    """

    store: str
    rows: int
    ok: int
    failed: int
    resumed_rows: int
    seconds: float
    stages: StageSeconds
    part: Part | None = None
    sealed: bool = True

    @property
    def exit_code(self) -> int:
        """0 if every row is ok, 3 if some inputs failed."""
        return 3 if self.failed else 0


def make_recipe(
    bundle: Bundle,
    *,
    fps: float = 7.5,
    frames: int | None = None,
    hop_frames: int | None = None,
    sampling: Sampling = "grid",
    tokens: Tokens = "cls",
    dtype: StorageDtype = "float16",
    precision: str = "fp32",
    control: Control = "none",
    baselines: Baselines = "none",
    window: Window = "grid",
    anticipation_s: float = 0.0,
) -> Recipe:
    """The recipe for `bundle` with the given sampling and storage; `frames` and `hop_frames` default to the encoder's.

    Raises:
        UsageError: a value is out of range, `frames` is not what the exported graph takes, or its pictures are too
            small for `baselines`.
    """
    frames = bundle.frames if frames is None else frames
    if frames != bundle.frames:
        raise UsageError(
            f"frames is {frames}, but {bundle.name} was exported for clips of {bundle.frames} frames. Use that, or "
            "export an encoder for another length."
        )
    if baselines != "none":
        require_baselines(frames, bundle.image_size)
    return Recipe(
        encoder=bundle.name,
        weights_sha256=bundle.weights_sha256,
        attention=bundle.attention,
        frames=frames,
        fps=fps,
        hop_frames=frames if hop_frames is None else hop_frames,
        sampling=sampling,
        image_size=bundle.image_size,
        resize="short_side" if isinstance(bundle.image_size, int) else "cover",
        precision=precision,
        layers=() if tokens in WITHOUT_PATCHES else bundle.geometry.layers,
        tokens=tokens,
        dtype=dtype,
        control=control,
        baselines=baselines,
        clip_cls="frame_mean" if bundle.geometry.has_frame_cls else "token",
        window=window,
        anticipation_s=anticipation_s,
    )


def token_geometry(bundle: Bundle, tokens: Tokens) -> TokenGeometry:
    """Shape of one row's tokens for `bundle` at tier `tokens`."""
    shape = bundle.geometry
    try:
        kept = TokenGeometry.for_tier(
            tokens,
            dim=shape.dim,
            time=shape.times,
            rows=shape.rows,
            cols=shape.cols,
            has_cls=shape.has_cls or shape.has_frame_cls,
            layers=shape.layers,
            has_frame_cls=shape.has_frame_cls,
        )
    except UsageError as error:
        hint = bundle.config.other_vector if isinstance(bundle.config, ImageEncoderConfig) else ""
        raise UsageError(f"{error}{hint}") from error
    if tokens in ("cls+grid7", "grid7"):
        require_even_grid(shape.rows, shape.cols, tokens)
    return kept


def extract(
    videos: Sequence[InputVideo],
    bundle: Bundle,
    store_path: str,
    recipe: Recipe,
    *,
    progress: Progress,
    how: Execution | None = None,
    part: Part | None = None,
    append: bool = False,
) -> Extraction:
    """Extract `videos` into the store at `store_path`, or finish what an earlier run began.

    Args:
        videos: inputs in row order (`collect_inputs`).
        bundle: the exported encoder.
        store_path: a new path, or a store made from the same videos with the same recipe.
        recipe: from `make_recipe`.
        progress: display for the stages, such as `coldframe.progress.progress_bar`.
        how: None for `Execution()`.
        part: extract only these units, and seal the store only if all others are there.
        append: the store exists; those of `videos` that it lacks get rows behind the ones that it has.

    Raises:
        RecipeMismatch: the store was made with another recipe.
        UsageError: the videos are not those that the store was planned with, or another run holds the store.
        StoreError: rows are unaccounted for at the end.
        ColdframeError: more failures than allowed, or a disk that refuses.
    """
    started, how = time.perf_counter(), how or Execution()
    require_store_path(store_path, append=append, in_parts=part is not None)
    require_appendable(recipe, append=append, in_parts=part is not None)
    how.require_possible(bundle, recipe)
    if is_taken(place_of(store_path)):  # before planning, which can take long
        finish_growth(store_path)
        recipe.require_equal(open_store(store_path).recipe, f"the store {store_path}")
    if part is not None and is_taken(place_of(store_path)):
        store = open_part(store_path, videos)
    else:
        plan = plan_videos(videos, recipe, progress, how.limits)
        geometry = token_geometry(bundle, recipe.tokens)
        if recipe.baselines != "none":
            motion = motion_values(recipe.frames)
            geometry = replace(geometry, baseline_colour=COLOUR_BINS, baseline_motion=motion)
        store = grown(plan, store_path) if append else made(plan, store_path, geometry, encoder_identity(bundle))
    done = complete(store, bundle, progress=progress, how=how, part=part)
    return replace(done, seconds=time.perf_counter() - started)


def complete(
    store: Store,
    bundle: Bundle,
    *,
    progress: Progress,
    how: Execution,
    part: Part | None = None,
    retry: Collection[Reason] = (),
) -> Extraction:
    """Extract what `store` lacks, then seal it. Nothing but the store and the videos that it names is needed.

    Args:
        store: open for writing.
        retry: failed rows with these reasons are tried again as well; their units are written anew, whole.
        bundle, progress, how, part: as for `extract`.

    Raises:
        UsageError: another run holds the store.
        StoreError: rows are unaccounted for at the end, or the store has grown since it was opened.
        ColdframeError: more failures than allowed, or a disk that refuses.
    """
    started = time.perf_counter()
    units = range(store.unit_count) if part is None else part.units(store.unit_count)
    with store.lock(None if part is None else units):
        finish_replacements(store.place, units)
        again = rows_to_retry(store, retry) // store.unit_rows if retry else np.empty(0, np.int64)
        unfinished = sorted({*pending_units(store), *again.tolist()})
        pending = [unit for unit in unfinished if unit in units]
        todo = sum(len(store.unit_range(unit)) for unit in pending)
        watch = StoreWatch(store, unfinished, how.limits)
        with progress("Extracting clips", todo) as advance:
            stages = _run(how, pending, _settings(store, bundle, how, retry), watch.around(advance))
        watch.look()
        sealed = part is None or not pending_units(store)
        counts = seal(store) if part is None else count_rows(store, units)
    if part is not None and sealed:
        sealed = seal_once(store)
    rows = counts["ok"] + counts["failed"]
    return Extraction(
        store=store.name,
        rows=rows,
        ok=counts["ok"],
        failed=counts["failed"],
        resumed_rows=rows - todo,
        seconds=time.perf_counter() - started,
        stages=stages,
        part=part,
        sealed=sealed,
    )


def _settings(store: Store, bundle: Bundle, how: Execution, retry: Collection[Reason]) -> RunnerSettings:
    on_gpu = is_gpu_request(how.backend, how.device)
    cores = share_cores(workers=how.workers, on_gpu=on_gpu, decoders=how.decoders)
    return RunnerSettings(
        store=store.name,
        bundle=str(bundle.path),
        backend=how.backend,
        threads=cores.threads,
        batch_clips=how.batch_clips,
        decoder=how.decoder,
        device=how.device,
        decoders=cores.decoders if how.decoder == "pyav" else 1,
        retry=tuple(retry),
        failures_in_a_row=how.limits.in_a_row,
    )


def _run(
    how: Execution, pending: Sequence[int], settings: RunnerSettings, on_clips: Callable[[int], object]
) -> StageSeconds:
    engine = run_units if how.engine == "local" else run_on_ray
    return engine(pending, settings, workers=how.workers, on_clips=on_clips)


def plan_videos(
    videos: Sequence[InputVideo], recipe: Recipe, progress: Progress, limits: FailureLimits | None = None
) -> Plan:
    """`make_plan` with a progress display and as many threads as this process may use."""
    threads = len(os.sched_getaffinity(0))
    with progress("Indexing videos", len(videos)) as advance:
        return make_plan(videos, recipe, threads=threads, on_video=lambda: advance(1), limits=limits)


def encoder_identity(bundle: Bundle) -> dict[str, Any]:
    """What a store says of its encoder: enough to judge and cite the features without the bundle."""
    return {
        "name": bundle.name,
        "untrained": bundle.untrained,
        "weights_sha256": bundle.weights_sha256,
        "licence": bundle.licence,
        "non_commercial": bundle.non_commercial,
    }
