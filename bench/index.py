"""Index: building it beside reading its vectors, and a search beside one product with all of them.

No exact search of one query can be faster than reading every vector once, and numpy's product of the matrix with the
query does just that. FAISS keeps what the search needs besides: the best rows, their numbers, and the rows left out.
"""

import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.bench.report import Result, Target, interleave
from coldframe.bench.synthetic import empty_store
from coldframe.store import Status, Store, TokenGeometry, UnitResult, nearest, open_store, write_unit
from coldframe.store.index import Index, open_index
from coldframe.store.index_build import build_index
from coldframe.store.vectors import unit_vectors

GEOMETRY = TokenGeometry.for_tier("cls", dim=1024, time=16, rows=14, cols=14)
ANSWERS = 10


def measure(quick: bool) -> tuple[list[Result], list[Target]]:
    """Rates of building and of searching, of both kinds of index."""
    rows, runs = (4_096, 3) if quick else (32_768, 7)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        store = _filled(Path(folder) / "bench.zarr", rows)
        vectors = unit_vectors(store, store.ok_rows(), "cls")
        fresh = (Path(folder) / f"{number}.index" for number in count())
        build, read = interleave(
            [lambda: build_index(store, next(fresh)), lambda: unit_vectors(store, store.ok_rows(), "cls")], runs=runs
        )
        built = Result(
            name=f"build exact, {rows} rows of 1,024",
            value=rows / build.median,
            unit="rows/s",
            spread=build.spread,
            reference="read them",
            ratio=read.median / build.median,
        )
        exact = open_index(store, build_index(store).folder)
        ivf = open_index(store, build_index(store, Path(folder) / "ivf.index", kind="ivf").folder)
        searched = _searches(store, vectors, exact, ivf, runs)
    floor, peer = (next(one.ratio or 0.0 for one in searched if one.name == name) for name in ("exact", "ivf"))
    return [built, *searched], [
        Target(name="exact search / one product with all vectors", value=floor, wants=0.8),
        Target(name="ivf search / one product with all vectors", value=peer, wants=2.0),
    ]


def _filled(path: Path, rows: int) -> Store:
    """[CLS] vectors in clusters, as those of videos are: 64 directions, each row beside one of them."""
    generator = np.random.default_rng(0)
    store = empty_store(path, rows, GEOMETRY, "cls")
    centres = generator.standard_normal((64, GEOMETRY.dim))
    for unit in range(store.unit_count):
        own = store.unit_range(unit)
        near = centres[generator.integers(0, 64, len(own))] + 0.7 * generator.standard_normal((len(own), GEOMETRY.dim))
        write_unit(
            store,
            unit,
            UnitResult(
                rows=own,
                status=np.full(len(own), Status.OK, np.uint8),
                reason=np.zeros(len(own), np.uint8),
                cls=near.astype(np.float16),
            ),
        )
    return open_store(path)


def _searches(store: Store, vectors: NDArray[np.float32], exact: Index, ivf: Index, runs: int) -> list[Result]:
    """One query at a time, its own row left out, after checking that the exact answers are those of `nearest`."""
    queries = np.random.default_rng(1).permutation(store.rows)[:32]
    found, expected = exact.nearest(queries, ANSWERS, False), nearest(queries, store, ANSWERS, False)
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.rows, right.rows)
    turns: Iterator[int] = (int(queries[number % len(queries)]) for number in count())

    def ask(index: Index) -> None:
        query = next(turns)
        index.search(vectors[query][None], ANSWERS, without=np.array([query]))

    timed = interleave(
        [lambda: ask(exact), lambda: ask(ivf), lambda: vectors @ vectors[next(turns)]], runs=20 * runs, warmups=8
    )
    product = timed[2].median
    names = ("exact", "ivf", "product")
    return [
        Result(
            name=name,
            value=1 / timing.median,
            unit="queries/s",
            spread=timing.spread,
            reference="" if name == "product" else "product",
            ratio=None if name == "product" else product / timing.median,
        )
        for name, timing in zip(names, timed, strict=True)
    ]
