"""Vectors: one direction a clip, for searching."""

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError, UsageError
from coldframe.store.real_frames import real_means
from coldframe.store.store import Store

VectorKind = Literal["cls", "mean"]
VECTOR_KINDS: tuple[VectorKind, ...] = get_args(VectorKind)

_BATCH_BYTES = 128 << 20


def require_kept(store: Store, kind: VectorKind) -> None:
    """Raise UsageError unless `store` keeps what vectors of `kind` are made of."""
    if kind == "cls" and not store.geometry.has_cls:
        raise UsageError(f"{store.name} keeps no [CLS] tokens (tokens: {store.recipe.tokens}). Use features 'mean'.")
    if kind == "mean" and not store.geometry.keeps_patches:
        raise UsageError(f"{store.name} keeps no patch tokens (tokens: {store.recipe.tokens}). Use features 'cls'.")


def unit_vectors(store: Store, rows: NDArray[np.int64], kind: VectorKind) -> NDArray[np.float32]:
    """(n, dim) float32 vectors of length 1 of ok `rows`, in their order.

    `cls` is the [CLS] token; `mean` the mean of the patch tokens of real frames, summed in float64.

    Raises:
        StoreError: a row that is not ok, or whose vector is zero or not finite and so has no direction.
    """
    if kind == "cls":
        vectors = store.cls(rows)
    else:
        n_real, flags = store.column("n_real")[rows], store.column("flags")[rows]
        vectors = real_means(store.patch(rows), n_real, flags, store.recipe.frames)
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    bad = ~np.isfinite(lengths) | (lengths == 0)
    if bad.any():
        what = "[CLS] vector" if kind == "cls" else "mean patch token"
        raise StoreError(
            f"The {what} of row {rows[np.flatnonzero(bad)[0]]} is zero or not finite, so it has no direction. "
            "Run `coldframe verify` on the store."
        )
    unit: NDArray[np.float32] = (vectors / lengths[:, None]).astype(np.float32)
    return unit


def vector_batches(
    store: Store, rows: NDArray[np.int64], kind: VectorKind, most_rows: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """(rows, `unit_vectors` of them), at most `most_rows` and a bounded number of bytes at a time."""
    row_bytes = 4 * store.geometry.dim if kind == "cls" else store.geometry.row_bytes("float32")
    step = max(1, min(most_rows, _BATCH_BYTES // row_bytes))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        yield part, unit_vectors(store, part, kind)
