"""Extraction: plan, extract, seal. A finished store accounts for every planned row."""

import os
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from coldframe.errors import ColdframeError, InputNotFound, UsageError
from coldframe.export import Bundle
from coldframe.serve.gpu_runtime import GpuBackend
from coldframe.serve.guard import FailureLimits
from coldframe.serve.inputs import InputVideo
from coldframe.serve.planner import make_plan
from coldframe.serve.readers import DecoderName, open_reader
from coldframe.serve.runtime import Backend, require_variant
from coldframe.serve.tiers import require_even_grid
from coldframe.serve.unit import RunnerSettings
from coldframe.serve.watch import StoreWatch
from coldframe.serve.workers import run_units
from coldframe.store import (
    Store,
    create_store,
    finish_growth,
    finish_replacements,
    grow_store,
    merge_plans,
    open_store,
    pending_units,
    read_plan,
    rows_to_retry,
    seal,
)
from coldframe.store.plan import Plan
from coldframe.store.recipe import Control, Recipe, Sampling
from coldframe.store.schema import Reason, StorageDtype, TokenGeometry, Tokens
from coldframe.store.store import store_folder
from coldframe.store.text import path_to_text, size_to_text

# a display for one stage: called with a label and a length, its context yields a function that advances it
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What one call of `extract` did.

    Attributes:
        store: path of the store.
        rows, ok, failed: rows planned, extracted and failed; `rows == ok + failed`.
        resumed_rows: rows that an earlier run had already committed.
        seconds: wall time of this run.
    """

    store: str
    rows: int
    ok: int
    failed: int
    resumed_rows: int
    seconds: float

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
) -> Recipe:
    """The recipe for `bundle` with the given sampling and storage; `frames` and `hop_frames` default to the encoder's.

    Raises:
        UsageError: a value is out of range, or `frames` is not what the exported graph takes.
    """
    frames = bundle.frames if frames is None else frames
    if frames != bundle.frames:
        raise UsageError(
            f"frames is {frames}, but {bundle.name} was exported for clips of {bundle.frames} frames. Use that, or "
            "export an encoder for another length."
        )
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
        layers=() if tokens == "cls" else bundle.geometry.layers,
        tokens=tokens,
        dtype=dtype,
        control=control,
    )


def token_geometry(bundle: Bundle, tokens: Tokens) -> TokenGeometry:
    """Shape of one row's tokens for `bundle` at tier `tokens`."""
    shape = bundle.geometry
    kept = TokenGeometry.for_tier(
        tokens,
        dim=shape.dim,
        time=shape.times,
        rows=shape.rows,
        cols=shape.cols,
        has_cls=shape.has_cls,
        layers=shape.layers,
    )
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
    backend: Backend | GpuBackend = "onnxruntime",
    device: str | None = None,
    workers: int = 1,
    batch_clips: int = 4,
    decoder: DecoderName = "pyav",
    append: bool = False,
    limits: FailureLimits | None = None,
) -> Extraction:
    """Extract `videos` into the store at `store_path`, or finish what an earlier run began.

    Args:
        videos: inputs in row order (`collect_inputs`).
        bundle: the exported encoder.
        store_path: a new path, or a store made from the same videos with the same recipe.
        recipe: from `make_recipe`.
        progress: display for the stages, such as `coldframe.progress.progress_bar`.
        backend: runtime (`export.variants`).
        device: `cpu` or `cuda`; None for the backend's own.
        workers: processes; the processor's cores are shared out among them.
        batch_clips: clips encoded together.
        decoder: `pyav`, `dali` or `dali-cpu` (`open_reader`).
        append: the store exists; those of `videos` that it lacks get rows behind the ones that it has.
        limits: failures after which the run stops; None for `FailureLimits()`.

    Raises:
        RecipeMismatch: the store was made with another recipe.
        UsageError: the videos are not those that the store was planned with, or another run holds the store.
        StoreError: rows are unaccounted for at the end.
        ColdframeError: more failures than `limits` allows, or a disk that refuses.
    """
    started = time.perf_counter()
    require_store_path(store_path, must_exist=append)
    # a decoder that is not there, or has no GPU, is known before planning
    open_reader(decoder, image_size=recipe.image_size, threads=1).close()
    require_variant(bundle, backend, recipe.precision, device)
    if os.path.exists(store_path):  # before planning, which can take long
        finish_growth(store_path)
        recipe.require_equal(open_store(store_path).recipe, f"the store {store_path}")
    plan = plan_videos(videos, recipe, progress, limits or FailureLimits())
    store = _grown(plan, store_path) if append else _store_for(plan, bundle, store_path)
    done = complete(
        store,
        bundle,
        progress=progress,
        backend=backend,
        device=device,
        workers=workers,
        batch_clips=batch_clips,
        decoder=decoder,
        limits=limits,
    )
    return replace(done, seconds=time.perf_counter() - started)


