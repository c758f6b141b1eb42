"""Growth: a store takes over a larger plan. Rows that it has keep their numbers, and units their bytes.

The files of the new plan are made beside the store, moved into it whole as `units/next`, which is the moment of
decision, and then put in the place of the old ones, by this process or by the next one that writes to the store.
"""

import shutil
from contextlib import suppress
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path

import numpy as np

from coldframe.errors import StoreError, UsageError
from coldframe.store.create import build
from coldframe.store.files import disk_errors, fsync_path, place_of
from coldframe.store.layout import plan_arrays
from coldframe.store.markers import LEDGER_FILE, MARKER_FOLDER, SUMMARY_FILE
from coldframe.store.plan import Clips, Plan
from coldframe.store.planned import read_plan
from coldframe.store.root import PLAN_RECORD_KEY, EarlierPlan, growth_folder, read_root
from coldframe.store.store import Store, open_store
from coldframe.store.text import path_to_text
from coldframe.workplace import workplace


def grow_store(store: Store, plan: Plan) -> Store:
    """The store with `plan` in the place of its own, opened anew. Only for the holder of the store's lock.

    Units keep their size, so what is committed stays so; a unit that the old plan ended in keeps its rows and waits for
    the rest.

    Args:
        store: the store, open for writing.
        plan: from `merge_plans` of the store's plan (`read_plan`) and that of further videos.

    Raises:
        RecipeMismatch: the plan has another recipe.
        StoreError: the plan on disk is not the one that the store was made with.
        UsageError: the plan does not begin with the rows of the store.
    """
    if plan.plan_id == store.plan_id:
        return store
    plan.recipe.require_equal(store.recipe, f"the store {path_to_text(store.path)}")
    _require_growth(store, plan)
    root = replace(
        store.root,
        plan_id=plan.plan_id,
        rows=len(plan.clips),
        videos=len(plan.videos),
        earlier=(*store.root.earlier, EarlierPlan(plan_id=store.plan_id, rows=store.rows)),
    )
    planned = plan_arrays(plan)
    with disk_errors("grow", store.path):
        with workplace(store.path, prefix=f"{store.path.name}.partial-") as partial:
            build(partial, root, planned)
            _unseal(store.path)
            partial.rename(growth_folder(store.path))
        fsync_path(store.path / MARKER_FOLDER)
        _move_in(store.path)
    return open_store(store.path, writable=True)


def finish_growth(path: str | PathLike[str]) -> None:
    """Carry out what a killed process had decided: its grown plan takes the place of the old one.

    Raises:
        UsageError: another process is at work on the store.
    """
    folder = place_of(path)
    if isinstance(folder, Path) and growth_folder(folder).exists():
        with Store(place=folder, root=read_root(folder)).lock():
            _move_in(folder)  # if nobody did so while we asked for the lock


def _move_in(folder: Path) -> None:
    staged = growth_folder(folder)
    with disk_errors("grow", folder):
        record = staged / PLAN_RECORD_KEY
        if record.exists():  # it is moved last, so that everything else can be moved again after a crash
            files = sorted(entry for entry in staged.rglob("*") if entry.is_file() and entry != record)
            for entry in [*files, record]:
                place = folder / entry.relative_to(staged)
                place.parent.mkdir(parents=True, exist_ok=True)
                entry.replace(place)
                fsync_path(place.parent)
        while staged.exists():
            with suppress(FileNotFoundError):  # the record is in its place, so another process may be removing it too
                shutil.rmtree(staged)
        fsync_path(staged.parent)


def _require_growth(store: Store, plan: Plan) -> None:
    old = read_plan(store)
    if old.plan_id != store.plan_id:
        raise StoreError(
            f"The plan of {path_to_text(store.path)} has been altered since it was made. Restore it from a copy; "
            "`coldframe verify` says which files."
        )
    same = all(
        np.array_equal(getattr(plan.clips, item.name)[: store.rows], getattr(old.clips, item.name), equal_nan=True)
        for item in fields(Clips)
        if item.name != "annotations"  # which merge_plans refuses
    )
    if not same or plan.videos.sha256[: store.root.videos] != old.videos.sha256:
        raise UsageError("The new plan does not begin with the rows of the store. Merge it with merge_plans.")


def _unseal(folder: Path) -> None:
    for name in (SUMMARY_FILE, LEDGER_FILE):
        (folder / MARKER_FOLDER / name).unlink(missing_ok=True)
    fsync_path(folder / MARKER_FOLDER)
