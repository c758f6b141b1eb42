"""Features: rows of a token store as one matrix that a linear head can read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError, UsageError
from coldframe.store.real_frames import real_means
from coldframe.store.recipe import Recipe
from coldframe.store.schema import TokenGeometry

FeatureKind = Literal["cls", "mean", "baseline_colour", "baseline_motion"]
FEATURE_KINDS: tuple[FeatureKind, ...] = get_args(FeatureKind)

_BATCH_BYTES = 128 << 20


class TokenStore(Protocol):
    """What probes read of `coldframe.store.open_store(path)`."""

    @property
    def name(self) -> str: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def recipe_id(self) -> str: ...
    @property
    def encoder(self) -> Mapping[str, Any]: ...
    @property
    def geometry(self) -> TokenGeometry: ...
    @property
    def video_columns(self) -> Sequence[str]: ...
    def video_column(self, name: str) -> Any: ...
    def column(self, name: str) -> NDArray[Any]: ...
    def ok_rows(self) -> NDArray[np.int64]: ...
    def cls(self, rows: NDArray[np.int64]) -> NDArray[np.float32]: ...
    def patch(self, rows: NDArray[np.int64]) -> NDArray[np.float32]: ...
    def baseline(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]: ...


def read_features(
    store: TokenStore,
    rows: NDArray[np.int64],
    kind: FeatureKind,
    on_rows: Callable[[int], object] = lambda count: None,
) -> NDArray[np.float32]:
    """(n, dim) float32 features of ok rows, in the order of `rows`, read a bounded number of bytes at a time.

    Args:
        store: where the tokens are.
        rows: (n,) rows with status ok, n >= 1.
        kind: `cls` is the stored [CLS] token; for a per-frame encoder, the mean of the vectors of real frames. `mean`
            is the mean of the patch tokens of real frames; frames that only repeat the last real one (`n_real`) do not
            enter. A token that spans several frames enters if one of them is real. `baseline_colour` and
            `baseline_motion` are no tokens: what colour and motion of the same frames say without any encoder.
        on_rows: called with the number of rows after each read.

    Raises:
        UsageError: the store does not keep what `kind` needs.
        StoreError: a row that is marked ok holds inf or nan, or no real frame.
    """
    if kind == "mean" and not store.geometry.keeps_patches:
        raise UsageError(
            f"features 'mean' need patch tokens; this store keeps {store.recipe.tokens!r} only. Use features 'cls'."
        )
    if kind == "cls" and not store.geometry.has_cls:
        raise UsageError(
            f"features 'cls' need a [CLS] token; this store keeps {store.recipe.tokens!r} without one. "
            "Use features 'mean'."
        )
    baseline = kind.removeprefix("baseline_") if kind.startswith("baseline_") else None
    row_bytes = 4 * store.geometry.dim if kind == "cls" else store.geometry.row_bytes("float32")
    batch = max(1, _BATCH_BYTES // row_bytes)
    blocks = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        if baseline is not None:
            block = store.baseline(baseline, part)
        else:
            block = store.cls(part) if kind == "cls" else _patch_mean(store, part)
        bad = ~np.isfinite(block).all(axis=1)
        if bad.any():
            raise StoreError(
                f"row {part[bad][0]} is marked ok but its {kind} features hold inf or nan. "
                f"Run: coldframe verify {store.name}"
            )
        blocks.append(block)
        on_rows(len(part))
    return np.concatenate(blocks)


def read_varied_features(
    store: TokenStore,
    rows: NDArray[np.int64],
    kind: FeatureKind,
    on_rows: Callable[[int], object] = lambda count: None,
) -> NDArray[np.float32]:
    """`read_features` for a readout, which needs rows that differ: of equal ones it would report the draw of its ties.

    Raises:
        UsageError: the store does not keep what `kind` needs.
        StoreError: as `read_features`, or all of two or more rows are equal.
    """
    matrix = read_features(store, rows, kind, on_rows)
    if len(matrix) > 1 and (matrix == matrix[0]).all():
        raise StoreError(
            f"all {len(matrix)} rows have the same {kind} features, so nothing can be read from them: the encoder "
            "says the same of every clip. Use other --features, or look at the videos and the encoder."
        )
    return matrix


def _patch_mean(store: TokenStore, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(n, dim) mean over real tokens, accumulated in float64."""
    patch = store.patch(rows)
    n_real = store.column("n_real")[rows]
    if n_real.min() < 1:
        raise StoreError(f"row {rows[n_real < 1][0]} is marked ok but has no real frame.")
    return real_means(patch, n_real, store.column("flags")[rows], store.recipe.frames)
