"""Units: writing one whole, committing it last, and telling what is still to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError, UsageError
from coldframe.store.files import Written, disk_errors, write_pieces
from coldframe.store.int8_tokens import Int8Tokens, Reconstruction
from coldframe.store.layout import ArraySpec
from coldframe.store.lease import LEASE_FILE, require_not_lost
from coldframe.store.markers import MARKER_FOLDER, STAGED, Marker, marker_path, staged_marker_path, write_sealed_json
from coldframe.store.object_path import ObjectPath
from coldframe.store.recipe import canonical_json
from coldframe.store.replace import finish_replacement, take_back_commit
from coldframe.store.schema import Reason, Status, layer_array, scale_array
from coldframe.store.shards import Fill, encode_object
from coldframe.store.store import Store

PatchTokens = NDArray[np.floating[Any]] | Int8Tokens

# by bytes of a number: its pattern as a signed and as an unsigned integer, and the pattern of infinity
_PATTERNS: Mapping[int, tuple[type[np.signedinteger[Any]], type[np.unsignedinteger[Any]], int]] = {
    2: (np.int16, np.uint16, 0x7C00),
    4: (np.int32, np.uint32, 0x7F800000),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitResult:
    """What a worker made of one unit. `n` is the number of its rows.

    Attributes:
        rows: the unit's rows, `store.unit_range(unit)`.
        status: (n,) uint8, `Status.OK` or `Status.FAILED`; nothing may be absent.
        reason: (n,) uint8 `Reason`; not `NONE` where failed, `NONE` where ok.
        cls: (n, dim) float32, or float16 if that is what is stored; anything where failed. None exactly where
            the store keeps none.
        patch: (n, time, row, col, dim), types as `cls`; None exactly where the tier keeps no patches. For a store in
            int8 float32, which is quantised when it is written, or what was quantised before.
        layers: the same of each further block that the recipe names, by its number.
        baselines: (n, length) of each baseline that the store keeps, by the name of its array.
        frame_cls: (n, time, dim), types as `cls`; None exactly where the store keeps no vector a frame.
        failures: one entry a failed row, `{"row", "video", "path", "reason", "error"}`; a failed row without
            one gets one with an empty error text.
        seconds: time spent, by stage.
        provenance: JSON values that may differ without changing the meaning: runtime, versions, host, ...
    """

    rows: range
    status: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    cls: NDArray[np.floating[Any]] | None = None
    patch: PatchTokens | None = None
    layers: Mapping[int, PatchTokens] = field(default_factory=dict)
    baselines: Mapping[str, NDArray[np.floating[Any]]] = field(default_factory=dict)
    frame_cls: NDArray[np.floating[Any]] | None = None
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def patches(self) -> dict[str, PatchTokens]:
        """Patch tokens, by the name that they are stored under."""
        layers = {layer_array(layer): values for layer, values in self.layers.items()}
        return layers if self.patch is None else {"patch": self.patch, **layers}

    @property
    def tokens(self) -> dict[str, NDArray[Any]]:
        """Arrays of tokens and their scales, then of baselines, by the name that they are stored under."""
        named = {"frame_cls": self.frame_cls, "cls": self.cls, **self.baselines}
        return {
            **stored_arrays(self.patches),
            **{name: values for name, values in named.items() if values is not None},
        }


def stored_arrays(patches: Mapping[str, PatchTokens]) -> dict[str, NDArray[Any]]:
    """The arrays that `patches`, by name, are stored in, by theirs."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, values in patches.items():
        if isinstance(values, Int8Tokens):
            arrays |= {name: values.values, scale_array(name): values.scale}
        else:
            arrays[name] = values
    return arrays


def write_unit(store: Store, unit: int, result: UnitResult) -> Marker:
    """Write all objects of `unit`, read each back, then commit it by its marker, which is returned.

    Until the marker is there the unit is not committed, whatever lies on disk. A unit that is committed already
    stays so until its replacement is whole (`coldframe.store.replace`). Failed rows are stored as NaN, in int8 as
    zeros with scales of NaN. An ok row whose tokens are not finite, or all zero, after the cast to the storage type
    becomes a failed row with reason `NON_FINITE`.

    Raises:
        UsageError: the store was opened for reading only.
        StoreError: the result does not fit the unit, or the disk did not keep what was written.
        ColdframeError: the disk refuses.
    """
    if not store.writable:
        raise UsageError("This store was opened for reading. Open it with open_store(path, writable=True).")
    result = _quantised(store, result)
    _check_result(store, unit, result)
    tokens = _CheckedTokens(result)
    with disk_errors(f"write unit {unit} to", store.place):
        finish_replacement(store.place, unit)  # or what a killed writer decided would come back later, over this
        replaces = store.trusted_marker(unit) is not None
        if not replaces:
            take_back_commit(store.place, unit)
        objects = {}
        for name, fill in tokens.fills(store).items():
            spec = store.unit_arrays[name]
            objects[spec.object_key(unit)] = _write_object(store, spec, unit, fill, STAGED if replaces else "")
        if isinstance(store.place, ObjectPath):
            require_not_lost(store.place / MARKER_FOLDER / LEASE_FILE)
        marker = _marker(store, unit, result, tokens, objects)
        if replaces:
            write_sealed_json(staged_marker_path(store.place, unit), marker.to_dict())
            finish_replacement(store.place, unit)
        else:
            write_sealed_json(marker_path(store.place, unit), marker.to_dict())
    store.refresh()
    return marker


