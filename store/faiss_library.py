"""FAISS: the one place that imports it. Indexes of inner products of unit vectors, with row numbers as ids."""

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import MissingDependency, StoreError
from coldframe.store.text import path_to_text

IndexKind = Literal["exact", "ivf"]
INDEX_KINDS: tuple[IndexKind, ...] = get_args(IndexKind)

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_TRAINED_A_LIST = 64  # FAISS asks for 39 at least, and takes no more than 256


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingDependency("FAISS (the retrieval index)", "cpu") from error
    return faiss


def version() -> str:
    return str(_faiss().__version__)


def lists_for(rows: int) -> int:
    """Inverted lists for so many vectors: FAISS's rule of thumb, 4 sqrt(n), as far as they can be trained."""
    return max(1, min(int(4 * rows**0.5), rows // _TRAINED_A_LIST))


def training_rows(lists: int) -> int:
    return lists * _TRAINED_A_LIST


class FaissIndex:
    """Vectors in FAISS. `exact` compares with all of them; `ivf` with those of the `nprobe` lists that lie nearest.

    Attributes:
        kind: of these two.
    """

    def __init__(self, raw: Any, kind: IndexKind) -> None:
        self._raw = raw
        self.kind = kind

    @classmethod
    def exact(cls, dim: int) -> "FaissIndex":
        faiss = _faiss()
        return cls(faiss.IndexIDMap2(faiss.IndexFlatIP(dim)), "exact")

    @classmethod
    def ivf(cls, sample: Floats, lists: int) -> "FaissIndex":
        """An empty index whose `lists` are the clusters of `sample` (n, dim), found from a fixed seed."""
        faiss = _faiss()
        dim = sample.shape[1]
        raw = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, lists, faiss.METRIC_INNER_PRODUCT)
        raw.cp.seed, raw.cp.min_points_per_centroid, raw.cp.spherical = 0, 1, True
        raw.train(sample)
        return cls(raw, "ivf")

    @classmethod
    def read(cls, path: Path, kind: IndexKind) -> "FaissIndex":
        """The index in a file: `exact` in memory, `ivf` mapped, so that a search reads the lists that it visits.

        Raises:
            StoreError: FAISS cannot read it.
        """
        faiss = _faiss()
        try:
            raw = faiss.read_index(str(path), faiss.IO_FLAG_MMAP if kind == "ivf" else 0)
        except RuntimeError as error:
            raise StoreError(f"FAISS cannot read {path_to_text(path)} ({str(error).splitlines()[0]}).") from error
        return cls(raw, kind)

    def write(self, path: Path) -> None:
        _faiss().write_index(self._raw, str(path))

    def __len__(self) -> int:
        return int(self._raw.ntotal)

    @property
    def lists(self) -> int:
        """Inverted lists; 1 where every vector is compared."""
        return int(self._raw.nlist) if self.kind == "ivf" else 1

    def add(self, ids: Ids, vectors: Floats) -> None:
        self._raw.add_with_ids(np.ascontiguousarray(vectors), ids)

    def search(self, vectors: Floats, k: int, *, nprobe: int, without: Ids | None = None) -> tuple[Floats, Ids]:
        """The `k` best of each vector (n, dim): inner products and ids, (n, k) each; -1 where there are no more.

        Args:
            nprobe: lists to visit; `exact` has no use for it.
            without: ids that are no answers.
        """
        faiss = _faiss()
        options: dict[str, Any] = {}
        if without is not None and len(without):
            barred = faiss.IDSelectorBatch(without)  # named, for FAISS keeps no reference to it
            options["sel"] = faiss.IDSelectorNot(barred)
        if self.kind == "ivf":
            parameters = faiss.SearchParametersIVF(nprobe=nprobe, **options)
        else:
            parameters = faiss.SearchParameters(**options)
        products, ids = self._raw.search(np.ascontiguousarray(vectors), k, params=parameters)
        return products, ids
