"""Multi-label readout: several labels a video, one binary logistic problem a class, scored by mAP.

A label cell lists its labels with `;` between them. An empty cell means that nobody looked: the video is left out and
counted. A cell with nothing but `;` means that somebody looked and found none: the video stays, as a negative of every
class. mAP is over videos, each with the mean of its windows' probabilities; classes without a positive in the test part
are left out of the mean and counted (scikit-learn would count them as 0).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.bootstrap import Interval, bootstrap_over_sources
from coldframe.probes.calibration import multilabel_ece
from coldframe.probes.category import Category
from coldframe.probes.columns import video_text
from coldframe.probes.features import FeatureKind, TokenStore, read_features
from coldframe.probes.groups import leak_components
from coldframe.probes.logistic import STRENGTHS, LinearHead, fit_logistic
from coldframe.probes.ranking import mean_average_precision, resampled_average_precision
from coldframe.probes.saved import ProbeCard, geometry_dict
from coldframe.probes.selection import ClassCount, require_groups
from coldframe.probes.split import MIN_COMPONENTS, PARTS, Split, assign, build_split, covers, require_disjoint

SEPARATOR = ";"
_RATIOS = (0.6, 0.2, 0.2)
_ATTEMPTS = 100

Targets = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiLabelRows:
    """Rows of videos that somebody has labelled.

    Attributes:
        rows: (n,) int64 rows of the store, ascending.
        names: classes with positives in at least 3 sources, sorted.
        targets: (n, classes) bool.
        components: leak component of each row.
        video: (n,) video of each row.
        unlabelled: ok rows of videos with an empty cell.
        without_label: rows whose video has none of the labels.
        classes, excluded: counts of positives of the classes in use, and of those with fewer sources.
    """

    rows: NDArray[np.int64]
    names: tuple[str, ...]
    targets: Targets
    components: Category
    video: NDArray[np.int64]
    unlabelled: int
    without_label: int
    classes: tuple[ClassCount, ...]
    excluded: tuple[ClassCount, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiLabelResult:
    """One split, one head, one look at its test videos.

    Attributes:
        seed, split_digest: of the split.
        head: its C is chosen on validation by mAP, where it reached `validation_map`.
        test_videos, test_sources: in the test part.
        map, map_windows: over videos, and over windows taken as items; in (0, 1].
        chance: mean prevalence among test videos of the classes in the mean.
        per_class: (classes,) AP over videos; NaN where the test part has no positive.
        interval: of `map`, over sources.
        ece: mean over classes of the binary ECE of windows.
    """

    seed: int
    split_digest: str
    head: LinearHead
    validation_map: float
    test_videos: int
    test_sources: int
    map: float
    map_windows: float
    chance: float
    per_class: NDArray[np.float64]
    interval: Interval
    ece: float

    @property
    def absent(self) -> int:
        """Classes without a positive in the test part."""
        return int(np.isnan(self.per_class).sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiLabelReport:
    """A multi-label probe on several splits."""

    store: TokenStore
    label: str
    groups: tuple[str, ...]
    features: FeatureKind
    selection: MultiLabelRows
    results: tuple[MultiLabelResult, ...]

    def card(self, created_by: str) -> tuple[ProbeCard, dict[str, NDArray[Any]]]:
        """Card and tensors of the head that is best on its validation videos."""
        best = max(self.results, key=lambda result: result.validation_map)
        card = ProbeCard(
            kind="linear",
            label=self.label,
            names=self.selection.names,
            recipe=self.store.recipe.to_dict(),
            geometry=geometry_dict(self.store),
            split_digest=best.split_digest,
            split_seed=best.seed,
            seed=best.seed,
            validation_balanced_accuracy=None,
            validation_map=best.validation_map,
            created_by=created_by,
            features=self.features,
            link="sigmoid",
            strength=best.head.strength,
        )
        return card, {name: getattr(best.head, name) for name in ("mean", "scale", "weight", "intercept")}


def multilabel_probe(
    store: TokenStore,
    *,
    label: str,
    groups: tuple[str, ...] = ("source",),
    features: FeatureKind = "cls",
    strengths: Sequence[float] = STRENGTHS,
    seeds: Sequence[int] = (0, 1, 2),
    on_rows: Callable[[int], object] = lambda count: None,
) -> MultiLabelReport:
    """Fit one binary problem a class on each split, C chosen on validation, test read once a split.

    Args:
        store: an open token store.
        label: video column whose cells list labels with `;` between them.
        groups: video columns whose values must stay on one side of a split.
        features: see `read_features`.
        strengths: grid of C.
        seeds: one split each.
        on_rows: called with the number of rows after each read of features.

    Raises:
        UsageError: unusable columns, or too few sources for an honest split.
    """
    selection = select_multilabel(store, label, groups)
    matrix = read_features(store, selection.rows, features, on_rows)
    results = tuple(_once(matrix, selection, tuple(strengths), seed) for seed in seeds)
    return MultiLabelReport(
        store=store, label=label, groups=groups, features=features, selection=selection, results=results
    )


def select_multilabel(store: TokenStore, label: str, groups: tuple[str, ...]) -> MultiLabelRows:
    """Ok rows of labelled videos; names are sorted by their text.

    Raises:
        UsageError: unknown column, a labelled video without a group, or no class in 3 sources.
    """
    cells = video_text(store, label)
    columns, sha256 = {name: video_text(store, name) for name in groups}, video_text(store, "sha256")
    sets = [{part.strip() for part in cell.split(SEPARATOR)} - {""} for cell in cells]
    video, ok = store.column("video").astype(np.int64), store.ok_rows()
    rows = ok[np.array([bool(cell) for cell in cells])[video[ok]]]
    if not len(rows):
        raise UsageError(f"label column {label!r} is empty for every video with ok rows; label some videos.")
    used = video[rows]
    require_groups(store, columns, np.unique(used))
    components = leak_components(columns, sha256).take(used)
    names = sorted(set().union(*(sets[v] for v in np.unique(used).tolist())))
    targets = np.array([[name in sets[v] for name in names] for v in used.tolist()], bool).reshape(len(rows), -1)
    counts = [
        ClassCount(name=name, rows=int(column.sum()), sources=len(np.unique(components.codes[column])))
        for name, column in zip(names, targets.T, strict=True)
    ]
    enough = np.array([count.sources >= MIN_COMPONENTS for count in counts], bool)
    if not enough.any():
        raise UsageError(
            f"no label of {label!r} has positives in {MIN_COMPONENTS} or more sources, one each for train, validation "
            f"and test. Labels of a cell stand between {SEPARATOR!r}; add sources, or group less coarsely."
        )
    targets = targets[:, enough]
    return MultiLabelRows(
        rows=rows,
        names=tuple(np.array(names, dtype=object)[enough].tolist()),
        targets=targets,
        components=components,
        video=used,
        unlabelled=len(ok) - len(rows),
        without_label=int((~targets.any(axis=1)).sum()),
        classes=tuple(count for count in counts if count.sources >= MIN_COMPONENTS),
        excluded=tuple(count for count in counts if count.sources < MIN_COMPONENTS),
    )


def multilabel_split(selection: MultiLabelRows, seed: int) -> Split:
    """Whole components to train, validation and test, each class with its share of sources in every part.

    A component counts for every label that it holds; those without any are divided as a class of their own.

    Raises:
        UsageError: no division has every class in every part.
    """
    targets, components = selection.targets, selection.components
    row, code = np.nonzero(np.column_stack([targets, ~targets.any(axis=1)]))
    pairs = Category(codes=components.codes[row], names=components.names)
    labels = Category(codes=code, names=(*selection.names, ""))
    real = code < len(selection.names)
    held = Category(codes=pairs.codes[real], names=pairs.names)
    wanted = Category(codes=code[real], names=selection.names)
    for attempt in range(_ATTEMPTS):
        part_of = assign(pairs, labels, _RATIOS, f"{seed}:{attempt}")
        if covers(part_of, held, wanted, parts=len(PARTS)):
            train, validation, test = (np.flatnonzero(part_of[components.codes] == part) for part in range(len(PARTS)))
            names = np.array(selection.names, dtype=object)
            texts = Category.from_text([SEPARATOR.join(names[line].tolist()) for line in targets])
            split = build_split(components, texts, train=train, validation=validation, test=test)
            require_disjoint(split, components)
            return split
    raise UsageError(
        f"found no split by source that has every label in train, validation and test ({_ATTEMPTS} attempts): sources "
        "hold too many labels together. Add sources or leave rare labels out."
    )


def _once(
    matrix: NDArray[np.float32], selection: MultiLabelRows, strengths: tuple[float, ...], seed: int
) -> MultiLabelResult:
    split, targets = multilabel_split(selection, seed), selection.targets
    heads = fit_logistic(
        matrix[split.train], targets[split.train].astype(np.float32), link="sigmoid", strengths=strengths
    )
    head, validation = _choose(heads, matrix, selection, split.validation)
    probabilities = head.probabilities(matrix[split.test])
    scores, truth, owners = by_video(probabilities, selection, split.test)
    found = mean_average_precision(scores, truth)
    present = np.isfinite(found.per_class)
    return MultiLabelResult(
        seed=seed,
        split_digest=split.digest,
        head=head,
        validation_map=validation,
        test_videos=len(scores),
        test_sources=len(np.unique(owners)),
        map=found.value,
        map_windows=mean_average_precision(probabilities, targets[split.test]).value,
        chance=float(truth[:, present].mean()),
        per_class=found.per_class,
        interval=_interval(scores[:, present], truth[:, present], owners),
        ece=multilabel_ece(probabilities, targets[split.test]),
    )


def by_video(
    probabilities: NDArray[np.float64], selection: MultiLabelRows, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], Targets, NDArray[np.int64]]:
    """(videos, classes) mean probabilities and targets, and (videos,) component, of the videos of `rows`.

    Args:
        probabilities: (n, classes), one a position of `rows`.
    """
    _, first, place = np.unique(selection.video[rows], return_index=True, return_inverse=True)
    sums = np.zeros((len(first), probabilities.shape[1]))
    np.add.at(sums, place, probabilities)
    means = sums / np.bincount(place)[:, None]
    return means, selection.targets[rows[first]], selection.components.codes[rows[first]]


def _choose(
    heads: Sequence[LinearHead], matrix: NDArray[np.float32], selection: MultiLabelRows, rows: NDArray[np.int64]
) -> tuple[LinearHead, float]:
    """The head with the highest mAP on validation videos; ties go to the smaller loss, then to the stronger penalty."""
    merits = []
    for head in heads:
        probabilities = head.probabilities(matrix[rows])
        scores, truth, _ = by_video(probabilities, selection, rows)
        likelihood = np.where(selection.targets[rows], probabilities, 1 - probabilities)
        loss = -float(np.log(np.maximum(likelihood, 1e-300)).mean())
        merits.append((round(mean_average_precision(scores, truth).value, 12), -loss, -head.strength))
    best = max(range(len(heads)), key=merits.__getitem__)
    return heads[best], merits[best][0]


def _interval(scores: NDArray[np.float64], truth: Targets, owners: NDArray[np.int64]) -> Interval:
    """Cluster bootstrap of mAP: whole sources are drawn, every AP is computed again."""
    sources, owner = np.unique(owners, return_inverse=True)

    def score(weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        columns = zip(scores.T, truth.T, strict=True)
        values = np.stack([resampled_average_precision(one, which, weights[:, owner]) for one, which in columns])
        absent: NDArray[np.bool_] = np.asarray(np.isnan(values).any(axis=0))
        kept = np.isfinite(values)
        return np.where(kept, values, 0).sum(axis=0) / np.maximum(kept.sum(axis=0), 1), absent

    return bootstrap_over_sources(score, len(sources))