def complete(
    store: Store,
    bundle: Bundle,
    *,
    progress: Progress,
    backend: Backend | GpuBackend = "onnxruntime",
    device: str | None = None,
    workers: int = 1,
    batch_clips: int = 4,
    decoder: DecoderName = "pyav",
    limits: FailureLimits | None = None,
    retry: Collection[Reason] = (),
) -> Extraction:
    """Extract what `store` lacks, then seal it. Nothing but the store and the videos that it names is needed.

    Args:
        store: open for writing.
        retry: failed rows with these reasons are tried again as well; their units are written anew, whole.
        bundle, progress, backend, device, workers, batch_clips, decoder, limits: as for `extract`.

    Raises:
        UsageError: another run holds the store.
        StoreError: rows are unaccounted for at the end.
        ColdframeError: more failures than `limits` allows, or a disk that refuses.
    """
    started, store_path, limits = time.perf_counter(), str(store.path), limits or FailureLimits()
    with store.lock():
        finish_replacements(store.path)
        again = rows_to_retry(store, retry) // store.unit_rows
        pending = sorted({*pending_units(store), *again.tolist()})
        todo = sum(len(store.unit_range(unit)) for unit in pending)
        watch = StoreWatch(store, pending, limits)
        settings = RunnerSettings(
            store=store_path,
            bundle=str(bundle.path),
            backend=backend,
            threads=max(1, len(os.sched_getaffinity(0)) // workers),
            batch_clips=batch_clips,
            decoder=decoder,
            device=device,
            retry=tuple(retry),
            failures_in_a_row=limits.in_a_row,
        )
        with progress("Extracting clips", todo) as advance:
            run_units(pending, settings, workers=workers, on_clips=watch.around(advance))
        watch.look()
        counts = seal(store)
    return Extraction(
        store=store_path,
        rows=store.rows,
        ok=counts["ok"],
        failed=counts["failed"],
        resumed_rows=store.rows - todo,
        seconds=time.perf_counter() - started,
    )


def plan_videos(
    videos: Sequence[InputVideo], recipe: Recipe, progress: Progress, limits: FailureLimits | None = None
) -> Plan:
    """`make_plan` with a progress display and as many threads as this process may use."""
    threads = len(os.sched_getaffinity(0))
    with progress("Indexing videos", len(videos)) as advance:
        return make_plan(videos, recipe, threads=threads, on_video=lambda: advance(1), limits=limits)


def require_store_path(store_path: str, *, must_exist: bool) -> None:
    """Refuse a path where no store can be, or is, before any work."""
    store_folder(store_path)
    if os.path.islink(store_path) and not os.path.exists(store_path):
        raise UsageError(
            f"{path_to_text(store_path)} is a link to {path_to_text(os.readlink(store_path))}, which does not exist. "
            "Make that folder's disk available, or remove the link."
        )
    if must_exist and not os.path.exists(store_path):
        raise InputNotFound(f"There is no store at {path_to_text(store_path)} to append to. Leave out --append.")


def _grown(plan: Plan, store_path: str) -> Store:
    """The store with the videos of `plan` that it lacks behind its own."""
    store = open_store(store_path, writable=True)
    with store.lock():
        finish_replacements(store.path)
        grown = merge_plans(read_plan(store), plan)
        more = len(grown.clips) - store.rows
        _require_space(store_path, more * store.geometry.row_bytes(plan.recipe.dtype))
        return grow_store(store, grown)


def _store_for(plan: Plan, bundle: Bundle, store_path: str) -> Store:
    geometry = token_geometry(bundle, plan.recipe.tokens)
    if not os.path.exists(store_path):
        _require_space(store_path, len(plan.clips) * geometry.row_bytes(plan.recipe.dtype))
        return create_store(store_path, plan, geometry=geometry, encoder=encoder_identity(bundle))
    store = open_store(store_path, writable=True)
    require_planned(store, plan)
    return store


def require_planned(store: Store, plan: Plan) -> None:
    """Refuse a plan that is not the one of `store`, and say which videos differ."""
    if store.plan_id != plan.plan_id:
        raise UsageError(
            f"The videos are not those that {path_to_text(store.path)} was planned with: {_difference(store, plan)}."
        )


def encoder_identity(bundle: Bundle) -> dict[str, Any]:
    """What a store says of its encoder: enough to judge and cite the features without the bundle."""
    return {
        "name": bundle.name,
        "untrained": bundle.untrained,
        "weights_sha256": bundle.weights_sha256,
        "licence": bundle.licence,
        "non_commercial": bundle.non_commercial,
    }


def _difference(store: Store, plan: Plan) -> str:
    there = dict(zip(store.video_column("path"), store.video_column("sha256"), strict=True))
    here = dict(zip(plan.videos.path, plan.videos.sha256, strict=True))
    notes = [f"{path} is new" for path in here if path not in there]
    notes += [f"{path} is missing" for path in there if path not in here]
    notes += [f"{path} has other content" for path in here if path in there and here[path] != there[path]]
    shown = ", ".join(notes[:3]) or "sources, labels or other columns changed"
    more = f" and {len(notes) - 3} more" if len(notes) > 3 else ""
    return f"{shown}{more}. Name the same videos to resume, add --append to extract new ones, or give a new --store"


def _require_space(store_path: str, wanted_bytes: int) -> None:
    folder = os.path.dirname(os.path.abspath(store_path))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free_bytes = shutil.disk_usage(folder).free
    if wanted_bytes > free_bytes:
        raise ColdframeError(
            f"The store needs {size_to_text(wanted_bytes)}, {path_to_text(folder)} has {size_to_text(free_bytes)} free."
            " Keep fewer tokens (--tokens), or choose another disk."
        )
