"""Destination: the store that an extraction writes to. It is made, found as an earlier run left it, or grown."""

import os
import shutil
from collections.abc import Sequence
from typing import Any

from coldframe.errors import ColdframeError, InputNotFound, UsageError
from coldframe.serve.inputs import InputVideo
from coldframe.serve.parts import other_videos, require_same_paths
from coldframe.store import Store, create_store, finish_replacements, grow_store, merge_plans, open_store, read_plan
from coldframe.store.files import Place, place_of
from coldframe.store.object_path import ObjectPath
from coldframe.store.plan import Plan
from coldframe.store.recipe import Recipe
from coldframe.store.root import is_taken
from coldframe.store.schema import TokenGeometry
from coldframe.store.text import path_to_text, size_to_text


def require_store_path(store_path: str, *, append: bool, in_parts: bool) -> None:
    """Refuse a path where no store can be, or is, or none that can be written in the way asked for, before any work."""
    place = place_of(store_path)
    if isinstance(place, ObjectPath):
        _require_one_writer(place, {"--append": append, "--part": in_parts})
    if os.path.islink(store_path) and not os.path.exists(store_path):
        raise UsageError(
            f"{path_to_text(store_path)} is a link to {path_to_text(os.readlink(store_path))}, which does not exist. "
            "Make that folder's disk available, or remove the link."
        )
    if append and not is_taken(place):
        raise InputNotFound(f"There is no store at {path_to_text(store_path)} to append to. Leave out --append.")


def require_appendable(recipe: Recipe, *, append: bool, in_parts: bool) -> None:
    """Refuse to grow a store in parts, or one whose clips are made by annotations."""
    if append and in_parts:
        raise UsageError(
            "--append and --part exclude each other: a store grows once, not once a job. Start one job with --append; "
            "as soon as it extracts it can be stopped, and parts can then be run that name all videos."
        )
    if append and recipe.window != "grid":
        raise UsageError("--append and --annotations exclude each other. Make a new store of all annotations.")


def _require_one_writer(place: ObjectPath, options: dict[str, bool]) -> None:
    """Refuse those of `options` that are chosen: a lease is of a whole store, and only folders can be moved whole."""
    chosen = [name for name, is_chosen in options.items() if is_chosen]
    if chosen:
        raise UsageError(
            f"{' and '.join(chosen)} cannot be used with {path_to_text(place)}: locks of single units, and a plan that "
            "replaces another at once, need a file system. Extract into a local store and copy it, or leave the option "
            "out."
        )


def made(plan: Plan, store_path: str, geometry: TokenGeometry, encoder: dict[str, Any]) -> Store:
    """The store of `plan`: a new one, or the one that an earlier run or another part made from the same plan.

    Raises:
        UsageError: the store there was made from other videos.
        ColdframeError: the disk has no room for it.
    """
    place = place_of(store_path)
    if not is_taken(place):
        _require_space(place, len(plan.clips) * geometry.row_bytes(plan.recipe.dtype))
        try:
            return create_store(store_path, plan, geometry=geometry, encoder=encoder)
        except ColdframeError:
            if not is_taken(place):
                raise  # else another part made it in the meantime, from the same plan, as is checked now
    store = open_store(store_path, writable=True)
    require_planned(store, plan)
    return store


def open_part(store_path: str, videos: Sequence[InputVideo]) -> Store:
    """The store that another part made from the same videos, which are not indexed again."""
    store = open_store(store_path, writable=True)
    require_same_paths(store, videos)
    return store


def grown(plan: Plan, store_path: str) -> Store:
    """The store with the videos of `plan` that it lacks behind its own."""
    store = open_store(store_path, writable=True)
    with store.lock():
        finish_replacements(store.place, range(store.unit_count))
        larger = merge_plans(read_plan(store), plan)
        more = len(larger.clips) - store.rows
        _require_space(store.path, more * store.geometry.row_bytes(plan.recipe.dtype))
        return grow_store(store, larger)


def require_planned(store: Store, plan: Plan) -> None:
    """Refuse a plan that is not the one of `store`, and say what differs."""
    plan.recipe.require_equal(store.recipe, f"the store {store.name}")
    if store.plan_id != plan.plan_id:
        raise UsageError(other_videos(store, _differences(store, plan)))


def _differences(store: Store, plan: Plan) -> list[str]:
    there = dict(zip(store.video_column("path"), store.video_column("sha256"), strict=True))
    here = dict(zip(plan.videos.path, plan.videos.sha256, strict=True))
    notes = [f"{path} is new" for path in here if path not in there]
    notes += [f"{path} is missing" for path in there if path not in here]
    return notes + [f"{path} has other content" for path in here if path in there and here[path] != there[path]]


def _require_space(place: Place, wanted_bytes: int) -> None:
    if isinstance(place, ObjectPath):  # has no end that could be asked for
        return
    folder = os.path.dirname(place)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free_bytes = shutil.disk_usage(folder).free
    if wanted_bytes > free_bytes:
        raise ColdframeError(
            f"The store needs {size_to_text(wanted_bytes)}, {path_to_text(folder)} has {size_to_text(free_bytes)} free."
            " Keep fewer tokens (--tokens), or choose another disk."
        )
