"""Replacement: a committed unit that is written anew stays as it was until the new one is whole.

The new objects lie beside the old ones as `<key>.next` and are vouched for by `units/<unit>.next.json`, whose writing
is the moment of decision. From then on the replacement is carried out, by this process or by the next one that
extracts: a kill at any moment leaves the old unit or the new one, and never a loss.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from coldframe.store.files import Place, disk_errors, fsync_path, write_bytes
from coldframe.store.markers import (
    LEDGER_FILE,
    MARKER_FOLDER,
    STAGED,
    SUMMARY_FILE,
    NotAMarker,
    marker_path,
    read_sealed_json,
    staged_marker_path,
)
from coldframe.store.object_path import ObjectPath


def finish_replacement(root: Place, unit: int) -> None:
    """Put the staged objects of `unit`, and last its staged marker, in the place of the old ones, if there are any.

    Can be repeated after a crash: what has been put in its place already is left there.
    """
    staged = staged_marker_path(root, unit)
    try:
        objects = read_sealed_json(staged)["objects"]
    except FileNotFoundError:
        return
    except NotAMarker:  # damaged on disk: it decides nothing
        staged.unlink()
        return
    take_back_commit(root, unit)
    for key in objects:
        _put_in_place(root / (key + STAGED), root / key)
    _put_in_place(staged, marker_path(root, unit), clear=[*(root / (key + STAGED) for key in objects), staged])


def _put_in_place(source: Place, target: Place, clear: Sequence[Place] = ()) -> None:
    """Move a file. An object cannot be moved: it is put once more, and those of `clear` are removed after it."""
    if isinstance(source, Path) and isinstance(target, Path):
        if source.exists():
            source.replace(target)
            fsync_path(source.parent)
        return
    with suppress(FileNotFoundError):  # a process that was killed had removed it, the last thing that it did
        write_bytes(target, source.read_bytes())
    for place in clear:
        place.unlink(missing_ok=True)


def finish_replacements(root: Place, units: range) -> None:
    """Finish what a killed process had decided to replace of `units`. Only for the holder of their lock."""
    with disk_errors("finish an interrupted write to", root):
        for unit in list(_staged_units(root)):
            if unit in units:
                finish_replacement(root, unit)


def take_back_commit(root: Place, unit: int) -> None:
    """Remove the marker of `unit`, and the seal of the whole store with it."""
    folder = root / MARKER_FOLDER
    stale = [folder / SUMMARY_FILE, folder / LEDGER_FILE, marker_path(root, unit)]
    present = [path for path in stale if path.exists()]
    for path in present:
        path.unlink(missing_ok=True)
    if present:  # an old marker must not come back and vouch for new objects
        fsync_path(folder)


def _staged_units(root: Place) -> Iterator[int]:
    folder, suffix = root / MARKER_FOLDER, f"{STAGED}.json"
    names = folder.sizes() if isinstance(folder, ObjectPath) else [entry.name for entry in folder.iterdir()]
    for name in names:
        stem = name.removesuffix(suffix)
        if name.endswith(suffix) and stem.isdecimal():
            yield int(stem)
