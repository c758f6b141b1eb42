"""Linear probe of a token store: split by source, fit on train, choose on validation, read test once a seed.

The head has a closed form and so no seed of its own; what varies between seeds is the split. A split from a file
has no seeds: it is one result, or one a fold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.features import FeatureKind, TokenStore, read_features
from coldframe.probes.listed import listed_rows
from coldframe.probes.metrics import (
    balanced_accuracy,
    chance,
    confusion,
    decide,
    macro_f1,
    majority_top1,
    recalls,
    top1,
)
from coldframe.probes.ranking import class_mean_recall, top_k
from coldframe.probes.ridge import RidgeHead, choose, fit_ridge
from coldframe.probes.sample_efficiency import FractionResult, sample_efficiency
from coldframe.probes.sealed import TestReads, record_read
from coldframe.probes.selection import Selection, select_rows
from coldframe.probes.split import Split, require_disjoint, split_by_group
from coldframe.probes.split_manifest import SplitManifest

_TOP = 5  # of a ranking; needs more classes than that


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedResult:
    """One split, one head, one look at its test rows.

    Attributes:
        seed: of the split; the number of the fold for a split from a file.
        split_digest: sha256 of the division, in hexadecimal.
        part_rows, part_sources: rows and leak components in train, validation and test.
        parameters: numbers that were fitted in the head.
        head: chosen on validation, where it reached `validation_balanced_accuracy`.
        confusion: (classes, classes) test rows; true class by row, predicted by column.
        split: rows of each part, as positions in the selection.
        scores: (n, classes) of the test rows, in the order of `split.test`.
        balanced_accuracy, macro_f1, top1: on test, in [0, 1].
        top5, class_mean_recall5: likewise; None for 5 classes or fewer, where they would be 1.
        chance: balanced accuracy without looking at the features.
        majority_top1: top-1 of always answering train's commonest class.
    """

    seed: int
    split_digest: str
    part_rows: dict[str, int]
    part_sources: dict[str, int]
    parameters: int
    head: RidgeHead
    validation_balanced_accuracy: float
    confusion: NDArray[np.int64]
    split: Split
    scores: NDArray[np.float64]
    balanced_accuracy: float
    macro_f1: float
    top1: float
    top5: float | None
    class_mean_recall5: float | None
    chance: float
    majority_top1: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearReport:
    """What was read and what came out. `coldframe.probes.report` prints it.

    Attributes:
        store: its path as text.
        encoder: name of the encoder in the recipe.
        untrained, licence: of the encoder's weights; None where the store does not say.
        control: frame order of the store; anything but `none` is a negative control.
        clip_cls: what `cls` of a clip is in this store (`Recipe.clip_cls`).
        recipe_id, label, groups, features: what was asked for, and of which recipe.
        selection: rows that were used and why others were not.
        results: one a seed, or one a fold.
        split: the split from a file; None if each seed is a split.
        reads: how often the file's test part was read; None without a file, where nobody counts.
        fractions: sample efficiency on the first split; empty if not asked for.
    """

    store: str
    encoder: str
    untrained: bool | None
    licence: str | None
    control: str
    clip_cls: str
    recipe_id: str
    label: str
    groups: tuple[str, ...]
    features: FeatureKind
    selection: Selection
    results: tuple[SeedResult, ...]
    split: SplitManifest | None
    reads: TestReads | None
    fractions: tuple[FractionResult, ...]

    def mean(self, metric: str) -> float:
        """Mean over seeds of a score by the name of its field, such as `balanced_accuracy`."""
        return float(np.mean([getattr(result, metric) for result in self.results]))

    def sd(self, metric: str) -> float | None:
        """Standard deviation over seeds (n - 1 below the line), None for one seed."""
        if len(self.results) < 2:
            return None
        return float(np.std([getattr(result, metric) for result in self.results], ddof=1))

    def confusion(self) -> NDArray[np.int64]:
        """(classes, classes) sum over seeds; a row counts once for each test set that it is in."""
        total: NDArray[np.int64] = np.sum([result.confusion for result in self.results], axis=0)
        return total


def linear_probe(
    store: TokenStore,
    *,
    label: str,
    groups: tuple[str, ...] = ("source",),
    features: FeatureKind = "cls",
    seeds: Sequence[int] = (0, 1, 2),
    split: SplitManifest | None = None,
    again: str | None = None,
    fractions: Sequence[float] = (),
    on_rows: Callable[[int], object] = lambda count: None,
) -> LinearReport:
    """Fit and score a linear probe on each split.

    Args:
        store: an open token store.
        label: video column with the classes; videos without a value are left out and counted.
        groups: video columns whose values must stay on one side of a split; equal file contents always do.
        features: see `read_features`.
        seeds: one split each; not used with `split`.
        split: a division from a file, instead of seeds; its `by` is used instead of `groups`.
        again: reason for reading its test part once more.
        fractions: shares of the train and validation sources to refit with, in (0, 1].
        on_rows: called with the number of rows after each read of features.

    Raises:
        UsageError: the columns do not allow an honest split, or the test part was read before.
        StoreError: ok rows hold inf or nan.
    """
    selection, splits = _divide(store, label, groups, seeds, split)
    matrix = read_features(store, selection.rows, features, on_rows)
    what = {"probe": "linear", "features": features, "label": label, "recipe_id": store.recipe_id}
    reads = None if split is None or split.path is None else record_read(split, what, again)
    return LinearReport(
        store=store.name,
        encoder=store.recipe.encoder,
        untrained=store.encoder.get("untrained"),
        licence=store.encoder.get("licence"),
        control=store.recipe.control,
        clip_cls=store.recipe.clip_cls,
        recipe_id=store.recipe_id,
        label=label,
        groups=groups if split is None else split.by,
        features=features,
        selection=selection,
        results=tuple(_probe_once(matrix, selection, division, seed) for seed, division in splits),
        split=split,
        reads=reads,
        fractions=sample_efficiency(matrix, selection, splits[0][1], fractions),
    )


def _divide(
    store: TokenStore, label: str, groups: tuple[str, ...], seeds: Sequence[int], manifest: SplitManifest | None
) -> tuple[Selection, list[tuple[int, Split]]]:
    """Rows to use and their divisions, each with its seed or fold."""
    if manifest is not None:
        selection, divisions = listed_rows(store, label, manifest)
        return selection, list(enumerate(divisions))
    selection = select_rows(store, label, groups)
    splits = [(seed, split_by_group(selection.components, selection.labels, seed=seed)) for seed in seeds]
    for _, split in splits:
        require_disjoint(split, selection.components)
    return selection, splits


def _probe_once(matrix: NDArray[np.float32], selection: Selection, split: Split, seed: int) -> SeedResult:
    components, labels = selection.components, selection.labels
    classes = len(labels.names)
    heads = fit_ridge(matrix[split.train], labels.codes[split.train], classes)
    head, validation = choose(heads, matrix[split.validation], labels.codes[split.validation], classes)
    scores, true = head.scores(matrix[split.test]), labels.codes[split.test]
    counts = confusion(true, decide(scores), classes)
    return SeedResult(
        seed=seed,
        split_digest=split.digest,
        part_rows={name: len(rows) for name, rows in split.parts().items()},
        part_sources={name: len(np.unique(components.codes[rows])) for name, rows in split.parts().items()},
        parameters=head.weight.size + head.intercept.size,
        head=head,
        validation_balanced_accuracy=validation,
        confusion=counts,
        split=split,
        scores=scores,
        balanced_accuracy=balanced_accuracy(counts),
        macro_f1=macro_f1(counts),
        top1=top1(counts),
        top5=top_k(scores, true, _TOP) if classes > _TOP else None,
        class_mean_recall5=class_mean_recall(scores, true, _TOP) if classes > _TOP else None,
        chance=chance(counts),
        majority_top1=majority_top1(labels.codes[split.train], counts),
    )


def class_recalls(report: LinearReport) -> list[float | None]:
    """Recall of each class in the summed confusion matrix, None where it has no test row."""
    return [None if np.isnan(value) else float(value) for value in recalls(report.confusion())]
