"""Verification: every way in which a store on disk can differ from what its markers promise."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError
from coldframe.store.files import Place, Written, file_bytes, place_of, sha256_file
from coldframe.store.int8_tokens import blank_int8_rows, usable_int8_rows
from coldframe.store.layout import ArraySpec, TokenArray
from coldframe.store.markers import MARKER_FOLDER, Marker, NotAMarker, marker_path, read_marker
from coldframe.store.root import PLAN_RECORD_KEY, read_plan_record, read_root
from coldframe.store.schema import Reason, Status
from coldframe.store.shards import read_chunks
from coldframe.store.store import Store
from coldframe.store.units import usable_rows
from coldframe.store.windows import leaking_rows

Kind = Literal["plan", "marker", "missing", "size", "checksum", "rows", "uncommitted", "absent", "unexpected"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: `plan` (what creation wrote has changed), `marker` (cannot be believed, or of another plan or
            recipe), `missing`, `size`, `checksum` (an object), `rows` (values contradict their status or the
            marker), `uncommitted` (data without a marker), `absent` (not extracted yet), `unexpected` (no
            such unit).
        unit: the unit, or None for the plan.
        object: key relative to the store's root; empty where no single object is meant.
        message: what was found.
    """

    kind: Kind
    unit: int | None
    object: str
    message: str


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What verification found. `planned == ok + failed + absent` always.

    Rows of a unit with a problem count as absent, because nothing about them can be relied on.
    """

    problems: tuple[Problem, ...]
    deep: bool
    planned: int
    ok: int
    failed: int
    absent: int
    damaged_units: tuple[int, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


def verify_store(
    path: str | PathLike[str], *, deep: bool = True, on_unit: Callable[[int, int], object] | None = None
) -> VerifyReport:
    """Check a store against its markers without changing it. Memory stays bounded by one inner chunk.

    Args:
        path: folder of the store, or `s3://bucket/prefix`.
        deep: also hash every object and look at every row. Otherwise only markers, presence and sizes are
            checked.
        on_unit: called as `on_unit(done, total)` after every unit.

    Raises:
        UsageError, StoreError: as `open_store`, except that an altered plan is reported, not raised.
    """
    folder = place_of(path)
    store = Store(place=folder, root=read_root(folder))
    problems = list(_plan_problems(store, deep))
    ok = failed = 0
    damaged = []
    absent: list[int] = []
    for unit in range(store.unit_count):
        marker, found = _check_unit(store, unit, deep)
        if marker is None and not found:
            absent.append(unit)
        elif found:
            problems += found
            if marker_path(folder, unit).exists():
                damaged.append(unit)
        elif marker is not None:
            ok += marker.counts["ok"]
            failed += marker.counts["failed"]
            problems += _unfinished(store, marker)
        if on_unit is not None:
            on_unit(unit + 1, store.unit_count)
    problems += [*_absent_problems(store, absent), *_unexpected(store)]
    return VerifyReport(
        problems=tuple(problems),
        deep=deep,
        planned=store.rows,
        ok=ok,
        failed=failed,
        absent=store.rows - ok - failed,
        damaged_units=tuple(damaged),
    )


def _plan_problems(store: Store, deep: bool) -> Iterator[Problem]:
    try:
        objects = read_plan_record(store.place, store.root)
    except NotAMarker as error:
        yield Problem(kind="plan", unit=None, object=PLAN_RECORD_KEY, message=str(error))
        return
    for key, written in objects.items():
        problem = _object_problem(store.place / key, written, deep)
        if problem is not None:
            yield Problem(kind="plan", unit=None, object=key, message=problem[1])
            return
    if deep:
        times, n_real = store.column("frame_pts_s"), store.column("n_real")
        edges = {
            name: store.annotation_column(name) for name in store.annotation_columns if name in ("start_s", "stop_s")
        }
        for row in leaking_rows(store.recipe, edges, times, n_real)[:1].tolist():
            message = f"row {row} shows a frame that its window {store.recipe.window} forbids"
            yield Problem(kind="plan", unit=None, object="frame_pts_s", message=message)


def _check_unit(store: Store, unit: int, deep: bool) -> tuple[Marker | None, list[Problem]]:
    """(marker if one can be believed, problems). Neither means that the unit was not extracted."""
    key = f"{MARKER_FOLDER}/{unit}.json"
    try:
        marker = read_marker(store.place, unit)
        store.check_marker(unit, marker)
    except FileNotFoundError:
        return None, _uncommitted(store, unit)
    except NotAMarker as error:
        return None, [Problem(kind="marker", unit=unit, object=key, message=f"the marker is not valid: {error}")]
    problems = []
    for name, written in marker.objects.items():
        problem = _object_problem(store.place / name, written, deep)
        if problem is not None:
            problems.append(Problem(kind=problem[0], unit=unit, object=name, message=problem[1]))
    if deep and not problems:
        try:
            texts = list(_row_problems(store, marker))
        except StoreError as error:  # a marker that vouches for an object which cannot be decoded
            texts = [str(error)]
        problems = [Problem(kind="rows", unit=unit, object="", message=text) for text in texts]
    return marker, problems


def _uncommitted(store: Store, unit: int) -> list[Problem]:
    keys = [spec.object_key(unit) for spec in store.unit_arrays.values()]
    present = [key for key in keys if file_bytes(store.place / key) is not None]
    if not present:
        return []
    message = f"{len(present)} of {len(keys)} objects exist but the unit has no marker, so it was never finished"
    return [Problem(kind="uncommitted", unit=unit, object=present[0], message=message)]


def _object_problem(path: Place, written: Written, deep: bool) -> tuple[Kind, str] | None:
    size = file_bytes(path)
    if size is None:
        return "missing", "the object is missing"
    if size != written.bytes:
        return "size", f"the object has {size} bytes instead of {written.bytes}"
    if not deep:
        return None
    try:
        sha256 = sha256_file(path).sha256
    except OSError as error:
        return "checksum", f"the object cannot be read: {error.strerror or error}"
    return None if sha256 == written.sha256 else ("checksum", "the object's sha256 is not the recorded one")


def _row_problems(store: Store, marker: Marker) -> Iterator[str]:
    """Contradictions between rows, status and marker, in a unit whose objects have the right digests."""
    values = {name: _whole(store, store.unit_arrays[name], marker) for name in ("status", "reason")}
    status, reason = values["status"], values["reason"]
    ok, failed = status == Status.OK, status == Status.FAILED
    yield from _at(marker, ~(ok | failed), "is neither ok nor failed")
    yield from _at(marker, failed & (reason == Reason.NONE), "is failed without a reason")
    yield from _at(marker, ok & (reason != Reason.NONE), "is ok and has a reason for failing")
    counts = {"ok": int(ok.sum()), "failed": int(failed.sum())}
    if counts != marker.counts:
        said = ", ".join(f"{count} {name}" for name, count in sorted(marker.counts.items()))
        yield f"{counts['failed']} failed and {counts['ok']} ok rows were found, the marker says {said}"
    listed = [failure.get("row") for failure in marker.failures]
    if listed != (np.flatnonzero(failed) + marker.start).tolist():
        yield "the marker's list of failures is not that of the failed rows"
    for name, array in store.token_arrays.items():
        usable, blank = _token_rows(store, array, marker)
        wrong = "not finite or all zero" if array.scale is None else "not what int8 with a scale can be, or all zero"
        yield from _at(marker, ok & ~usable, f"is ok, but its {name} is {wrong}")
        yield from _at(marker, failed & ~blank, f"is failed, but its {name} is not NaN")


def _whole(store: Store, spec: ArraySpec, marker: Marker) -> NDArray[Any]:
    (chunk,) = read_chunks(store.place / spec.object_key(marker.unit), spec, np.zeros(1, np.int64))
    return chunk[: marker.stop - marker.start]


def _token_rows(store: Store, array: TokenArray, marker: Marker) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows are usable, and which are NaN throughout; each (n,)."""
    rows, spec = marker.stop - marker.start, array.values
    numbers = np.arange(-(-rows // spec.chunk_rows), dtype=np.int64)
    parts = [read_chunks(store.place / part.object_key(marker.unit), part, numbers) for part in array.parts]
    usable, blank = [], []
    for values, *scales in zip(*parts, strict=True):
        fine = usable_int8_rows(values, *scales) if scales else usable_rows(values, zeros=spec.may_be_zero)
        usable.append(fine)
        blank.append(blank_int8_rows(values, *scales) if scales else _nan_rows(values, fine))
    return np.concatenate(usable)[:rows], np.concatenate(blank)[:rows]


def _nan_rows(values: NDArray[Any], usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    # only rows that are not usable can be NaN, and looking for NaN is the slow part
    pairs = zip(values, usable.tolist(), strict=True)
    return np.array([not fine and bool(np.isnan(row).all()) for row, fine in pairs], np.bool_)


def _at(marker: Marker, where: NDArray[np.bool_], what: str) -> Iterator[str]:
    rows = np.flatnonzero(where) + marker.start
    if len(rows):
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        yield f"row {rows[0]}{more} {what}"


def _absent_problems(store: Store, units: list[int]) -> Iterator[Problem]:
    """One problem for each run of neighbouring units that were not extracted."""
    breaks = [0, *[i for i in range(1, len(units)) if units[i] != units[i - 1] + 1], len(units)]
    for start, stop in pairwise(breaks):
        if start == stop:
            continue
        first, last = units[start], units[stop - 1]
        rows = f"rows {store.unit_range(first).start} to {store.unit_range(last).stop - 1}"
        span = f"unit {first} ({rows}) has" if first == last else f"units {first} to {last} ({rows}) have"
        yield Problem(kind="absent", unit=first, object="", message=f"{span} not been extracted")


def _unfinished(store: Store, marker: Marker) -> list[Problem]:
    """The rows that a unit lacks since the store grew."""
    stop = store.unit_range(marker.unit).stop
    if marker.stop == stop:
        return []
    message = f"rows {marker.stop} to {stop - 1} of unit {marker.unit} have not been extracted"
    return [Problem(kind="absent", unit=marker.unit, object="", message=message)]


def _unexpected(store: Store) -> Iterator[Problem]:
    """Markers and objects of units that the plan does not have."""
    folders = [(MARKER_FOLDER, ".json"), *[(f"{name}/c", "") for name in store.unit_arrays]]
    for folder, suffix in folders:
        place = store.place / folder
        names = sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []
        for name in names:
            stem = name.removesuffix(suffix)
            if name.endswith(suffix) and stem.isdecimal() and int(stem) >= store.unit_count:
                message = f"the plan has no unit {stem}; it ends with unit {store.unit_count - 1}"
                yield Problem(kind="unexpected", unit=int(stem), object=f"{folder}/{name}", message=message)
