"""Linear probe of a token store: split by source, fit on train, choose on validation, read test once a seed.

The head has a closed form and so no seed of its own; what varies between seeds is the split. A split from a file
has no seeds: it is one result, or one a fold.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.division import divide
from coldframe.probes.features import FeatureKind, TokenStore, read_varied_features
from coldframe.probes.probe_report import FOLD_MEANING, ProbeReport
from coldframe.probes.ridge import RidgeHead, choose, fit_ridge
from coldframe.probes.sample_efficiency import sample_efficiency
from coldframe.probes.scored import Scored, score
from coldframe.probes.sealed import count_read, require_readable
from coldframe.probes.selection import Selection
from coldframe.probes.split import Split
from coldframe.probes.split_manifest import SplitManifest


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearReport(ProbeReport[RidgeHead]):
    """A ridge readout on several splits.

    Attributes:
        features: what was read.
    """

    features: FeatureKind

    title = "linear probe"
    no_calibration = "a ridge head's scores are no probabilities; coldframe-probe logistic has some"
    seeds_are_splits = True

    @property
    def protocol(self) -> str:
        return "linear probe: closed-form ridge, one-vs-all, lambda chosen on validation, test read once a seed"

    @property
    def seed_meaning(self) -> str:
        if self.split is None:
            return "Each seed is another split by source; the closed-form head has no seed of its own."
        if self.split.folds:
            return FOLD_MEANING
        return "One split from a file; the closed-form head has no seed, so there is no spread over seeds."

    @property
    def reads_cls(self) -> bool:
        return self.features == "cls"

    def chosen(self, result: Scored[RidgeHead]) -> tuple[str, str]:
        return "lambda", f"{result.head.penalty:.2g}"

    def details(self) -> dict[str, Any]:
        fractions = [{**asdict(result), "mean": result.mean, "sd": result.sd} for result in self.fractions]
        return {"features": self.features, "fractions": fractions}

    def seed_details(self, place: int) -> dict[str, Any]:
        return {"penalty": self.results[place].head.penalty}

    def facts(self) -> dict[str, str]:
        return {"features": self.features}


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
    require_readable(split, again)
    selection, splits = divide(store, label, groups, seeds, split)
    matrix = read_varied_features(store, selection.rows, features, on_rows)
    what = {"probe": "linear", "features": features, "label": label, "recipe_id": store.recipe_id}
    reads = count_read(split, what, again)
    return LinearReport(
        store=store,
        label=label,
        groups=groups if split is None else split.by,
        features=features,
        selection=selection,
        results=tuple(_probe_once(matrix, selection, division, seed) for seed, division in splits),
        split=split,
        reads=reads,
        fractions=sample_efficiency(matrix, selection, splits[0][1], fractions),
    )


def _probe_once(matrix: NDArray[np.float32], selection: Selection, split: Split, seed: int) -> Scored[RidgeHead]:
    labels = selection.labels
    classes = len(labels.names)
    heads = fit_ridge(matrix[split.train], labels.codes[split.train], classes)
    head, validation = choose(heads, matrix[split.validation], labels.codes[split.validation], classes)
    return score(
        selection,
        split,
        head.scores(matrix[split.test]),
        seed=seed,
        head=head,
        parameters=head.weight.size + head.intercept.size,
        validation=validation,
        logits=False,
    )