def committed_units(store: Store) -> list[int]:
    """Units whose marker fits and whose objects all have the right size, ascending. Nothing is hashed."""
    store.refresh()  # so that what is read next agrees with the answer
    return store.committed_units()


def pending_units(store: Store) -> list[int]:
    """Units still to be written, ascending: both data without a marker and a marker without data count.

    Where the store grew, so does a unit that its earlier plan ended in: some of its rows are new.
    """
    store.refresh()  # so that what is read next agrees with the answer
    return store.unfinished_units()


def discard_units(store: Store, units: Iterable[int]) -> None:
    """Remove the markers of `units`, so that the next extraction writes them again."""
    if not store.writable:
        raise UsageError("This store was opened for reading. Open it with open_store(path, writable=True).")
    for unit in units:
        with disk_errors(f"discard unit {unit} of", store.place):
            take_back_commit(store.place, unit)
    store.refresh()


class _CheckedTokens:
    """A result's values on their way to disk. The first write of tokens decides which rows stay ok."""

    def __init__(self, result: UnitResult) -> None:
        self.result = result
        self.status = result.status.astype(np.uint8)  # copies: rows may turn failed
        self.reason = result.reason.astype(np.uint8)
        self.turned: list[int] = []  # local numbers of rows that came as ok and turned failed

    def fills(self, store: Store) -> dict[str, Fill]:
        """How to fill each array, in the order in which they must be written.

        A row that fails in one array is NaN in all of them. So every array but the first is checked ahead;
        the first is checked while it is written, so that `patch`, often the only large one, is cast once. What is wrong
        with int8 tokens is in their scales.
        """
        tokens = self.result.tokens
        specs = store.unit_arrays
        for name, values in list(tokens.items())[1:]:
            if specs[name].numpy_dtype != np.int8:
                self._check_ahead(specs[name], values)
        fills: dict[str, Fill] = {
            name: partial(self._fill_tokens, specs[name], values) for name, values in tokens.items()
        }
        fills["status"] = lambda start, stop, out: np.copyto(out, self.status[start:stop])
        fills["reason"] = lambda start, stop, out: np.copyto(out, self.reason[start:stop])
        return fills

    def _check_ahead(self, spec: ArraySpec, values: NDArray[Any]) -> None:
        buffer = np.empty((1, *values.shape[1:]), spec.numpy_dtype)
        for row in range(len(values)):
            self._refuse(spec, row, _cast(values[row : row + 1], buffer))

    def _fill_tokens(self, spec: ArraySpec, values: NDArray[Any], start: int, stop: int, out: NDArray[Any]) -> None:
        _cast(values[start:stop], out)
        if spec.numpy_dtype != np.int8:
            self._refuse(spec, start, out)
        out[self.status[start:stop] == Status.FAILED] = spec.fill

    def _refuse(self, spec: ArraySpec, start: int, stored: NDArray[Any]) -> None:
        """Turn ok rows among `stored`, whose first is `start`, into failed ones where they are unusable."""
        ok = self.status[start : start + len(stored)] == Status.OK
        for local in (np.flatnonzero(ok & ~usable_rows(stored, zeros=spec.may_be_zero)) + start).tolist():
            self.status[local] = Status.FAILED
            self.reason[local] = Reason.NON_FINITE
            self.turned.append(local)


def _quantised(store: Store, result: UnitResult) -> UnitResult:
    """`result` with the patch tokens that a store in int8 takes, where they are not that already."""
    if store.recipe.dtype != "int8":
        return result

    def quantise(values: PatchTokens) -> PatchTokens:
        if isinstance(values, Int8Tokens) or values.dtype != np.float32:
            return values
        return Int8Tokens.of(values.astype(np.float32, copy=False))

    layers = {layer: quantise(values) for layer, values in result.layers.items()}
    return replace(result, patch=None if result.patch is None else quantise(result.patch), layers=layers)


