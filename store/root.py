"""Root: what the store's root attributes say, and the record of the plan that they are checked against."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coldframe.errors import InputNotFound, StoreError, UsageError
from coldframe.store.files import Place, Written
from coldframe.store.markers import (
    MARKER_FOLDER,
    PLAN_FILE,
    NotAMarker,
    read_sealed_json,
    size_problems,
    write_sealed_json,
)
from coldframe.store.object_path import ObjectPath
from coldframe.store.recipe import Recipe, canonical_json
from coldframe.store.schema import FORMAT_VERSION, TokenGeometry
from coldframe.store.text import path_to_text

ROOT_FILE = "zarr.json"
ATTRIBUTE = "coldframe"  # the one key of the root attributes that is ours
PLAN_RECORD_KEY = f"{MARKER_FOLDER}/{PLAN_FILE}"


@dataclass(frozen=True, kw_only=True)
class EarlierPlan:
    """A plan that the store has outgrown: its rows are the first `rows` rows of the present one."""

    plan_id: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class Root:
    """Facts about a store that hold for all of its rows and change only when it grows.

    Attributes:
        recipe: what decides the numbers of a row.
        plan_id: digest of the plan, in hexadecimal.
        geometry: shape of one row's tokens.
        encoder: identity of the encoder, given by whoever made the store.
        rows, videos: length of the two tables of the plan.
        unit_rows: rows of a unit.
        created_by: name and version of the program that made the store.
        earlier: plans that it was made with or grown to before, oldest first.
    """

    recipe: Recipe
    plan_id: str
    geometry: TokenGeometry
    encoder: Mapping[str, Any]
    rows: int
    videos: int
    unit_rows: int
    created_by: str
    earlier: tuple[EarlierPlan, ...] = ()

    def to_attributes(self) -> dict[str, Any]:
        grown = {"earlier_plans": [asdict(plan) for plan in self.earlier]} if self.earlier else {}
        return {
            "format_version": FORMAT_VERSION,
            "created_by": self.created_by,
            "recipe_id": self.recipe.recipe_id,
            "plan_id": self.plan_id,
            "rows": self.rows,
            "videos": self.videos,
            "unit_rows": self.unit_rows,
            "recipe": self.recipe.to_dict(),
            "geometry": self.geometry.to_dict(),
            "encoder": dict(self.encoder),
            **grown,
        }

    @classmethod
    def from_attributes(cls, fields: Mapping[str, Any]) -> "Root":
        """Raises ValueError, KeyError or TypeError for what `to_attributes` would not have written."""
        root = cls(
            recipe=Recipe.from_dict(fields["recipe"]),
            plan_id=fields["plan_id"],
            geometry=TokenGeometry.from_dict(fields["geometry"]),
            encoder=dict(fields["encoder"]),
            rows=fields["rows"],
            videos=fields["videos"],
            unit_rows=fields["unit_rows"],
            created_by=fields["created_by"],
            earlier=tuple(EarlierPlan(**plan) for plan in fields.get("earlier_plans", ())),
        )
        if not all(type(count) is int and count > 0 for count in (root.rows, root.videos, root.unit_rows)):
            raise ValueError("rows, videos and unit_rows must be whole numbers above 0")
        if root.recipe.recipe_id != fields["recipe_id"]:
            raise ValueError("recipe_id is not the digest of the recipe")
        return root

    @property
    def unit_count(self) -> int:
        return -(-self.rows // self.unit_rows)

    def unit_range(self, unit: int) -> range:
        """Rows of `unit`, which is counted from 0.

        Raises:
            UsageError: there is no such unit.
        """
        if not 0 <= unit < self.unit_count:
            raise UsageError(f"Unit {unit} does not exist; allowed is 0 to {self.unit_count - 1}.")
        return range(unit * self.unit_rows, min((unit + 1) * self.unit_rows, self.rows))

    @property
    def attributes_sha256(self) -> str:
        return hashlib.sha256(canonical_json(self.to_attributes()).encode()).hexdigest()


def is_taken(place: Place) -> bool:
    """Whether anything stands in the way of a new store at `place`.

    In an object store that is a root's metadata: creation puts it last, so there is no store before it.
    """
    return (place / ROOT_FILE).size() is not None if isinstance(place, ObjectPath) else os.path.lexists(place)


def read_root(folder: Place) -> Root:
    """The root of the store in `folder`; raises what `coldframe.store.open_store` lists."""
    name = path_to_text(folder)
    if not folder.exists():
        raise InputNotFound(f"There is no store at {name}. Check the path, or make one with `coldframe extract`.")
    fields = _own_attributes(folder)
    if isinstance(fields, str):
        raise UsageError(f"{name} is not a Coldframe store: {fields}. Give the folder that `coldframe extract` made.")
    version = fields.get("format_version")
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{name} has format version {version!r}; this program reads version {FORMAT_VERSION}. "
            f"Use the version of Coldframe that made it ({fields.get('created_by', 'unknown')})."
        )
    try:
        return Root.from_attributes(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"The root attributes of {name} have been altered or cut short ({error}). Restore zarr.json from a copy."
        ) from error


def _own_attributes(folder: Place) -> dict[str, Any] | str:
    """Our attributes, or what was found instead."""
    if not folder.is_dir():
        return "it is a file"
    try:
        metadata = json.loads((folder / ROOT_FILE).read_bytes())
        kind, attributes = metadata["node_type"], metadata.get("attributes", {})
    except FileNotFoundError:
        entries = sum(1 for _ in folder.iterdir())
        bundle = (folder / "bundle.json").exists()
        return "it is an encoder bundle" if bundle else f"it is a folder with {entries} entries and no zarr.json"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "its zarr.json cannot be read"
    if kind != "group":
        return f"it is a Zarr {kind}, and a store is a group"
    fields = attributes.get(ATTRIBUTE) if isinstance(attributes, dict) else None
    return fields if isinstance(fields, dict) else "it is a Zarr group made by another program"


def growth_folder(folder: Path) -> Path:
    """Where the files of a grown plan lie, whole, until they have taken the place of the old ones."""
    return folder / MARKER_FOLDER / "next"


def write_plan_record(folder: Place, root: Root, objects: Mapping[str, Written]) -> None:
    """Record the digests of the root attributes and of every file that creation wrote, by relative key."""
    record = {
        "plan_id": root.plan_id,
        "recipe_id": root.recipe.recipe_id,
        "attributes_sha256": root.attributes_sha256,
        "objects": {key: objects[key].to_dict() for key in sorted(objects)},
    }
    write_sealed_json(folder / PLAN_RECORD_KEY, record)


def read_plan_record(folder: Place, root: Root) -> dict[str, Written]:
    """Objects that creation wrote, by relative key.

    Raises:
        NotAMarker: the record is absent, altered, or speaks of other root attributes.
    """
    try:
        record = read_sealed_json(folder / PLAN_RECORD_KEY)
        objects = {key: Written(**value) for key, value in record["objects"].items()}
        same = record["attributes_sha256"] == root.attributes_sha256
    except FileNotFoundError as error:
        raise NotAMarker("the record of the plan is missing") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise NotAMarker("the record of the plan has the wrong form") from error
    if not same:
        raise NotAMarker("the root attributes are not those that the store was created with")
    return objects


def plan_problems(folder: Place, root: Root) -> list[tuple[str, str]]:
    """(key, what is wrong) for the plan's record and for plan objects of the wrong size, without hashing."""
    try:
        return size_problems(folder, read_plan_record(folder, root))
    except NotAMarker as error:
        return [(PLAN_RECORD_KEY, str(error))]
