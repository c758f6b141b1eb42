"""Selection: the rows that a probe may use, with classes and leak components, and why others are left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.category import Category
from coldframe.probes.columns import is_of_annotations, require_classes, row_text, video_text
from coldframe.probes.features import TokenStore
from coldframe.probes.groups import leak_components
from coldframe.probes.split import MIN_COMPONENTS, components_per_class
from coldframe.store.schema import Status


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """How much there is of one class; sources are leak components."""

    name: str
    rows: int
    sources: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """Labelled ok rows of classes with enough sources.

    Attributes:
        rows: (n,) int64 rows of the store, ascending.
        labels, components: class and leak component of each of them.
        ok, failed, absent: rows of the store by status.
        unlabelled: ok rows whose video or annotation has no label.
        padded: selected rows with fewer real frames than the encoder takes.
        classes, excluded: counts of the classes in use and of those with fewer than 3 sources.
        file_is_source: whether the source column says no more than the files' digests.
    """

    rows: NDArray[np.int64]
    labels: Category
    components: Category
    ok: int
    failed: int
    absent: int
    unlabelled: int
    padded: int
    classes: tuple[ClassCount, ...]
    excluded: tuple[ClassCount, ...]
    file_is_source: bool


def select_rows(store: TokenStore, label: str, groups: tuple[str, ...]) -> Selection:
    """Rows of `store` with a value in the column `label` of videos or annotations, grouped by the columns `groups`.

    Raises:
        UsageError: unknown or unusable column, a used video without a group, or fewer than 2 classes left.
    """
    chosen = labelled_selection(store, label, groups)
    counts = chosen.classes
    enough = np.array([count.sources >= MIN_COMPONENTS for count in counts])
    kept = np.flatnonzero(enough[chosen.labels.codes])
    _require_two_classes(counts)
    rows = chosen.rows[kept]
    return replace(
        chosen,
        rows=rows,
        labels=chosen.labels.take(kept),
        components=chosen.components.take(kept),
        padded=int(np.count_nonzero(store.column("n_real")[rows] < store.recipe.frames)),
        classes=tuple(count for count in counts if count.sources >= MIN_COMPONENTS),
        excluded=tuple(count for count in counts if count.sources < MIN_COMPONENTS),
    )


def labelled_selection(store: TokenStore, label: str, groups: tuple[str, ...]) -> Selection:
    """All labelled ok rows, whether their classes have enough sources or not.

    Components are made over all videos, since an unlabelled one can link two labelled ones.
    """
    texts = row_text(store, label)
    group_columns = {name: video_text(store, name) for name in groups}
    sha256 = video_text(store, "sha256")
    ok = store.ok_rows()
    if not len(ok):
        raise UsageError(f"the store {store.name} has no ok rows; nothing can be probed.")
    video = store.column("video").astype(np.int64)
    rows = ok[np.array([bool(text) for text in texts])[ok]]
    used_videos, first = np.unique(video[rows], return_index=True)
    # the windows of a video say one thing; each annotation says a thing of its own
    told = rows if is_of_annotations(store, label) else rows[first]
    require_classes(label, [texts[row] for row in told.tolist()])
    require_groups(store, group_columns, used_videos)

    labels = Category.from_text(texts).take(rows)
    components = leak_components(group_columns, sha256).take(video[rows])
    status = store.column("status")
    return Selection(
        rows=rows,
        labels=labels,
        components=components,
        ok=len(ok),
        failed=int(np.count_nonzero(status == Status.FAILED)),
        absent=int(np.count_nonzero(status == Status.ABSENT)),
        unlabelled=len(ok) - len(rows),
        padded=int(np.count_nonzero(store.column("n_real")[rows] < store.recipe.frames)),
        classes=tuple(class_counts(components, labels)),
        excluded=(),
        file_is_source=all(group_columns[name] == sha256 for name in groups),
    )


def class_counts(components: Category, labels: Category) -> list[ClassCount]:
    """Rows and components of each class, in the order of `labels.names`."""
    columns = (labels.names, labels.counts().tolist(), components_per_class(components, labels).tolist())
    return [ClassCount(name=name, rows=rows, sources=sources) for name, rows, sources in zip(*columns, strict=True)]


def require_groups(store: TokenStore, columns: dict[str, list[str]], videos: NDArray[np.int64]) -> None:
    """Refuse videos without a value in a group column, since it is unknown what they must be kept with."""
    for name, values in columns.items():
        missing = [v for v in videos.tolist() if not values[v]]
        if missing:
            raise UsageError(
                f"group column {name!r} is empty for {len(missing)} of {len(videos)} labelled videos, such "
                f"as {store.video_column('path')[missing[0]]}: it is unknown what they must be kept with. "
                "Fill the column, or group by another."
            )


def _require_two_classes(counts: Sequence[ClassCount]) -> None:
    if sum(count.sources >= MIN_COMPONENTS for count in counts) < 2:
        listed = ", ".join(f"{count.name!r} ({count.sources})" for count in counts[:20])
        more = ", ..." if len(counts) > 20 else ""
        raise UsageError(
            f"fewer than 2 classes have {MIN_COMPONENTS} or more sources, one each for train, validation and "
            f"test. Sources a class: {listed}{more}. Add sources, or group less coarsely."
        )
