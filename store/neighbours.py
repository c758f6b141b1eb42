"""Neighbours: exact cosine search over the ok rows of a store, read as it goes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.store.rows import RowNumbers, as_rows
from coldframe.store.store import Store
from coldframe.store.vectors import VectorKind, require_kept, unit_vectors, vector_batches

_QUERY_BLOCK = 1024
_GALLERY_BLOCK = 4096  # 1024 x 4096 float64 scores are 32 MB


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbours:
    """Answers to one query, best first; fewer than were asked for where the store has no more.

    Attributes:
        query: row that was asked about.
        rows: (m,) int64 rows of the answers, m <= k.
        cosine: (m,) float32 in [-1, 1], descending.
    """

    query: int
    rows: NDArray[np.int64]
    cosine: NDArray[np.float32]


def nearest(
    query_rows: RowNumbers, store: Store, k: int, exclude_same_source: bool = True, features: VectorKind = "cls"
) -> list[Neighbours]:
    """The `k` rows whose vectors have the largest cosine with each query row, one entry a query, in query order.

    A query is never its own answer. By default neither is any row of the same source, because windows of one
    video are near-copies of each other and would only find themselves. Equal cosines are ordered by row
    number, so the answer does not depend on the batch sizes inside.

    Vectors are normalised in float32; the products are summed in float64 and rounded to float32, so that
    equal vectors get equal cosines wherever they lie in a block.

    Raises:
        UsageError: k below 1, a row that does not exist, or vectors that the store does not keep.
        StoreError: a query row that is not ok, or a vector that is zero or not finite.
    """
    if k < 1:
        raise UsageError(f"k is {k}; allowed is 1 or more.")
    require_kept(store, features)
    queries = as_rows(query_rows, store.rows)
    groups = source_numbers(store) if exclude_same_source else np.arange(store.rows)
    answers = []
    for start in range(0, len(queries), _QUERY_BLOCK):
        answers += _search(queries[start : start + _QUERY_BLOCK], store, k, groups, features)
    return answers


def source_numbers(store: Store) -> NDArray[np.int64]:
    """(rows,) a number for the source of each row."""
    sources = store.video_column("source")
    _, numbers = np.unique(np.array(sources, dtype=object), return_inverse=True)
    groups: NDArray[np.int64] = numbers.reshape(-1)[store.column("video")]
    return groups


def _search(
    queries: NDArray[np.int64], store: Store, k: int, groups: NDArray[np.int64], features: VectorKind
) -> list[Neighbours]:
    """Answers to one block of queries; rows of the same group as a query are left out, itself among them."""
    vectors = unit_vectors(store, queries, features).astype(np.float64)
    best_rows = [np.empty(0, np.int64) for _ in queries]
    best = [np.empty(0, np.float32) for _ in queries]
    for rows, gallery in vector_batches(store, store.ok_rows(), features, _GALLERY_BLOCK):
        cosines = np.clip(vectors @ gallery.astype(np.float64).T, -1, 1)
        scores = cosines.astype(np.float32)
        scores[groups[queries][:, None] == groups[rows]] = -np.inf
        # rows come in ascending order, so a later row that only equals the k-th best loses the tie
        floor = np.array([values[-1] if len(values) == k else -np.inf for values in best], np.float32)
        for position in np.flatnonzero((scores > floor[:, None]).any(axis=1)).tolist():
            found = np.flatnonzero(scores[position] > floor[position])
            merged = np.concatenate([best[position], scores[position, found]])
            order = np.argsort(-merged, kind="stable")[:k]
            best[position] = merged[order]
            best_rows[position] = np.concatenate([best_rows[position], rows[found]])[order]
    return [
        Neighbours(query=query, rows=rows, cosine=cosine)
        for query, rows, cosine in zip(queries.tolist(), best_rows, best, strict=True)
    ]
