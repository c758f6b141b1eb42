"""Canaries: a few rows decoded and encoded once more, and compared with what the store holds.

Checksums show that bytes are those that were written. Canaries show that they are what the videos, this decoder and
this encoder give today.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import RecipeMismatch, StoreError, UsageError, VideoError
from coldframe.export import Bundle
from coldframe.export.parity import BUDGETS, cosine
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.serve.control import frame_order, window_name
from coldframe.serve.runtime import Backend, Runtime, open_runtime
from coldframe.serve.tiers import keep_tier
from coldframe.store import Store
from coldframe.store.int8_tokens import Int8Tokens
from coldframe.store.real_frames import first_real
from coldframe.store.text import text_to_path


@dataclass(frozen=True, kw_only=True)
class Canary:
    """One row, encoded again.

    Attributes:
        row: row number.
        path: its video.
        cls_cosine, patch_cosine_worst: cosine of stored and new tokens; None where there is nothing to compare. Where
            tokens are stored in int8, the new ones are quantised too.
        max_abs: largest absolute difference; None likewise.
        problem: empty if the row is confirmed, else what is wrong or why it could not be encoded again.
    """

    row: int
    path: str
    cls_cosine: float | None = None
    patch_cosine_worst: float | None = None
    max_abs: float | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_canaries(
    store: Store,
    bundle: Bundle,
    count: int,
    *,
    backend: Backend = "onnxruntime",
    on_row: Callable[[int], object] | None = None,
) -> list[Canary]:
    """Encode `count` ok rows again, evenly spread from the first to the last, and compare them with the store.

    Raises:
        RecipeMismatch: `bundle` is not the encoder that the store was made with.
        UsageError: no row is ok.
    """
    require_same_encoder(store, bundle)
    ok = store.ok_rows()
    if not len(ok):
        raise UsageError(f"{store.name} has no row that is ok, so there is nothing to encode again.")
    rows = np.unique(ok[np.linspace(0, len(ok) - 1, min(count, len(ok))).round().astype(int)])
    runtime = open_runtime(bundle, backend=backend, precision=store.recipe.precision)
    canaries = []
    for row, clip in _clips(store, rows):
        try:
            canaries.append(_check(store, runtime, row, clip))
        except StoreError as error:  # the row's own object; the others may well be sound
            path = str(store.video_column("path")[store.column("video")[row]])
            canaries.append(Canary(row=row, path=path, problem=str(error)))
        if on_row:
            on_row(1)
    return canaries


def require_same_encoder(store: Store, bundle: Bundle) -> None:
    """Raise `RecipeMismatch` unless `bundle` is the encoder that the store was made with."""
    here = {"encoder": bundle.name, "weights_sha256": bundle.weights_sha256, "attention": bundle.attention}
    there = {name: getattr(store.recipe, name) for name in here}
    if here != there:
        raise RecipeMismatch(f"the store {store.name}", here, there)


def _clips(store: Store, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.uint8] | VideoError]]:
    videos, frames, cache = store.column("video"), store.column("frame_index"), VideoCache()
    paths, digests = store.video_column("path"), store.video_column("sha256")
    for video, numbers in groupby(rows, key=lambda row: int(videos[row])):
        mine = np.fromiter(numbers, np.int64)
        clips = VideoClips(path=text_to_path(paths[video]), sha256=digests[video], rows=mine, frame_index=frames[mine])
        yield from read_clips(clips, cache, image_size=store.recipe.image_size, threads=1)


def _check(store: Store, runtime: Runtime, row: int, clip: NDArray[np.uint8] | VideoError) -> Canary:
    path = str(store.video_column("path")[store.column("video")[row]])
    if isinstance(clip, VideoError):
        return Canary(row=row, path=path, problem=f"cannot be encoded again: {clip}")
    digest = store.video_column("sha256")[store.column("video")[row]]
    window = window_name(digest, store.column("frame_index")[row])
    n_real = store.column("n_real")[[row]]
    first = first_real(n_real, store.column("flags")[[row]], store.recipe.frames)
    order = frame_order(store.recipe.control, int(n_real[0]), len(clip), window, first=int(first[0]))
    kept, dim = keep_tier(runtime(clip[order][None]), store.recipe.tokens, n_real, first), store.geometry.dim
    cls = [] if kept.cls is None else [(store.cls([row]), kept.cls)]
    cls += [] if kept.frame_cls is None else [(store.frame_cls([row]), kept.frame_cls)]
    patch = [] if kept.patch is None else [(store.patch([row]), _as_stored(store, kept.patch))]
    patch += [(store.patch([row], layer=layer), _as_stored(store, kept.layers[layer])) for layer in store.recipe.layers]
    budget = BUDGETS[store.recipe.precision]
    worst = [
        (min(float(cosine(a.reshape(-1, dim), b.reshape(-1, dim)).min()) for a, b in pairs), least) if pairs else None
        for pairs, least in ((cls, budget.cls_cosine), (patch, budget.patch_cosine_worst))
    ]
    over = [f"{found[0]:.6f} < {found[1]}" for found in worst if found is not None and not found[0] >= found[1]]
    return Canary(
        row=row,
        path=path,
        cls_cosine=None if worst[0] is None else worst[0][0],
        patch_cosine_worst=None if worst[1] is None else worst[1][0],
        max_abs=max(float(np.abs(stored - new).max()) for stored, new in cls + patch),
        problem=f"differs from what the video gives now: cosine {', '.join(over)}" if over else "",
    )


def _as_stored(store: Store, patch: NDArray[np.float32]) -> NDArray[np.float32]:
    """`patch` with what int8 takes from it, which is far more than a parity budget allows."""
    return Int8Tokens.of(patch).dequantised() if store.recipe.dtype == "int8" else patch
