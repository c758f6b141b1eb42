"""Creation in an object store, where nothing can be renamed into its place: the root's metadata is put last."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from coldframe.errors import UsageError
from coldframe.store.files import disk_errors, map_places
from coldframe.store.lease import LEASE_FILE, held_lease
from coldframe.store.markers import MARKER_FOLDER, NotAMarker, read_sealed_json
from coldframe.store.object_path import ObjectPath
from coldframe.store.root import PLAN_RECORD_KEY, ROOT_FILE


def put_store(place: ObjectPath, build: Callable[[Path], object]) -> None:
    """Let `build` make a store in a local folder and put it at `place`.

    The record of the plan is put first and names every other object, so that what a killed creation left can be told
    from what somebody else keeps there. The root's metadata is put last: without it there is no store. The lease keeps
    a second creation out.

    Raises:
        UsageError: a store, or anything that no creation of a store left, is at `place`.
    """
    with disk_errors("create the store", place), held_lease(place / MARKER_FOLDER / LEASE_FILE):
        with tempfile.TemporaryDirectory(prefix="coldframe-") as folder:
            build(Path(folder))
            files = {
                entry.relative_to(folder).as_posix(): entry for entry in Path(folder).rglob("*") if entry.is_file()
            }
            _clear(place)
            (place / PLAN_RECORD_KEY).put(files[PLAN_RECORD_KEY].read_bytes())
            rest = [key for key in sorted(files) if key not in (PLAN_RECORD_KEY, ROOT_FILE)]
            map_places(lambda key: (place / key).put(files[key].read_bytes()), rest, place)
            root = files[ROOT_FILE].read_bytes()
        (place / ROOT_FILE).put(root)


def _clear(place: ObjectPath) -> None:
    """Remove what a killed creation left."""
    found = set(place.sizes()) - {f"{MARKER_FOLDER}/{LEASE_FILE}"}
    if ROOT_FILE in found:
        raise UsageError(f"{place} exists already. Open it to continue it, or choose another place for a new store.")
    try:
        left = {PLAN_RECORD_KEY, *read_sealed_json(place / PLAN_RECORD_KEY)["objects"]}
    except (FileNotFoundError, NotAMarker, KeyError):
        left = set()
    if found - left:
        raise UsageError(
            f"{place} holds {len(found - left)} objects that no store accounts for, such as {min(found - left)}. "
            "Choose another place, or remove them."
        )
    map_places(lambda key: (place / key).unlink(), sorted(found), place)
