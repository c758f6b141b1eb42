"""Actions: rows that annotations made, with what each says was done, and the classes that train knows.

A class is a verb, a noun, or a pair of them. Heads have outputs for the classes of train rows alone; a test row of
any other stays, counts as a miss of every rank, and is counted (EPIC-KITCHENS' scorer does so; V-JEPA 2's drops it).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError, UsageError
from coldframe.probes.category import Category
from coldframe.probes.columns import AnnotatedStore, annotation_text, video_text
from coldframe.probes.groups import leak_components
from coldframe.probes.listed import require_listed
from coldframe.probes.selection import require_groups
from coldframe.probes.split import MIN_COMPONENTS, PARTS, Split, assign, build_split, require_disjoint
from coldframe.probes.split_manifest import EXCLUDED, SplitManifest, video_parts
from coldframe.probes.token_view import ShardedStore
from coldframe.store.schema import Status
from coldframe.store.windows import leaking_rows

_RATIOS = (0.6, 0.2, 0.2)
_ATTEMPTS = 100
_NUMBER = re.compile("[0-9]{1,18}")  # int() refuses thousands of digits
Classes = tuple[str, ...]  # one action: the verb, or the verb and the noun


class ActionStore(ShardedStore, AnnotatedStore, Protocol):
    """A store whose clips are made by annotations."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ActionRows:
    """Labelled ok rows.

    Attributes:
        rows: (n,) int64 rows of the store, ascending.
        labels: what was done in each, by task: the verb, and the noun where there is one.
        components: leak component of each.
        sha256: content digest of the video of each.
        videos: numbers of their videos.
        ok, failed, absent: rows of the store by status.
        unlabelled: ok rows without a verb, or without a noun where one is wanted.
        padded: rows with fewer real frames than the encoder takes.
        file_is_source: whether the group columns say no more than the files' digests.
        unlisted: labelled rows of videos that the split in a file leaves out.
    """

    rows: NDArray[np.int64]
    labels: tuple[tuple[str, ...], ...]
    components: Category
    sha256: tuple[str, ...]
    videos: NDArray[np.int64]
    ok: int
    failed: int
    absent: int
    unlabelled: int
    padded: int
    file_is_source: bool
    unlisted: int = 0

    def take(self, kept: NDArray[np.int64], unlisted: int) -> "ActionRows":
        """Some of the rows, by their positions."""
        places = kept.tolist()
        return replace(
            self,
            rows=self.rows[kept],
            labels=tuple(self.labels[i] for i in places),
            components=self.components.take(kept),
            sha256=tuple(self.sha256[i] for i in places),
            videos=self.videos[kept],
            unlisted=unlisted,
        )


def select_actions(store: ActionStore, columns: Sequence[str], groups: tuple[str, ...]) -> ActionRows:
    """Rows with a value in each of the annotation columns `columns`, grouped by columns of their videos.

    Raises:
        UsageError: no annotations made the clips, an unknown column, a video without a group, or nothing is labelled.
        StoreError: a clip shows a frame that its window forbids.
    """
    if store.recipe.window == "grid":
        raise UsageError(
            f"the clips of {store.name} cut whole videos; this readout needs one clip an action. Extract with "
            "--annotations into a new store."
        )
    edges = {name: store.annotation_column(name) for name in ("start_s", "stop_s")}
    leaking = leaking_rows(store.recipe, edges, store.column("frame_pts_s"), store.column("n_real"))
    if len(leaking):
        raise StoreError(
            f"{len(leaking)} rows of {store.name}, such as row {leaking[0]}, show frames that the window "
            f"{store.recipe.window} forbids. Run: coldframe verify {store.name}"
        )
    texts = list(zip(*(annotation_text(store, name) for name in columns), strict=True))
    ok = store.ok_rows()
    rows = np.array([row for row in ok.tolist() if all(texts[row])], np.int64)
    if not len(rows):
        raise UsageError(f"no ok row of {store.name} has a value in {' and '.join(columns)}; nothing can be probed.")
    video = store.column("video").astype(np.int64)[rows]
    sha256, grouped = video_text(store, "sha256"), {name: video_text(store, name) for name in groups}
    require_groups(store, grouped, np.unique(video))
    status = store.column("status")
    return ActionRows(
        rows=rows,
        labels=tuple(texts[row] for row in rows.tolist()),
        components=leak_components(grouped, sha256).take(video),
        sha256=tuple(sha256[number] for number in video.tolist()),
        videos=video,
        ok=len(ok),
        failed=int(np.count_nonzero(status == Status.FAILED)),
        absent=int(np.count_nonzero(status == Status.ABSENT)),
        unlabelled=len(ok) - len(rows),
        padded=int(np.count_nonzero(store.column("n_real")[rows] < store.recipe.frames)),
        file_is_source=all(values == sha256 for values in grouped.values()),
    )


