"""Rows with several labels a video, and their division into train, validation and test.

A video with an empty cell, which nobody looked at, is left out and counted; one where somebody looked and found none
stays, as a negative of every class (`label_sets`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.category import Category
from coldframe.probes.columns import video_text
from coldframe.probes.features import TokenStore
from coldframe.probes.groups import leak_components
from coldframe.probes.label_sets import SEPARATOR, divide_sets, label_set
from coldframe.probes.listed import require_listed, require_same_labels
from coldframe.probes.selection import ClassCount, require_groups
from coldframe.probes.split import MIN_COMPONENTS, PARTS, Split, build_split, require_disjoint
from coldframe.probes.split_manifest import EXCLUDED, SplitManifest, row_digests, video_parts
from coldframe.store.schema import Status

_RATIOS = (0.6, 0.2, 0.2)

Targets = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiLabelRows:
    """Rows of videos that somebody has labelled.

    Attributes:
        rows: (n,) int64 rows of the store, ascending.
        names: classes with positives in at least 3 sources, or in every part of a split from a file; sorted.
        targets: (n, classes) bool.
        components: leak component of each row.
        video: (n,) video of each row.
        unlabelled: ok rows of videos with an empty cell.
        missing: rows of the store that failed, and that are absent.
        unlisted: labelled rows of videos that a split from a file leaves out.
        without_label: rows whose video has none of the labels.
        classes, excluded: counts of positives of the classes in use, and of the others.
    """

    rows: NDArray[np.int64]
    names: tuple[str, ...]
    targets: Targets
    components: Category
    video: NDArray[np.int64]
    unlabelled: int
    missing: tuple[int, int]
    unlisted: int
    without_label: int
    classes: tuple[ClassCount, ...]
    excluded: tuple[ClassCount, ...]


def divide_multilabel(
    store: TokenStore, label: str, groups: tuple[str, ...], seeds: Sequence[int], manifest: SplitManifest | None
) -> tuple[MultiLabelRows, list[tuple[int, Split]]]:
    """Rows to use and their divisions; arguments as for `division.divide`.

    Raises:
        UsageError: unusable columns, too few sources, or a manifest that does not fit the store.
    """
    if manifest is not None:
        return _listed(store, label, manifest)
    selection = select_multilabel(store, label, groups)
    return selection, [(seed, multilabel_split(selection, seed)) for seed in seeds]


def select_multilabel(store: TokenStore, label: str, groups: tuple[str, ...]) -> MultiLabelRows:
    """Ok rows of labelled videos; names are sorted by their text.

    Raises:
        UsageError: unknown column, a labelled video without a group, or no class in 3 sources.
    """
    found = _labelled(store, label, groups)
    enough = np.array([count.sources >= MIN_COMPONENTS for count in found.classes], bool)
    if not enough.any():
        raise UsageError(
            f"no label of {label!r} has positives in {MIN_COMPONENTS} or more sources, one each for train, validation "
            f"and test. Labels of a cell stand between {SEPARATOR!r}; add sources, or group less coarsely."
        )
    return _keep_classes(found, enough)


def _listed(store: TokenStore, label: str, manifest: SplitManifest) -> tuple[MultiLabelRows, list[tuple[int, Split]]]:
    """Rows that `manifest` divides, of the labels that have a positive in all of its parts."""
    found = _labelled(store, label, manifest.by)
    sha256 = video_text(store, "sha256")
    of_videos = {v: sha256[v] for v in np.unique(found.video).tolist()}
    require_listed(store, of_videos, manifest)
    if manifest.label == label:
        require_same_labels(store, of_videos, video_text(store, label), manifest, label_set)
    known = video_parts(manifest)
    kept = np.flatnonzero([known[sha256[v]].part != EXCLUDED for v in found.video.tolist()])
    digests = row_digests(sha256, found.video[kept])
    own = found.components.take(kept)
    found = replace(
        found,
        rows=found.rows[kept],
        targets=found.targets[kept],
        components=Category.from_text([known[digest].component for digest in digests]),
        video=found.video[kept],
        unlisted=len(found.rows) - len(kept),
    )
    splits = manifest.splits(digests, found.components, _cells(found))
    for split in splits:
        require_disjoint(split, found.components)
        require_disjoint(split, own)
    parts = [rows for split in splits for rows in split.parts().values()]
    everywhere = np.all([found.targets[rows].any(axis=0) for rows in parts], axis=0)
    if not everywhere.any():
        raise UsageError(
            f"no label of {label!r} has a positive in every part of the split: make the split with --multi-label "
            f"--label {label}, or add sources."
        )
    counts = _class_counts(found.components, found.names, found.targets)
    return _keep_classes(replace(found, classes=counts), everywhere), list(enumerate(splits))


def _labelled(store: TokenStore, label: str, groups: tuple[str, ...]) -> MultiLabelRows:
    """Ok rows of labelled videos with every label there is."""
    cells = video_text(store, label)
    columns, sha256 = {name: video_text(store, name) for name in groups}, video_text(store, "sha256")
    sets = [label_set(cell) for cell in cells]
    video, ok = store.column("video").astype(np.int64), store.ok_rows()
    rows = ok[np.array([bool(cell) for cell in cells])[video[ok]]]
    if not len(rows):
        raise UsageError(f"label column {label!r} is empty for every video with ok rows; label some videos.")
    used = video[rows]
    require_groups(store, columns, np.unique(used))
    components = leak_components(columns, sha256).take(used)
    status = store.column("status")
    names = tuple(sorted(frozenset().union(*(sets[v] for v in np.unique(used).tolist()))))
    targets = np.array([[name in sets[v] for name in names] for v in used.tolist()], bool).reshape(len(rows), -1)
    return MultiLabelRows(
        rows=rows,
        names=names,
        targets=targets,
        components=components,
        video=used,
        unlabelled=len(ok) - len(rows),
        missing=(int(np.count_nonzero(status == Status.FAILED)), int(np.count_nonzero(status == Status.ABSENT))),
        unlisted=0,
        without_label=int((~targets.any(axis=1)).sum()),
        classes=_class_counts(components, names, targets),
        excluded=(),
    )


def _keep_classes(found: MultiLabelRows, enough: NDArray[np.bool_]) -> MultiLabelRows:
    """`found` without the labels that are not in the mask `enough` (classes,); their rows stay."""
    targets = found.targets[:, enough]
    return replace(
        found,
        names=tuple(name for name, keep in zip(found.names, enough, strict=True) if keep),
        targets=targets,
        without_label=int((~targets.any(axis=1)).sum()),
        classes=tuple(count for count, keep in zip(found.classes, enough, strict=True) if keep),
        excluded=tuple(count for count, keep in zip(found.classes, enough, strict=True) if not keep),
    )


def _class_counts(components: Category, names: Sequence[str], targets: Targets) -> tuple[ClassCount, ...]:
    return tuple(
        ClassCount(name=name, rows=int(column.sum()), sources=len(np.unique(components.codes[column])))
        for name, column in zip(names, targets.T, strict=True)
    )


def _sets(selection: MultiLabelRows) -> list[frozenset[str]]:
    """The labels of each row that are in use."""
    names = np.array(selection.names, dtype=object)
    return [frozenset(names[line].tolist()) for line in selection.targets]


def _cells(selection: MultiLabelRows) -> Category:
    """The labels of each row as one text."""
    return Category.from_text([SEPARATOR.join(sorted(labels)) for labels in _sets(selection)])


def multilabel_split(selection: MultiLabelRows, seed: int) -> Split:
    """Whole components to train, validation and test, each class with its share of sources in every part.

    Raises:
        UsageError: no division has every class in every part.
    """
    components = selection.components
    part_of = divide_sets(components, _sets(selection), _RATIOS, str(seed))
    train, validation, test = (np.flatnonzero(part_of == part) for part in range(len(PARTS)))
    split = build_split(components, _cells(selection), train=train, validation=validation, test=test)
    require_disjoint(split, components)
    return split