def _cast(values: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name right after
        out[...] = values
    return out


def usable_rows(stored: NDArray[Any], *, zeros: bool = False) -> NDArray[np.bool_]:
    """(n,) whether a row of `stored` (n, ...), float16 or float32, is finite and, unless `zeros`, not all zero.

    Looks at the bits, several times faster than `isfinite` on float16 and without a temporary array. The
    pattern of a number grows with its magnitude, infinity is the smallest that is not finite, and the sign is
    the top bit: so the largest signed pattern belongs to a positive number, the largest unsigned one to a
    negative number.
    """
    signed, unsigned, infinity = _PATTERNS[stored.dtype.itemsize]
    sign = np.iinfo(signed).max + 1
    usable = np.empty(len(stored), np.bool_)
    for place, row in enumerate(stored):
        bits: NDArray[Any] = np.ascontiguousarray(row).reshape(-1)
        peak = max(int(bits.view(signed).max()), int(bits.view(unsigned).max()) - sign)
        usable[place] = (peak >= 0 if zeros else peak > 0) and peak < infinity
    return usable


def _write_object(store: Store, spec: ArraySpec, unit: int, fill: Fill, suffix: str) -> Written:
    rows = len(store.unit_range(unit))
    # folders are not synced: a rename that a power cut undoes leaves an object missing, and the unit pending
    return write_pieces(store.place / (spec.object_key(unit) + suffix), encode_object(spec, rows, fill))


def _check_result(store: Store, unit: int, result: UnitResult) -> None:
    rows = store.unit_range(unit)
    if result.rows != rows:
        raise StoreError(f"The result is for rows {result.rows}, but unit {unit} has {rows}.")
    expected = {name: (len(rows), *spec.row_shape) for name, spec in store.unit_arrays.items()}
    given = {**result.tokens, "status": result.status, "reason": result.reason}
    found = {name: value.shape for name, value in given.items()}
    if found != expected:
        raise StoreError(f"The result for unit {unit} has the shapes {found}; the store takes {expected}.")
    for name, values in result.tokens.items():
        stored = store.unit_arrays[name].dtype
        if values.dtype not in (np.dtype(np.float32), np.dtype(stored)):
            raise StoreError(f"{name} is {values.dtype}; allowed are float32 and {stored}.")
    _check_accounts(rows, result)
    try:
        canonical_json([dict(result.seconds), dict(result.provenance), result.failures])
    except (TypeError, ValueError) as error:
        raise StoreError(f"seconds, provenance or failures cannot be written as JSON: {error}.") from error


def _check_accounts(rows: range, result: UnitResult) -> None:
    """Every row is ok or failed, and says why if it failed."""
    ok, failed = result.status == Status.OK, result.status == Status.FAILED
    if not (ok | failed).all():
        row = rows[int(np.flatnonzero(~(ok | failed))[0])]
        raise StoreError(f"Row {row} is neither ok nor failed. A unit is written only when every row is accounted for.")
    known = np.isin(result.reason, [reason.value for reason in Reason])
    wrong = (failed != (result.reason != Reason.NONE)) | ~known
    if wrong.any():
        local = int(np.flatnonzero(wrong)[0])
        status = Status(int(result.status[local])).name
        raise StoreError(
            f"Row {rows[local]} has status {status} and reason {result.reason[local]}. A failed row needs a "
            "reason code other than 0, an ok row has reason 0."
        )
    listed = [failure.get("row") for failure in result.failures]
    allowed = {rows[local] for local in np.flatnonzero(failed).tolist()}
    if len(set(listed)) != len(listed) or not allowed.issuperset(listed):
        raise StoreError(f"failures lists the rows {listed}; allowed is each failed row once.")


def _marker(
    store: Store, unit: int, result: UnitResult, tokens: _CheckedTokens, objects: Mapping[str, Written]
) -> Marker:
    failed = int(np.count_nonzero(tokens.status == Status.FAILED))
    return Marker(
        unit=unit,
        start=result.rows.start,
        stop=result.rows.stop,
        recipe_id=store.recipe_id,
        plan_id=store.plan_id,
        objects=objects,
        counts={"ok": len(result.rows) - failed, "failed": failed},
        failures=_failures(store, result, tokens),
        seconds=result.seconds,
        provenance=result.provenance,
        reconstruction=_reconstruction(result, tokens.status == Status.OK),
    )


def _reconstruction(result: UnitResult, ok: NDArray[np.bool_]) -> dict[str, Reconstruction]:
    measured = {
        name: values.reconstruction(ok) for name, values in result.patches.items() if isinstance(values, Int8Tokens)
    }
    return {name: found for name, found in measured.items() if found is not None}


def _failures(store: Store, result: UnitResult, tokens: _CheckedTokens) -> list[dict[str, Any]]:
    """One entry a failed row, in row order. All but the error text follows from the store."""
    failed = np.flatnonzero(tokens.status == Status.FAILED).tolist()
    if not failed:
        return []
    given = {failure["row"]: failure for failure in result.failures}
    error = f"inf, nan or only zeros after the cast to {store.recipe.dtype}"
    given |= {result.rows[local]: {"error": error} for local in tokens.turned}
    videos, paths = store.row_videos, store.video_paths
    entries = []
    for local in failed:
        row = result.rows[local]
        video = int(videos[row])
        known = {
            "row": row,
            "video": video,
            "path": paths[video],
            "reason": Reason(int(tokens.reason[local])).name.lower(),
        }
        entries.append({"error": ""} | given.get(row, {}) | known)
    return entries
