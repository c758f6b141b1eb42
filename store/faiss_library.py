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
# how far a product may be off that FAISS sums in float32: (dim / 8 lanes + 3) x 2^-24 for unit vectors of 1,280 values
_PRODUCT_ERROR = 1e-5
_MORE = 16  # candidates beyond k, so that most searches need no second
_BLOCK_BYTES = 64 << 20  # of the vectors of all candidates of some queries


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
        raw.set_direct_map_type(faiss.DirectMap.Hashtable)  # it finds a vector by its id
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
        """Raises OSError. FAISS's own files are not used: a full disk when it closes one is printed, and no error."""
        faiss = _faiss()
        with path.open("wb") as file:
            faiss.write_index(self._raw, faiss.PyCallbackIOWriter(file.write))

    def __len__(self) -> int:
        return int(self._raw.ntotal)

    @property
    def lists(self) -> int:
        """Inverted lists; 1 where every vector is compared."""
        return int(self._raw.nlist) if self.kind == "ivf" else 1

    def add(self, ids: Ids, vectors: Floats) -> None:
        self._raw.add_with_ids(np.ascontiguousarray(vectors), ids)

    def search(self, vectors: Floats, k: int, *, nprobe: int, without: Ids | None = None) -> list[tuple[Ids, Floats]]:
        """Of each unit vector (n, dim) the `k` best: ids (m,), m <= k, and cosines, descending, equal ones by id.

        FAISS sums products in float32, in an order that depends on where a vector lies. Its candidates are therefore
        ranked anew by products in float64, rounded to float32, as `coldframe.store.nearest` does, and there are as many
        of them as its error could bring among the best.

        Args:
            nprobe: lists to visit, and more where those hold fewer than `k` answers; `exact` has no use for it.
            without: ids that are no answers.
        """
        answers = []
        asked = min(k + _MORE, len(self))
        step = max(1, _BLOCK_BYTES // (asked * 4 * vectors.shape[1]))
        for start in range(0, len(vectors), step):
            block = np.ascontiguousarray(vectors[start : start + step])
            for vector, *found in zip(block, *self._candidates(block, asked, nprobe, without), strict=True):
                answers.append(self._ranked(vector, k, nprobe, without, *found))
        return answers

    def _ranked(
        self, vector: Floats, k: int, nprobe: int, without: Ids | None, products: Floats, ids: Ids, own: Floats
    ) -> tuple[Ids, Floats]:
        """The `k` best of the candidates of one vector, after fetching more of them as long as these may not do."""
        while True:
            asked, found = len(ids), ids >= 0
            if asked < len(self) and found.all() and products[-1] + 2 * _PRODUCT_ERROR >= products[k - 1]:
                asked = min(2 * asked, len(self))
            elif found.sum() < k and nprobe < self.lists:
                nprobe = min(2 * nprobe, self.lists)
            else:
                break
            products, ids, own = (one[0] for one in self._candidates(vector[None], asked, nprobe, without))
        ids, exact = ids[found], own[found].astype(np.float64) @ vector.astype(np.float64)
        cosines = np.clip(exact, -1, 1).astype(np.float32)
        best = np.lexsort((ids, -cosines))[:k]
        return ids[best], cosines[best]

    def _candidates(self, vectors: Floats, k: int, nprobe: int, without: Ids | None) -> tuple[Floats, Ids, Floats]:
        """FAISS's products and ids (n, k), -1 where there are no more, and the vectors (n, k, dim) of these."""
        faiss = _faiss()
        options: dict[str, Any] = {}
        if without is not None and len(without):
            barred = faiss.IDSelectorBatch(without)  # named, for FAISS keeps no reference to it
            options["sel"] = faiss.IDSelectorNot(barred)
        if self.kind == "ivf":
            parameters = faiss.SearchParametersIVF(nprobe=nprobe, **options)
        else:
            parameters = faiss.SearchParameters(**options)
        products, ids = self._raw.search(vectors, k, params=parameters)
        own = np.zeros((*ids.shape, vectors.shape[1]), np.float32)
        if (ids >= 0).any():
            own[ids >= 0] = self._raw.reconstruct_batch(ids[ids >= 0])
        return products, ids, own
