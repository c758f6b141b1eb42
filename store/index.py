"""Index: a FAISS index beside a store, which answers for exactly the rows that the store has now, or not at all."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import InputNotFound, StoreError, UsageError
from coldframe.store.faiss_library import FaissIndex, IndexKind
from coldframe.store.files import Written, place_of, sha256_file
from coldframe.store.markers import NotAMarker, read_sealed_json
from coldframe.store.neighbours import Neighbours, source_numbers
from coldframe.store.rows import RowNumbers, as_rows
from coldframe.store.store import Store
from coldframe.store.text import path_to_text
from coldframe.store.vectors import VectorKind, require_kept, unit_vectors

INDEX_FORMAT = 2
IDENTITY_FILE = "index.json"
VECTORS_FILE = "index.faiss"


@dataclass(frozen=True, kw_only=True)
class Recall:
    """How many of the exact answers an index finds, measured when it was built.

    Attributes:
        k: answers a query.
        queries: rows that were asked about, spread evenly over the store.
        recall: mean share of the exact `k` answers that were found.
    """

    k: int
    queries: int
    recall: float


@dataclass(frozen=True, kw_only=True)
class IndexIdentity:
    """What an index was made of and how.

    Attributes:
        recipe_id: of the store's rows.
        features: `cls` or `mean`.
        kind: `exact` or `ivf`.
        rows: vectors in it: the ok rows of its units.
        units: digest of the stored vectors, by unit.
        lists, nprobe: inverted lists, and how many of them a search visits; 1 and 1 for `exact`.
        recall: None for `exact`, which is compared with nothing.
        file: size and digest of the FAISS file.
        faiss: version that wrote it.
    """

    recipe_id: str
    features: VectorKind
    kind: IndexKind
    rows: int
    units: Mapping[int, str]
    lists: int
    nprobe: int
    recall: Recall | None
    file: Written
    faiss: str

    def to_dict(self) -> dict[str, Any]:
        units = {str(unit): digest for unit, digest in self.units.items()}
        return {"format_version": INDEX_FORMAT, **asdict(self), "units": units}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "IndexIdentity":
        """Raises KeyError, TypeError or ValueError for what `to_dict` would not have written."""
        given = dict(fields)
        if given.pop("format_version") != INDEX_FORMAT:
            raise ValueError("another format version")
        recall = given.pop("recall")
        return cls(
            **{
                **given,
                "units": {int(unit): digest for unit, digest in given["units"].items()},
                "file": Written(**given["file"]),
                "recall": None if recall is None else Recall(**recall),
            }
        )


def index_folder(store: Store, folder: str | os.PathLike[str] | None = None) -> Path:
    """Where a store's index lies: at `folder`, or `NAME.index` beside it.

    Raises:
        UsageError: the folder is empty text, not UTF-8 or in an object store, or the store is and none is named.
    """
    beside = isinstance(store.place, Path) and store.place.with_name(f"{store.place.name}.index")
    place = beside if folder is None else place_of(folder)
    if not isinstance(place, Path):
        raise UsageError(
            f"The index of {store.name} cannot lie in an object store, as FAISS reads local files. Name a local folder "
            "(--out of `coldframe index`, --index of `coldframe search`)."
        )
    try:
        os.fsencode(place).decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"FAISS takes only paths in UTF-8, and {path_to_text(place)} is none. Name another folder for the index "
            "(--out of `coldframe index`, --index of `coldframe search`)."
        ) from error
    return place


def unit_digests(store: Store, features: VectorKind) -> dict[int, str]:
    """Digest of what vectors of `features` are made of, by committed unit, from the markers; nothing is hashed."""
    name = "cls" if features == "cls" else "patch"
    parts = [store.unit_arrays["status"], *store.token_arrays[name].parts]
    digests = {}
    for unit in store.committed_units():
        objects = store.committed_marker(unit).objects
        digests[unit] = "".join(objects[spec.object_key(unit)].sha256[:16] for spec in parts)
    return digests


def read_identity(folder: Path) -> IndexIdentity:
    """What `folder` says of itself.

    Raises:
        InputNotFound: no index is there.
        StoreError: what is there is damaged, or of another format version.
    """
    name = path_to_text(folder)
    try:
        return IndexIdentity.from_dict(read_sealed_json(folder / IDENTITY_FILE))
    except FileNotFoundError as error:
        raise InputNotFound(f"There is no index at {name}. Make one with: coldframe index STORE") from error
    except (NotAMarker, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"The index {name} is damaged ({error}). Remove it and run `coldframe index` again."
        ) from error


@dataclass(frozen=True, kw_only=True, eq=False)
class Index:
    """An open index. Open one with `open_index`, make one with `coldframe.store.index_build.build_index`."""

    store: Store
    identity: IndexIdentity
    faiss: FaissIndex

    def nearest(self, query_rows: RowNumbers, k: int, exclude_same_source: bool = True) -> list[Neighbours]:
        """The `k` rows whose vectors have the largest cosine with each query row's; as `coldframe.store.nearest`.

        Args:
            query_rows: ok rows of the store.
            exclude_same_source: leave out rows of the query's own source, which are near-copies of it; else the
                query alone.

        Raises:
            UsageError: k below 1, or a row that does not exist.
            StoreError: a query row that is not ok.
        """
        if k < 1:
            raise UsageError(f"k is {k}; allowed is 1 or more.")
        queries = as_rows(query_rows, self.store.rows)
        vectors = unit_vectors(self.store, queries, self.identity.features)
        groups = source_numbers(self.store) if exclude_same_source else np.arange(self.store.rows)
        answers: dict[int, Neighbours] = {}
        for group in np.unique(groups[queries]):  # questions that leave out the same rows share FAISS's threads
            same = queries[groups[queries] == group]
            found = self.search(vectors[groups[queries] == group], k, without=np.flatnonzero(groups == group))
            for query, (rows, cosine) in zip(same.tolist(), found, strict=True):
                answers[query] = Neighbours(query=query, rows=rows, cosine=cosine)
        return [answers[query] for query in queries.tolist()]

    def search(
        self, vectors: NDArray[np.float32], k: int, without: NDArray[np.int64] | None = None
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Of each unit vector (n, dim): rows (m,), m <= k, and cosines, descending, equal ones in row order.

        Args:
            without: rows that are no answers.
        """
        return self.faiss.search(vectors, k, nprobe=self.identity.nprobe, without=without)