def divide_actions(
    store: ActionStore,
    columns: Sequence[str],
    groups: tuple[str, ...],
    *,
    seed: int,
    manifest: SplitManifest | None,
) -> tuple[ActionRows, Split]:
    """The rows and their parts: whole leak components, each verb shared out as evenly as they allow.

    Verbs need not be in every part, as there are always rare ones.

    Args:
        store: an open token store.
        columns: annotation columns with the classes, the verb first.
        groups: columns whose values stay on one side; a manifest has its own.
        seed: of the division, unless there is a manifest.
        manifest: the division instead.

    Raises:
        UsageError: fewer than 3 sources, a part would be empty, or the manifest does not fit.
    """
    found = select_actions(store, columns, groups if manifest is None else manifest.by)
    part = _drawn_parts(found, seed) if manifest is None else _listed_parts(store, found, manifest)
    kept = np.flatnonzero(part >= 0)
    rows, part = found.take(kept, unlisted=len(part) - len(kept)), part[kept]
    train, validation, test = (np.flatnonzero(part == number) for number in range(len(PARTS)))
    empty = [name for name, own in zip(PARTS, (train, validation, test), strict=True) if not len(own)]
    if empty:
        raise UsageError(f"the split has no labelled action in {' and '.join(empty)}. Make another split.")
    split = build_split(rows.components, _verbs(rows), train=train, validation=validation, test=test)
    require_disjoint(split, rows.components)
    return rows, split


def _drawn_parts(found: ActionRows, seed: int) -> NDArray[np.int64]:
    """(n,) part of each row."""
    if len(found.components.names) < MIN_COMPONENTS:
        raise UsageError(
            f"{len(found.components.names)} sources hold all labelled actions; train, validation and test need one "
            "each. Add videos of other sources, or group less coarsely."
        )
    alike = Category(codes=np.zeros(len(found.rows), np.int64), names=("",))
    for labels in (_verbs(found), alike):  # verbs of one or two sources each never reach the last part
        for attempt in range(_ATTEMPTS):
            part = assign(found.components, labels, _RATIOS, f"{seed}:{attempt}")[found.components.codes]
            if len(np.unique(part)) == len(PARTS):
                return np.asarray(part)
    raise UsageError(f"found no division of {len(found.components.names)} sources into three parts. Add sources.")


def _listed_parts(store: ActionStore, found: ActionRows, manifest: SplitManifest) -> NDArray[np.int64]:
    """(n,) part of each row; -1 where the manifest leaves the video out."""
    if manifest.folds:
        raise UsageError(
            f"the split has {manifest.folds} folds; this readout trains on one division into train, validation and "
            "test. Make one with `coldframe-probe split` without --folds."
        )
    require_listed(store, dict(zip(found.videos.tolist(), found.sha256, strict=True)), manifest)
    parts = video_parts(manifest)
    number = {name: code for code, name in enumerate(PARTS)} | {EXCLUDED: -1}
    return np.array([number[parts[digest].part] for digest in found.sha256], np.int64)


def _verbs(rows: ActionRows) -> Category:
    return Category.from_text([labels[0] for labels in rows.labels])


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One thing that a head answers.

    Attributes:
        name: `verb`, `noun` or `action`, which is the pair.
        classes: those of train rows, in the order of the head's outputs; whole numbers ascend as numbers.
        unseen: those of other rows alone.
        codes: (n,) of each row: a position in `classes`, or, from their number on, in `unseen`.
    """

    name: str
    classes: tuple[Classes, ...]
    unseen: tuple[Classes, ...]
    codes: NDArray[np.int64]

    @property
    def is_seen(self) -> NDArray[np.bool_]:
        """(n,) whether train knows the class of each row."""
        seen: NDArray[np.bool_] = self.codes < len(self.classes)
        return seen


def make_tasks(rows: ActionRows, train: NDArray[np.int64]) -> tuple[Task, ...]:
    """Verb, and with nouns also noun and action, in the order of V-JEPA 2's queries.

    Classes are sorted, so that they depend neither on the order of the rows nor on Python's hash seed.

    Args:
        rows: of all parts.
        train: positions of the train rows.
    """
    width = len(rows.labels[0])
    parts = {"verb": (0,), "noun": (1,), "action": (0, 1)} if width > 1 else {"verb": (0,)}
    return tuple(
        _task(name, [tuple(labels[place] for place in places) for labels in rows.labels], train)
        for name, places in parts.items()
    )


def _task(name: str, values: Sequence[Classes], train: NDArray[np.int64]) -> Task:
    known = {values[i] for i in train.tolist()}
    classes = tuple(sorted(known, key=_order))
    unseen = tuple(sorted(set(values) - known, key=_order))
    code_of = {value: code for code, value in enumerate((*classes, *unseen))}
    return Task(
        name=name, classes=classes, unseen=unseen, codes=np.array([code_of[value] for value in values], np.int64)
    )


def class_name(words: Classes) -> str:
    """One text for a class; words with commas are quoted as in CSV, so that two classes never have one name."""
    if len(words) == 1:
        return words[0]
    doubled = ((word, word.replace('"', '""')) for word in words)
    return ", ".join(f'"{inside}"' if "," in word or '"' in word else word for word, inside in doubled)


def _order(value: Classes) -> tuple[tuple[int, int, str], ...]:
    """Sort key: whole numbers by value before other texts by code point."""
    return tuple((0, int(part), part) if _NUMBER.fullmatch(part) else (1, 0, part) for part in value)
