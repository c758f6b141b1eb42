"""Kept rows: what a unit that is written anew takes over from the objects that it replaces."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.store.int8_tokens import Reconstruction
from coldframe.store.markers import Marker
from coldframe.store.rows import gather
from coldframe.store.schema import Reason, Status
from coldframe.store.store import Store


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptRows:
    """What was taken over.

    Attributes:
        rows: (k,) int64 row numbers, ascending.
        failures: the marker's entries of those that are failed.
        reconstruction: what the marker says of int8 tokens, which are those of the ok rows: all of them are kept.
    """

    rows: NDArray[np.int64]
    failures: list[dict[str, Any]] = field(default_factory=list)
    reconstruction: Mapping[str, Reconstruction] = field(default_factory=dict)


def rows_to_retry(store: Store, reasons: Collection[Reason]) -> NDArray[np.int64]:
    """Failed rows with one of `reasons` that have a clip to extract, ascending.

    A video that could not be used when it was planned has no clips; its row cannot be tried again.
    """
    failed = store.column("status") == Status.FAILED
    wanted = np.isin(store.column("reason"), [reason.value for reason in reasons])
    return np.flatnonzero(failed & wanted & (store.column("n_real") > 0))


def rows_to_extract(store: Store, unit: int, retry: Collection[Reason] = ()) -> NDArray[np.int64]:
    """Rows of `unit` that are not taken over by `keep_rows`, ascending: all of a unit that is not committed."""
    rows = np.array(store.unit_range(unit))
    marker = store.trusted_marker(unit)
    if marker is None:
        return rows
    new = rows[rows >= marker.stop]
    return new if not retry else np.concatenate([_retried(store, marker, retry), new])


def keep_rows(
    store: Store,
    unit: int,
    *,
    retry: Collection[Reason],
    status: NDArray[np.uint8],
    reason: NDArray[np.uint8],
    tokens: Mapping[str, NDArray[Any]],
) -> KeptRows:
    """Fill a unit's arrays with what is committed of it, bit by bit.

    Nothing is kept of a unit that is not committed. Of one that an earlier plan ended in, the rows of that plan are
    kept; of any, failed rows for one of the reasons in `retry` are not.

    Args:
        store: the store.
        unit: the unit that is about to be written.
        retry: reasons whose rows are to be extracted again.
        status, reason, tokens: the unit's arrays, (n, ...), as they are stored; rows that are not kept are left alone.

    Raises:
        StoreError: an object of the unit is damaged.
    """
    marker = store.trusted_marker(unit)
    if marker is None:
        return KeptRows(rows=np.empty(0, np.int64))
    kept = np.setdiff1d(np.arange(marker.start, marker.stop), _retried(store, marker, retry))
    at = kept - marker.start
    for name, into in (("status", status), ("reason", reason)):
        into[at] = _read(store, name, kept)
    whole = at[status[at] == Status.OK]
    for name, values in tokens.items():
        stored = np.empty((len(whole), *values.shape[1:]), values.dtype)
        gather(store.place, store.unit_arrays[name], whole + marker.start, stored)
        values[whole] = stored
    there = set(kept.tolist())
    failures = [failure for failure in marker.failures if failure["row"] in there]
    return KeptRows(rows=kept, failures=failures, reconstruction=marker.reconstruction)


def _retried(store: Store, marker: Marker, retry: Collection[Reason]) -> NDArray[np.int64]:
    rows = np.arange(marker.start, marker.stop)
    failed = _read(store, "status", rows) == Status.FAILED
    again: NDArray[np.bool_] = failed & np.isin(_read(store, "reason", rows), [reason.value for reason in retry])
    return rows[again]


def _read(store: Store, name: str, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    values = np.empty(len(rows), np.uint8)
    gather(store.place, store.unit_arrays[name], rows, values)
    return values
