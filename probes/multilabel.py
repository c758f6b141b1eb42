"""Multi-label readout: several labels a video, one binary logistic problem a class, scored by mAP.

mAP is over videos, each with the mean of its windows' probabilities; classes without a positive in the test part are
left out of the mean and counted (scikit-learn would count them as 0).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.bootstrap import Interval, bootstrap_over_sources
from coldframe.probes.calibration import Calibration, multilabel_calibration
from coldframe.probes.features import FeatureKind, TokenStore, read_varied_features
from coldframe.probes.logistic import STRENGTHS, LinearHead, fit_logistic
from coldframe.probes.multilabel_rows import MultiLabelRows, Targets, divide_multilabel
from coldframe.probes.ranking import mean_average_precision, resampled_average_precision
from coldframe.probes.sealed import TestReads, count_read, require_readable
from coldframe.probes.split import Split
from coldframe.probes.split_manifest import SplitManifest


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiLabelResult:
    """One split, one head, one look at its test videos.

    Attributes:
        seed, split_digest: of the split.
        head: its C is chosen on validation by mAP, where it reached `validation_map`.
        test_videos, test_sources: in the test part.
        scores, truth, owners: (videos, classes) mean probabilities and labels, (videos,) component, of the test videos.
        map, map_windows: over videos, and over windows taken as items; in (0, 1].
        chance: mean prevalence among test videos of the classes in the mean.
        per_class: (classes,) AP over videos; NaN where the test part has no positive.
        interval: of `map`, over sources.
        calibration: of windows, each class a binary problem, averaged over classes.
    """

    seed: int
    split_digest: str
    head: LinearHead
    validation_map: float
    test_videos: int
    test_sources: int
    scores: NDArray[np.float64]
    truth: Targets
    owners: NDArray[np.int64]
    map: float
    map_windows: float
    chance: float
    per_class: NDArray[np.float64]
    interval: Interval
    calibration: Calibration

    @property
    def absent(self) -> int:
        """Classes without a positive in the test part."""
        return int(np.isnan(self.per_class).sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiLabelReport:
    """A multi-label probe on several splits.

    Attributes:
        store, label, groups, features: what was asked for.
        selection: rows that were used.
        results: one a seed, or one a fold.
        interval: of the mean of `map` over seeds, over sources.
        split, reads: as in `ProbeReport`.
    """

    store: TokenStore
    label: str
    groups: tuple[str, ...]
    features: FeatureKind
    selection: MultiLabelRows
    results: tuple[MultiLabelResult, ...]
    interval: Interval
    split: SplitManifest | None
    reads: TestReads | None


def multilabel_probe(
    store: TokenStore,
    *,
    label: str,
    groups: tuple[str, ...] = ("source",),
    features: FeatureKind = "cls",
    strengths: Sequence[float] = STRENGTHS,
    seeds: Sequence[int] = (0, 1, 2),
    split: SplitManifest | None = None,
    again: str | None = None,
    on_rows: Callable[[int], object] = lambda count: None,
) -> MultiLabelReport:
    """Fit one binary problem a class on each split, C chosen on validation, test read once a split.

    Args:
        store: an open token store.
        label: video column whose cells list labels with `;` between them.
        groups: video columns whose values must stay on one side of a split.
        features: see `read_features`.
        strengths: grid of C.
        seeds: one split each; not used with `split`.
        split: a division from a file; its `by` is used instead of `groups`. Labels without a positive in each of its
            parts are left out and listed.
        again: reason for reading its test part once more.
        on_rows: called with the number of rows after each read of features.

    Raises:
        UsageError: unusable columns, too few sources for an honest split, or the test part was read before.
    """
    require_readable(split, again)
    selection, splits = divide_multilabel(store, label, groups, seeds, split)
    matrix = read_varied_features(store, selection.rows, features, on_rows)
    what = {"probe": "multi-label", "features": features, "label": label, "recipe_id": store.recipe_id}
    reads = count_read(split, what, again)
    results = tuple(_once(matrix, selection, tuple(strengths), seed, division) for seed, division in splits)
    return MultiLabelReport(
        store=store,
        label=label,
        groups=groups if split is None else split.by,
        features=features,
        selection=selection,
        results=results,
        interval=_averaged_interval(results),
        split=split,
        reads=reads,
    )


def _once(
    matrix: NDArray[np.float32], selection: MultiLabelRows, strengths: tuple[float, ...], seed: int, split: Split
) -> MultiLabelResult:
    targets = selection.targets
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
        scores=scores[:, present],
        truth=truth[:, present],
        owners=owners,
        map=found.value,
        map_windows=mean_average_precision(probabilities, targets[split.test]).value,
        chance=float(truth[:, present].mean()),
        per_class=found.per_class,
        interval=_interval([(scores[:, present], truth[:, present], owners)]),
        calibration=multilabel_calibration(head.logits(matrix[split.test]), targets[split.test]),
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


def _averaged_interval(results: Sequence[MultiLabelResult]) -> Interval:
    """Interval of the mean mAP of several test sets, which share the sources that are drawn."""
    fewest = min(results, key=lambda result: result.interval.sources).interval
    return fewest if fewest.low is None else _interval([(one.scores, one.truth, one.owners) for one in results])


def _interval(tests: Sequence[tuple[NDArray[np.float64], Targets, NDArray[np.int64]]]) -> Interval:
    """Cluster bootstrap of mean mAP: whole sources are drawn, every AP is computed again."""
    sources = np.unique(np.concatenate([owners for _, _, owners in tests]))
    places = [np.searchsorted(sources, owners) for _, _, owners in tests]

    def score(weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        means, absent = [], np.zeros(len(weights), bool)
        for (scores, truth, _), place in zip(tests, places, strict=True):
            columns = zip(scores.T, truth.T, strict=True)
            values = np.stack([resampled_average_precision(one, which, weights[:, place]) for one, which in columns])
            kept = np.isfinite(values)
            absent |= ~kept.all(axis=0)
            means.append(np.where(kept, values, 0).sum(axis=0) / np.maximum(kept.sum(axis=0), 1))
        return np.mean(means, axis=0), absent

    return bootstrap_over_sources(score, len(sources))
