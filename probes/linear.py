"""Linear probe of a token store: split by source, fit on train, choose on validation, read test once a seed.

The head has a closed form and so no seed of its own; what varies between seeds is the split.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.features import FeatureKind, TokenStore, read_features
from coldframe.probes.metrics import balanced_accuracy, chance, confusion, majority_top1, recalls, top1
from coldframe.probes.ridge import choose, fit_ridge
from coldframe.probes.selection import Selection, select_rows
from coldframe.probes.split import require_disjoint, split_by_group
from coldframe.store.text import path_to_text


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedResult:
    """One split, one head, one look at its test rows.

    Attributes:
        seed: of the split.
        split_digest: sha256 of the division, in hexadecimal.
        part_rows, part_sources: rows and leak components in train, validation and test.
        penalty: chosen on validation, where it reached `validation_balanced_accuracy`.
        confusion: (classes, classes) test rows; true class by row, predicted by column.
        balanced_accuracy, top1: on test, in [0, 1].
        chance: balanced accuracy without looking at the features.
        majority_top1: top-1 of always answering train's commonest class.
    """

    seed: int
    split_digest: str
    part_rows: dict[str, int]
    part_sources: dict[str, int]
    penalty: float
    validation_balanced_accuracy: float
    confusion: NDArray[np.int64]
    balanced_accuracy: float
    top1: float
    chance: float
    majority_top1: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearReport:
    """What was read and what came out. `coldframe.probes.report` prints it.

    Attributes:
        store: its path as text.
        encoder: name of the encoder in the recipe.
        untrained, licence: of the encoder's weights; None where the store does not say.
        recipe_id, label, groups, features: what was asked for, and of which recipe.
        selection: rows that were used and why others were not.
        results: one a seed.
    """

    store: str
    encoder: str
    untrained: bool | None
    licence: str | None
    recipe_id: str
    label: str
    groups: tuple[str, ...]
    features: FeatureKind
    selection: Selection
    results: tuple[SeedResult, ...]

    def mean(self, metric: str) -> float:
        """Mean over seeds of `balanced_accuracy` or `top1`."""
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
    on_rows: Callable[[int], object] = lambda count: None,
) -> LinearReport:
    """Fit and score a linear probe on each split.

    Args:
        store: an open token store.
        label: video column with the classes; videos without a value are left out and counted.
        groups: video columns whose values must stay on one side of a split; equal file contents always do.
        features: see `read_features`.
        seeds: one split each.
        on_rows: called with the number of rows after each read of features.

    Raises:
        UsageError: the columns do not allow an honest split.
        StoreError: ok rows hold inf or nan.
    """
    selection = select_rows(store, label, groups)
    matrix = read_features(store, selection.rows, features, on_rows)
    return LinearReport(
        store=path_to_text(store.path),
        encoder=store.recipe.encoder,
        untrained=store.encoder.get("untrained"),
        licence=store.encoder.get("licence"),
        recipe_id=store.recipe_id,
        label=label,
        groups=groups,
        features=features,
        selection=selection,
        results=tuple(_probe_once(matrix, selection, seed) for seed in seeds),
    )


def _probe_once(matrix: NDArray[np.float32], selection: Selection, seed: int) -> SeedResult:
    components, labels = selection.components, selection.labels
    classes = len(labels.names)
    split = split_by_group(components, labels, seed=seed)
    require_disjoint(split, components)
    heads = fit_ridge(matrix[split.train], labels.codes[split.train], classes)
    head, validation = choose(heads, matrix[split.validation], labels.codes[split.validation], classes)
    counts = confusion(labels.codes[split.test], head.predict(matrix[split.test]), classes)
    return SeedResult(
        seed=seed,
        split_digest=split.digest,
        part_rows={name: len(rows) for name, rows in split.parts().items()},
        part_sources={name: len(np.unique(components.codes[rows])) for name, rows in split.parts().items()},
        penalty=head.penalty,
        validation_balanced_accuracy=validation,
        confusion=counts,
        balanced_accuracy=balanced_accuracy(counts),
        top1=top1(counts),
        chance=chance(counts),
        majority_top1=majority_top1(labels.codes[split.train], counts),
    )


def class_recalls(report: LinearReport) -> list[float | None]:
    """Recall of each class in the summed confusion matrix, None where it has no test row."""
    return [None if np.isnan(value) else float(value) for value in recalls(report.confusion())]
