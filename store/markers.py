"""Markers: the small JSON files that say which units are committed, and with which bytes.

They lie beside the chunk folder of the array `units`, because a plain file inside a Zarr *group* makes
zarr-python warn whenever it lists the hierarchy, and nobody lists the inside of an array.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coldframe.store.files import Place, Written, file_bytes, map_places, write_json
from coldframe.store.int8_tokens import Reconstruction
from coldframe.store.recipe import canonical_json

MARKER_FOLDER = "units"
PLAN_FILE = "plan.json"
SUMMARY_FILE = "summary.json"
LEDGER_FILE = "failures.jsonl"
STAGED = ".next"  # in the names of what replaces a committed unit; a reader ignores it


@dataclass(frozen=True, kw_only=True)
class Marker:
    """One committed unit.

    Attributes:
        unit: its number, counted from 0.
        start, stop: its rows, half-open.
        recipe_id, plan_id: what the rows were made by and for.
        objects: size and digest of every object of the unit, by key relative to the store's root.
        counts: rows by status, `{"ok": ..., "failed": ...}`.
        failures: one entry a failed row, in row order: `row`, `video`, `path`, `reason`, `error`.
        seconds: time spent, by stage.
        provenance: runtime, versions, host and whatever else may differ without changing the meaning.
        reconstruction: how near int8 tokens of ok rows are to those that the encoder gave, by the name of their array.
    """

    unit: int
    start: int
    stop: int
    recipe_id: str
    plan_id: str
    objects: Mapping[str, Written]
    counts: Mapping[str, int]
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    reconstruction: Mapping[str, Reconstruction] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        measured = {name: found.to_dict() for name, found in self.reconstruction.items()}
        return {
            "unit": self.unit,
            "rows": [self.start, self.stop],
            "recipe_id": self.recipe_id,
            "plan_id": self.plan_id,
            "objects": {key: written.to_dict() for key, written in self.objects.items()},
            "counts": dict(self.counts),
            "failures": self.failures,
            "seconds": dict(self.seconds),
            "provenance": dict(self.provenance),
            **({"reconstruction": measured} if measured else {}),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Marker":
        start, stop = fields["rows"]
        return cls(
            unit=fields["unit"],
            start=start,
            stop=stop,
            recipe_id=fields["recipe_id"],
            plan_id=fields["plan_id"],
            objects={key: Written(**value) for key, value in fields["objects"].items()},
            counts={name: int(count) for name, count in fields["counts"].items()},
            failures=[dict(failure) for failure in fields["failures"]],
            seconds=dict(fields["seconds"]),
            provenance=dict(fields["provenance"]),
            reconstruction={name: Reconstruction(**found) for name, found in fields.get("reconstruction", {}).items()},
        )


class NotAMarker(Exception):
    """A marker file cannot be believed; the text says why."""


def marker_path(root: Place, unit: int) -> Place:
    return root / MARKER_FOLDER / f"{unit}.json"


def staged_marker_path(root: Place, unit: int) -> Place:
    """Where the marker of a unit that is written anew lies until its objects have taken their places."""
    return root / MARKER_FOLDER / f"{unit}{STAGED}.json"


def write_sealed_json(path: Place, fields: Mapping[str, Any]) -> None:
    """Write `fields` together with a digest of themselves, so that a flipped bit in the file shows."""
    write_json(path, {**fields, "sha256": _digest(fields)})


def read_sealed_json(path: Place) -> dict[str, Any]:
    """What `write_sealed_json` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        NotAMarker: it is not JSON, not an object, or does not match its digest.
    """
    try:
        fields = json.loads(path.read_bytes())
        digest = fields.pop("sha256")
        intact = digest == _digest(fields)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise NotAMarker("it cannot be parsed") from error
    if not intact:
        raise NotAMarker("it does not match its own digest")
    return dict(fields)


def read_marker(root: Place, unit: int) -> Marker:
    """The marker of `unit`; raises as `read_sealed_json` does."""
    fields = read_sealed_json(marker_path(root, unit))
    try:
        return Marker.from_dict(fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotAMarker("a field is missing or has the wrong form") from error


def size_problems(
    root: Place, objects: Mapping[str, Written], sizes: Mapping[str, int] | None = None
) -> list[tuple[str, str]]:
    """(key, what is wrong) for every object that is absent or has another size. Nothing is hashed.

    `sizes` are those of all objects by key where they are known already; otherwise each object is looked up.
    """
    keys = list(objects)
    if sizes is None:
        found = map_places(lambda key: file_bytes(root / key), keys, root)
    else:
        found = [sizes.get(key) for key in keys]
    problems = []
    for key, size in zip(keys, found, strict=True):
        if size is None:
            problems.append((key, "the object is missing"))
        elif size != objects[key].bytes:
            problems.append((key, f"the object has {size} bytes instead of {objects[key].bytes}"))
    return problems


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(fields).encode()).hexdigest()