def open_index(store: Store, folder: str | os.PathLike[str] | None = None) -> Index:
    """The index of `store`, after checking that it is of these rows.

    Args:
        folder: where it is; None for `index_folder`.

    Raises:
        InputNotFound: there is none.
        StoreError: it is damaged, or the store's rows have changed since it was built.
        UsageError: it is of another recipe.
        MissingDependency: FAISS is not installed.
    """
    place = index_folder(store, folder)
    identity = read_identity(place)
    name = path_to_text(place)
    if identity.recipe_id != store.recipe_id:
        raise UsageError(
            f"The index {name} is of recipe {identity.recipe_id[:12]}, and {store.name} of {store.recipe_id[:12]}. "
            "Run `coldframe index` on this store."
        )
    require_kept(store, identity.features)
    present = unit_digests(store, identity.features)
    changed = [unit for unit, digest in identity.units.items() if present.get(unit) != digest]
    missing = len(present.keys() - identity.units.keys())
    if changed or missing:
        raise StoreError(
            f"The index {name} is not of the rows that {store.name} has now ({len(changed)} units changed or gone, "
            f"{missing} new). Run `coldframe index` again, which brings it up to date."
        )
    file = place / VECTORS_FILE
    if not file.is_file() or sha256_file(file) != identity.file:
        raise StoreError(f"The index {name} is damaged ({VECTORS_FILE}). Remove it and run `coldframe index` again.")
    return Index(store=store, identity=identity, faiss=FaissIndex.read(file, identity.kind))
