"""Rows: checking the row numbers that a caller names, and gathering their tokens from whole chunks."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.store.files import Place, map_places
from coldframe.store.int8_tokens import dequantise
from coldframe.store.layout import ArraySpec, TokenArray
from coldframe.store.object_path import ObjectPath
from coldframe.store.shards import read_chunks, read_chunks_into

RowNumbers = Sequence[int] | NDArray[np.integer[Any]]


def as_rows(rows: RowNumbers, total: int) -> NDArray[np.int64]:
    """`rows` as int64 (n,), in the order given.

    Raises:
        UsageError: not whole numbers in one dimension, or one is outside [0, total). Negative numbers do not
            count from the end, because a -1 that means "none" elsewhere must not become the last row here.
    """
    array = np.asarray(rows)
    if array.ndim == 1 and array.dtype == object and all(isinstance(row, int) for row in array):
        raise UsageError(f"Row {max(array, key=abs)} does not exist; allowed is 0 to {total - 1}.")
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

    def copy(unit: int, local: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        numbers, bounds = _chunks(spec, local)
        for chunk, span in zip(read_chunks(root / spec.object_key(unit), spec, numbers), bounds, strict=True):
            if spec.chunk_rows == 1:
                for place in places[span].tolist():
                    into[place] = chunk[0]  # a plain copy; indexing by an array would make one more
            else:
                into[places[span]] = chunk[local[span] % spec.chunk_rows]

    _visit(root, spec, rows, copy)


def gather_tokens(root: Place, array: TokenArray, rows: NDArray[np.int64], into: NDArray[np.floating[Any]]) -> None:
    """`gather`, with int8 tokens multiplied by their scales."""
    values, scale = array.values, array.scale
    if scale is None:
        gather(root, values, rows, into)
        return

    def multiply(unit: int, local: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        numbers, bounds = _chunks(values, local)
        pairs = zip(
            *(read_chunks(root / spec.object_key(unit), spec, numbers) for spec in (values, scale)), strict=True
        )
        for (chunk, scales), span in zip(pairs, bounds, strict=True):
            for place, at in zip(places[span].tolist(), (local[span] % values.chunk_rows).tolist(), strict=True):
                dequantise(chunk[at], scales[at], into[place])

    _visit(root, values, rows, multiply)


def scatter(root: Place, spec: ArraySpec, rows: NDArray[np.int64], rooms: Sequence[NDArray[Any]]) -> None:
    """`gather` into one contiguous array of the stored dtype a row, wherever each lies.

    A chunk of one row in a local file is read straight into its place: fresh memory for a copy between costs more
    than the reading.
    """
    if spec.chunk_rows > 1 or isinstance(root, ObjectPath):
        made = np.empty((len(rows), *spec.row_shape), spec.numpy_dtype)
        gather(root, spec, rows, made)
        for room, values in zip(rooms, made, strict=True):
            room[...] = values
        return

    def fill(unit: int, local: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        read_chunks_into(root / spec.object_key(unit), spec, local, [rooms[place] for place in places.tolist()])

    _visit(root, spec, rows, fill)


Take = Callable[[int, NDArray[np.int64], NDArray[np.int64]], None]


def _visit(root: Place, spec: ArraySpec, rows: NDArray[np.int64], take: Take) -> None:
    """Call `take(unit, rows inside the unit, ascending, their places in rows)` for every unit that `rows` are in."""
    order = np.argsort(rows, kind="stable")
    visited = rows[order]
    units, starts = np.unique(visited // spec.object_rows, return_index=True)
    bounds = [*starts.tolist(), len(visited)]

    def visit(position: int) -> None:
        unit, span = int(units[position]), slice(bounds[position], bounds[position + 1])
        take(unit, visited[span] - unit * spec.object_rows, order[span])

    map_places(visit, range(len(units)), root)


def _chunks(spec: ArraySpec, local: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[slice]]:
    """Inner chunks that hold the rows `local`, ascending, and which of these lie in each."""
    numbers, starts = np.unique(local // spec.chunk_rows, return_index=True)
    return numbers, [slice(*pair) for pair in pairwise([*starts.tolist(), len(local)])]
