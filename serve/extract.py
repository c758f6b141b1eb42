"""Extraction: plan, extract, seal. A finished store accounts for every planned row."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from coldframe.errors import ColdframeError, UsageError
from coldframe.export import Bundle
from coldframe.export.image_config import ImageEncoderConfig
from coldframe.serve.gpu_runtime import GpuBackend
from coldframe.serve.inputs import InputVideo
from coldframe.serve.planner import make_plan
from coldframe.serve.readers import DecoderName, open_reader
from coldframe.serve.runtime import Backend, require_variant
from coldframe.serve.tiers import require_even_grid
from coldframe.serve.unit import RunnerSettings
from coldframe.serve.workers import run_units
from coldframe.store import Store, create_store, open_store, pending_units, seal
from coldframe.store.plan import Plan
from coldframe.store.recipe import Control, Recipe, Sampling
from coldframe.store.schema import WITHOUT_PATCHES, StorageDtype, TokenGeometry, Tokens
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
        layers=() if tokens in WITHOUT_PATCHES else bundle.geometry.layers,
        tokens=tokens,
        dtype=dtype,
        control=control,
        clip_cls="frame_mean" if bundle.geometry.has_frame_cls else "token",
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
    backend: Backend | GpuBackend = "onnxruntime",
    device: str | None = None,
    workers: int = 1,
    batch_clips: int = 4,
    decoder: DecoderName = "pyav",
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

    Raises:
        RecipeMismatch: the store was made with another recipe.
        UsageError: the videos are not those that the store was planned with, or another run holds the store.
        StoreError: rows are unaccounted for at the end.
    """
    started = time.perf_counter()
    # a decoder that is not there, or has no GPU, is known before planning
    open_reader(decoder, image_size=recipe.image_size, threads=1).close()
    require_variant(bundle, backend, recipe.precision, device)
    if os.path.exists(store_path):  # before planning, which can take long
        recipe.require_equal(open_store(store_path).recipe, f"the store {store_path}")
    plan = plan_videos(videos, recipe, progress)
    store = _store_for(plan, bundle, store_path)
    with store.lock():
        pending = pending_units(store)
        todo = sum(len(store.unit_range(unit)) for unit in pending)
        settings = RunnerSettings(
            store=store_path,
            bundle=str(bundle.path),
            backend=backend,
            threads=max(1, len(os.sched_getaffinity(0)) // workers),
            batch_clips=batch_clips,
            decoder=decoder,
            device=device,
        )
        with progress("Extracting clips", todo) as advance:
            run_units(pending, settings, workers=workers, on_clips=advance)
        counts = seal(store)
    return Extraction(
        store=store_path,
        rows=store.rows,
        ok=counts["ok"],
        failed=counts["failed"],
        resumed_rows=store.rows - todo,
        seconds=time.perf_counter() - started,
    )


def plan_videos(videos: Sequence[InputVideo], recipe: Recipe, progress: Progress) -> Plan:
    """`make_plan` with a progress display and as many threads as this process may use."""
    with progress("Indexing videos", len(videos)) as advance:
        return make_plan(videos, recipe, threads=len(os.sched_getaffinity(0)), on_video=lambda: advance(1))


def _store_for(plan: Plan, bundle: Bundle, store_path: str) -> Store:
    geometry = token_geometry(bundle, plan.recipe.tokens)
    if not os.path.exists(store_path):
        _require_space(store_path, len(plan.clips) * geometry.row_bytes(plan.recipe.dtype))
        return create_store(store_path, plan, geometry=geometry, encoder=encoder_identity(bundle))
    store = open_store(store_path, writable=True)
    if store.plan_id != plan.plan_id:
        raise UsageError(f"The videos are not those that {store_path} was planned with: {_difference(store, plan)}.")
    return store


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
    return f"{shown}{more}. Name the same videos to resume, or give a new --store"


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
