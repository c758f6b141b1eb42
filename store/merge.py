"""Merge: a plan and the plan of further videos become one, with the old rows first and unchanged."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.store.plan import Clips, Column, Plan, Videos
from coldframe.store.schema import Status


def merge_plans(old: Plan, more: Plan) -> Plan:
    """`old` with the videos of `more` behind its own, in their order.

    A video of `more` whose content `old` has already gets no new rows: its path is listed among the duplicates of the
    one that has them. One that cannot be used now and is listed in `old` by its path is passed over. So merging
    the same plan twice changes nothing.

    Raises:
        RecipeMismatch: the plans have different recipes.
        UsageError: a path of `old` has other content in `more`, sources or manifest columns do not fit together, or
            clips are made by annotations.
    """
    more.recipe.require_equal(old.recipe, "the store")
    if old.recipe.window != "grid":
        raise UsageError(
            "A store whose clips are made by annotations does not grow: further annotations of its videos would need "
            "rows between the ones there. Make a new store with all annotations, or one of the new ones alone."
        )
    _require_same_columns(old.videos, more.videos)
    sorted_out = _sort_out(old.videos, more.videos)
    new = np.array(sorted_out.new, np.int64)
    duplicates = [json.dumps(paths) for paths in sorted_out.duplicates]
    videos = _join_videos(replace(old.videos, duplicates=duplicates), more.videos, new)
    return Plan(recipe=old.recipe, videos=videos, clips=_join_clips(old, more.clips, new))


@dataclass
class _SortedOut:
    """Numbers of the videos that are new, and the old ones' duplicates, one list a video."""

    duplicates: list[list[str]]
    new: list[int] = field(default_factory=list)


def _sort_out(old: Videos, more: Videos) -> _SortedOut:
    found = _SortedOut(duplicates=[json.loads(text) for text in old.duplicates])
    usable = [number for number in range(len(old)) if old.status[number] == Status.OK]
    by_content = {old.sha256[number]: number for number in usable}
    by_path = {path: number for number in usable for path in [old.path[number], *found.duplicates[number]]}
    unusable = {old.path[number] for number in range(len(old)) if old.status[number] != Status.OK}
    for number in range(len(more)):
        paths = [more.path[number], *json.loads(more.duplicates[number])]
        is_usable = more.status[number] == Status.OK
        twin = by_content.get(more.sha256[number]) if is_usable else None
        for path in paths:
            _require_same_content(old, by_path.get(path), path, more.sha256[number])
        if twin is not None:
            _require_same_description(old, twin, more, number)
            listed = found.duplicates[twin]
            listed += [path for path in paths if path != old.path[twin] and path not in listed]
        elif is_usable or not (paths[0] in unusable or paths[0] in by_path):
            found.new.append(number)
    return found


def _require_same_content(old: Videos, known: int | None, path: str, sha256: str) -> None:
    if known is not None and sha256 and sha256 != old.sha256[known]:
        raise UsageError(
            f"{path} has other content now (sha256 {sha256[:12]}...) than when its rows were planned "
            f"({old.sha256[known][:12]}...). Give the new file another name, or make a new store."
        )


def _require_same_description(old: Videos, here: int, more: Videos, there: int) -> None:
    """What a manifest says of one content must not depend on the path under which it is found."""
    pairs = [("source", old.source[here], more.source[there])]
    pairs += [(name, old.columns[name][here], column[there]) for name, column in more.columns.items()]
    for name, known, given in pairs:
        if known != given and not (known != known and given != given):  # two missing numbers are equal
            raise UsageError(
                f"{more.path[there]} has the content of {old.path[here]}, which is in the store with {name} "
                f"{known!r} instead of {given!r}. Give it the same, or leave it out."
            )


def _require_same_columns(old: Videos, more: Videos) -> None:
    kinds = [{name: _kind(column) for name, column in videos.columns.items()} for videos in (old, more)]
    if kinds[0] != kinds[1]:
        described = [", ".join(f"{name} ({kind})" for name, kind in sorted(kind.items())) or "none" for kind in kinds]
        raise UsageError(
            f"The store's videos have the manifest columns {described[0]}; the new ones have {described[1]}. Give the "
            "same columns, of the same types, in a manifest."
        )


def _kind(column: Column) -> str:
    return "text" if isinstance(column, list) else column.dtype.name


def _join_videos(old: Videos, more: Videos, new: NDArray[np.int64]) -> Videos:
    joined: dict[str, Any] = {}
    for item in fields(Videos):
        first, second = getattr(old, item.name), getattr(more, item.name)
        if isinstance(first, Mapping):
            joined[item.name] = {name: _join(first[name], second[name], new) for name in first}
        else:
            joined[item.name] = _join(first, second, new)
    return Videos(**joined)


def _join(first: Sequence[Any] | NDArray[Any], second: Sequence[Any] | NDArray[Any], taken: NDArray[np.int64]) -> Any:
    if isinstance(first, np.ndarray):
        return np.concatenate([first, np.asarray(second, first.dtype)[taken]])
    return [*first, *(second[number] for number in taken.tolist())]


def _join_clips(old: Plan, more: Clips, new: NDArray[np.int64]) -> Clips:
    rows = np.flatnonzero(np.isin(more.video, new))
    names = [item.name for item in fields(Clips) if item.name != "annotations"]  # which merge_plans refuses
    joined = {name: _join(getattr(old.clips, name), getattr(more, name), rows) for name in names}
    moved = np.searchsorted(new, more.video[rows]) + len(old.videos)
    joined["video"] = np.concatenate([old.clips.video, moved.astype(np.int32)])
    return Clips(**joined)
