"""Plans and unit results made of arithmetic, for tests that need a store but no video."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.store import (
    Clips,
    Plan,
    Reason,
    Recipe,
    Status,
    Store,
    TokenGeometry,
    UnitResult,
    Videos,
    create_store,
)
from coldframe.store.plan import Column
from coldframe.store.schema import StorageDtype, Tokens

ENCODER = {"name": "levjepa-nano", "untrained": True, "weights_sha256": "ab" * 32, "licence": "none"}


def small_recipe(tokens: Tokens = "cls", dtype: StorageDtype = "float16", frames: int = 4) -> Recipe:
    return Recipe(
        encoder="levjepa-nano",
        weights_sha256="ab" * 32,
        attention="block_causal",
        frames=frames,
        tokens=tokens,
        dtype=dtype,
    )


def small_geometry(tokens: Tokens = "cls", *, dim: int = 8, time: int = 4, side: int = 4) -> TokenGeometry:
    return TokenGeometry.for_tier(tokens, dim=dim, time=time, rows=side, cols=side)


def small_plan(
    clips_a_video: Sequence[int] = (20, 1, 0, 17, 12),
    *,
    tokens: Tokens = "cls",
    dtype: StorageDtype = "float16",
    frames: int = 4,
    sources: Sequence[str] | None = None,
    columns: dict[str, Column] | None = None,
) -> Plan:
    """A plan with `clips_a_video[v]` clips of video v; 0 is an unusable video, which gets one failed row."""
    videos = [v for v, count in enumerate(clips_a_video) for _ in range(max(count, 1))]
    order = [i for count in clips_a_video for i in range(max(count, 1))]
    good = np.array([clips_a_video[v] > 0 for v in videos])
    start = np.array(order, np.float64) * frames / 7.5
    frame = np.array(order)[:, None] * frames + np.arange(frames)
    clips = Clips(
        video=np.array(videos, np.int32),
        start_s=np.where(good, start, np.nan),
        end_s=np.where(good, start + frames / 7.5, np.nan),
        frame_index=np.where(good[:, None], frame, -1).astype(np.int32),
        frame_pts_s=np.where(good[:, None], frame / 7.5, np.nan),
        n_real=np.where(good, frames, 0).astype(np.int16),
        flags=np.where(good, 4, 0).astype(np.uint32),
        reason=np.where(good, Reason.NONE, Reason.NO_VIDEO).astype(np.uint8),
    )
    table = _videos(clips_a_video, frames, sources, columns or {})
    return Plan(recipe=small_recipe(tokens, dtype, frames), videos=table, clips=clips)


def _videos(
    clips_a_video: Sequence[int], frames: int, sources: Sequence[str] | None, columns: dict[str, Column]
) -> Videos:
    count = len(clips_a_video)
    usable = np.array(clips_a_video) > 0
    digests = [f"{v:064x}" for v in range(count)]
    return Videos(
        path=[f"/videos/kurz \\\\ {v} é.mp4" for v in range(count)],
        sha256=digests,
        source=list(sources or digests),
        duplicates=["[]"] * count,
        bytes=np.arange(count, dtype=np.int64) * 1000,
        codec=["h264" if fine else "" for fine in usable],
        width=np.full(count, 320, np.int32),
        height=np.full(count, 240, np.int32),
        rotation=np.zeros(count, np.int32),
        fps=np.where(usable, 7.5, np.nan),
        frames=np.array(clips_a_video, np.int32) * frames,
        duration_s=np.where(usable, np.array(clips_a_video) * frames / 7.5, np.nan),
        promised_s=np.full(count, np.nan),
        status=np.where(usable, Status.OK, Status.FAILED).astype(np.uint8),
        reason=np.where(usable, Reason.NONE, Reason.NO_VIDEO).astype(np.uint8),
        error=["" if fine else "only audio" for fine in usable],
        flags=np.zeros(count, np.uint32),
        columns=columns,
    )


def row_tokens(store: Store, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """[CLS] (n, dim) and patches that `small_result` gives for `rows`; a function of the row number."""
    g = store.geometry
    draws = np.empty((len(rows), g.dim * (1 + g.time * g.rows * g.cols)), np.float32)
    for place, row in enumerate(rows.tolist()):
        draws[place] = np.random.default_rng(row).standard_normal(draws.shape[1])
    patch = draws[:, g.dim :].reshape(len(rows), g.time, g.rows, g.cols, g.dim) if g.time else None
    return draws[:, : g.dim], patch


def small_result(store: Store, unit: int) -> UnitResult:
    """The result of `unit`; rows of videos that cannot be used are failed. The same whoever makes it."""
    rows = store.unit_range(unit)
    cls, patch = row_tokens(store, np.arange(rows.start, rows.stop))
    usable = store.column("n_real")[rows.start : rows.stop] > 0
    return UnitResult(
        rows=rows,
        status=np.where(usable, Status.OK, Status.FAILED).astype(np.uint8),
        reason=np.where(usable, Reason.NONE, Reason.NO_VIDEO).astype(np.uint8),
        cls=cls,
        patch=patch,
        failures=[{"row": row, "error": "only audio"} for row, fine in zip(rows, usable, strict=True) if not fine],
        seconds={"encode": 0.5},
        provenance={"runtime": "none"},
    )


def annotated_store(folder: Path, *, start_s: float = 100.0) -> Store:
    """A store of three clips that annotations made, without tokens; the last frame of row 0 is at 0.4 s."""
    plan = small_plan([3])
    recipe = replace(plan.recipe, hop_frames=plan.recipe.frames, window="before_start", anticipation_s=0.5)
    columns: dict[str, Column] = {"id": ["a", "b", "c"], "start_s": np.full(3, start_s), "stop_s": np.full(3, 200.0)}
    planned = replace(plan, recipe=recipe, clips=replace(plan.clips, annotations=columns))
    return create_store(folder / "annotated.zarr", planned, geometry=small_geometry(), encoder=ENCODER)
