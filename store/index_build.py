"""Index build: a store's vectors go into an index, or only those that it lacks, and its recall is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import InputNotFound, StoreError, UsageError
from coldframe.store.faiss_library import FaissIndex, IndexKind, lists_for, training_rows, version
from coldframe.store.files import disk_errors, fsync_path, sha256_file
from coldframe.store.index import (
    IDENTITY_FILE,
    VECTORS_FILE,
    IndexIdentity,
    Recall,
    index_folder,
    read_identity,
    unit_digests,
)
from coldframe.store.markers import write_sealed_json
from coldframe.store.neighbours import nearest, source_numbers
from coldframe.store.store import Store
from coldframe.store.text import path_to_text
from coldframe.store.vectors import VectorKind, require_kept, vector_batches
from coldframe.workplace import workplace

RECALL_K, RECALL_QUERIES, RECALL_WANTED = 10, 200, 0.95

_FILES = {IDENTITY_FILE, VECTORS_FILE}
_BATCH_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class Built:
    """What `build_index` did.

    Attributes:
        folder: where the index is.
        identity: of the index.
        added_rows: vectors that went into it now; 0 where it was up to date.
    """

    folder: Path
    identity: IndexIdentity
    added_rows: int


def build_index(
    store: Store,
    folder: str | PathLike[str] | None = None,
    *,
    features: VectorKind = "cls",
    kind: IndexKind = "exact",
    on_rows: Callable[[int], object] = lambda count: None,
) -> Built:
    """Index the ok rows of `store`, at `folder` or beside it; one that is there is brought up to date.

    Units that were committed since are added to an `exact` index; if any other changed, and for `ivf`, whose lists
    would no longer fit, all is built anew. The index appears whole or not at all.

    Args:
        kind: `exact` compares a query with every vector: 4 bytes a value in memory, and right by construction. `ivf`
            visits the lists that lie nearest, as many as give a recall@10 of 0.95 against exact search on 200 rows of
            the store; the recall that was found is kept in the index.
        on_rows: called with the number of rows just read.

    Raises:
        UsageError: the store keeps no such vectors or has no ok row; `folder` holds something else.
        StoreError: a row without direction.
        MissingDependency: FAISS is not installed.
    """
    require_kept(store, features)
    place = index_folder(store, folder)
    if isinstance(store.place, Path) and store.place.resolve() in place.resolve().parents:
        raise UsageError(f"{path_to_text(place)} is inside of {store.name}. Name a folder outside of the store.")
    store.refresh()
    digests, ok = unit_digests(store, features), store.ok_rows()
    if not len(ok):
        raise UsageError(f"{store.name} has no row that is ok.")
    earlier = _earlier(place, store, features, kind)
    if earlier is not None and earlier.units == digests:
        return Built(folder=place, identity=earlier, added_rows=0)
    if earlier is not None and kind == "exact" and earlier.units.items() <= digests.items():
        faiss = FaissIndex.read(place / VECTORS_FILE, kind)
        new = ok[~np.isin(ok // store.unit_rows, list(earlier.units))]
    else:
        faiss, new = _empty(store, ok, features, kind), ok
    for rows, vectors in vector_batches(store, new, features, _BATCH_ROWS):
        faiss.add(rows, vectors)
        on_rows(len(rows))
    nprobe, recall = _tune(faiss, store, ok, features)
    with disk_errors("write", place):
        place.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors("write", place), workplace(place, prefix=f"{place.name}.partial-") as partial:
        faiss.write(partial / VECTORS_FILE)
        fsync_path(partial / VECTORS_FILE)
        identity = IndexIdentity(
            recipe_id=store.recipe_id,
            features=features,
            kind=kind,
            rows=len(ok),
            units=digests,
            lists=faiss.lists,
            nprobe=nprobe,
            recall=recall,
            file=sha256_file(partial / VECTORS_FILE),
            faiss=version(),
        )
        write_sealed_json(partial / IDENTITY_FILE, identity.to_dict())
        _put_in_place(partial, place)
    return Built(folder=place, identity=identity, added_rows=len(new))


def _earlier(place: Path, store: Store, features: VectorKind, kind: IndexKind) -> IndexIdentity | None:
    """The index that is there, if this one would only continue it.

    Raises:
        UsageError: something else than an index is there.
    """
    if place.exists() and not (place.is_dir() and {entry.name for entry in place.iterdir()} <= _FILES):
        raise UsageError(f"{path_to_text(place)} exists and is no index. Name another folder.")
    try:
        identity = read_identity(place)
    except (InputNotFound, StoreError):  # nothing, or damaged and so to be built anew
        return None
    same = (identity.recipe_id, identity.features, identity.kind) == (store.recipe_id, features, kind)
    file = place / VECTORS_FILE
    return identity if same and file.is_file() and sha256_file(file) == identity.file else None


def _put_in_place(partial: Path, place: Path) -> None:
    """Let `partial` take the place of what is there; the identity goes first, so that no mixture is ever believed."""
    if place.exists():
        (place / IDENTITY_FILE).unlink(missing_ok=True)
        (partial / VECTORS_FILE).replace(place / VECTORS_FILE)
        (partial / IDENTITY_FILE).replace(place / IDENTITY_FILE)
        fsync_path(place)
    else:
        partial.rename(place)
    fsync_path(place.parent)


def _all_vectors(store: Store, rows: NDArray[np.int64], features: VectorKind) -> NDArray[np.float32]:
    return np.concatenate([vectors for _, vectors in vector_batches(store, rows, features, _BATCH_ROWS)])


def _spread(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` of `rows` at even distances; all of them if there are no more."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))]


def _empty(store: Store, ok: NDArray[np.int64], features: VectorKind, kind: IndexKind) -> FaissIndex:
    if kind == "exact":
        return FaissIndex.exact(store.geometry.dim)
    lists = lists_for(len(ok))
    return FaissIndex.ivf(_all_vectors(store, _spread(ok, training_rows(lists)), features), lists)


def _tune(faiss: FaissIndex, store: Store, ok: NDArray[np.int64], features: VectorKind) -> tuple[int, Recall | None]:
    """Lists to visit, the fewest of 1, 2, 4, ... that find enough of the exact answers, and their recall.

    Asked with and without answers of the query's own source, and the lower recall counts: clips of one video lie in one
    list, which then holds all answers of the one question and none of the other.
    """
    if faiss.kind == "exact":
        return 1, None
    queries = _spread(ok, RECALL_QUERIES)
    vectors = _all_vectors(store, queries, features)
    asked = [
        (groups, [one.rows for one in nearest(queries, store, RECALL_K, exclude, features)])
        for groups, exclude in ((source_numbers(store), True), (np.arange(store.rows), False))
    ]
    asked = [(groups, exact) for groups, exact in asked if any(map(len, exact))]
    nprobe = 1
    while asked:
        recall = min(_recall(faiss, queries, vectors, groups, exact, nprobe) for groups, exact in asked)
        if recall >= RECALL_WANTED or nprobe >= faiss.lists:
            return nprobe, Recall(k=RECALL_K, queries=len(queries), recall=recall)
        nprobe = min(2 * nprobe, faiss.lists)
    return 1, None  # one row alone, which has no neighbour to find


def _recall(
    faiss: FaissIndex,
    queries: NDArray[np.int64],
    vectors: NDArray[np.float32],
    groups: NDArray[np.int64],
    exact: list[NDArray[np.int64]],
    nprobe: int,
) -> float:
    """Share of the `exact` answers that are found, where rows of the query's group are none."""
    hits = 0
    for query, vector, right in zip(queries, vectors, exact, strict=True):
        without = np.flatnonzero(groups == groups[query])
        ((found, _),) = faiss.search(vector[None], RECALL_K, nprobe=nprobe, without=without)
        hits += len(np.intersect1d(found, right))
    return hits / sum(map(len, exact))
