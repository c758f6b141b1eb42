"""Scale: how long a resume takes to find what is left of a million rows, in a few large units and in many small ones.

`unit_rows` makes at most 256 units of small rows, but rows of the `full` tier of a large encoder come in 32 to a unit,
which makes 31,250 units of a million. So that a million rows of 200 TB can be tried, the store of small units begins
with a few thousand rows of small tokens, which come in 32 to a unit too, and grows.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from coldframe.bench.synthetic import empty_store, synthetic_plan
from coldframe.store import (
    Status,
    Store,
    TokenGeometry,
    UnitResult,
    grow_store,
    open_store,
    pending_units,
    write_unit,
)
from coldframe.store.markers import marker_path, write_sealed_json

SMALL_UNIT_ROWS = 32
_GEOMETRY = TokenGeometry.for_tier("full", dim=8, time=1, rows=1, cols=1)


def resume_seconds(path: Path, rows: int, *, small_units: bool) -> tuple[float, int]:
    """Seconds to open a store of `rows` rows, all committed but those of the last unit, and to find that unit.

    Args:
        path: a new store.
        rows: more than 8,192.
        small_units: 32 rows a unit, in place of what `unit_rows` makes of so many small rows.

    Returns:
        Seconds, and how many units there are.
    """
    begun = SMALL_UNIT_ROWS * 256 if small_units else rows
    store = empty_store(path, begun, _GEOMETRY)
    if small_units:
        store = grow_store(store, synthetic_plan(rows))
    _commit_all_but_last(store)
    started = time.perf_counter()
    assert pending_units(open_store(path, writable=True)) == [store.unit_count - 1]
    return time.perf_counter() - started, store.unit_count


def _commit_all_but_last(store: Store) -> None:
    """One unit is written and the others are links to it, each with a marker of its own, which is what is read."""
    first = write_unit(store, 0, _ones(store))
    for unit in range(1, store.unit_count - 1):
        objects = {}
        for spec in store.unit_arrays.values():
            source, target = store.path / spec.object_key(0), store.path / spec.object_key(unit)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
            objects[spec.object_key(unit)] = first.objects[spec.object_key(0)]
        rows = store.unit_range(unit)
        marker = replace(first, unit=unit, start=rows.start, stop=rows.stop, objects=objects)
        write_sealed_json(marker_path(store.path, unit), marker.to_dict())


def _ones(store: Store) -> UnitResult:
    rows = store.unit_range(0)
    tokens = {
        name: np.ones((len(rows), *spec.row_shape), np.float16)
        for name, spec in store.unit_arrays.items()
        if spec.sharded
    }
    return UnitResult(
        rows=rows,
        status=np.full(len(rows), Status.OK, np.uint8),
        reason=np.zeros(len(rows), np.uint8),
        cls=tokens["cls"],
        patch=tokens["patch"],
    )
