"""Rows: checking the row numbers that a caller names, and gathering their tokens from whole chunks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.store.files import Place, map_places
from coldframe.store.layout import ArraySpec
from coldframe.store.shards import read_chunks

RowNumbers = Sequence[int] | NDArray[np.integer[Any]]


def as_rows(rows: RowNumbers, total: int) -> NDArray[np.int64]:
    """`rows` as int64 (n,), in the order given.

    Raises:
        UsageError: not whole numbers in one dimension, or one is outside [0, total). Negative numbers do not
            count from the end, because a -1 that means "none" elsewhere must not become the last row here.
    """
    array = np.asarray(rows)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UsageError(
            f"Rows are given as {array.dtype} with shape {array.shape}; allowed is a list or a "
            "one-dimensional array of whole numbers. For a mask, pass np.flatnonzero(mask)."
        )
    outside = array[(array < 0) | (array >= total)]
    if outside.size:
        raise UsageError(f"Row {outside[0]} does not exist; allowed is 0 to {total - 1}.")
    return array.astype(np.int64)


def gather(root: Place, spec: ArraySpec, rows: NDArray[np.int64], into: NDArray[Any]) -> None:
    """Write the stored values of `rows` (n,) to `into` (n, *row shape), in the order of `rows`.

    Rows are visited object by object and every inner chunk is read and checked once, whatever the order of
    `rows`.
    """
    order = np.argsort(rows, kind="stable")
    visited = rows[order]
    units, starts = np.unique(visited // spec.object_rows, return_index=True)
    bounds = [*starts.tolist(), len(visited)]

    def gather_unit(position: int) -> None:
        unit = int(units[position])
        places = order[bounds[position] : bounds[position + 1]]
        local = visited[bounds[position] : bounds[position + 1]] - unit * spec.object_rows
        _gather_object(root / spec.object_key(unit), spec, local, into, places)

    map_places(gather_unit, range(len(units)), root)


def _gather_object(
    path: Place, spec: ArraySpec, local: NDArray[np.int64], into: NDArray[Any], places: NDArray[np.int64]
) -> None:
    """Copy the object's rows `local` (ascending) to the entries `places` of `into`."""
    numbers, starts = np.unique(local // spec.chunk_rows, return_index=True)
    bounds = [*starts.tolist(), len(local)]
    for position, chunk in enumerate(read_chunks(path, spec, numbers)):
        span = slice(bounds[position], bounds[position + 1])
        if spec.chunk_rows == 1:
            for place in places[span].tolist():
                into[place] = chunk[0]  # a plain copy; indexing by an array would make one more
        else:
            into[places[span]] = chunk[local[span] % spec.chunk_rows]
