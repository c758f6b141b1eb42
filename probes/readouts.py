"""Logistic and k-NN readouts of a token store: rows, split, head, scores."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.cli_errors import one_line
from coldframe.probes.features import FeatureKind, TokenStore, read_features
from coldframe.probes.logistic import STRENGTHS, LinearHead, choose_strength, fit_logistic
from coldframe.probes.metrics import balanced_accuracy, chance, confusion, decide, majority_top1, top1
from coldframe.probes.nearest import NEIGHBOURS, KnnReport, knn
from coldframe.probes.saved import ProbeCard, geometry_dict
from coldframe.probes.selection import Selection, select_rows
from coldframe.probes.split import require_disjoint, split_by_group


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticSeed:
    """One split, one head, one look at its test rows.

    Attributes:
        seed, split_digest: of the split.
        head: chosen on validation, where it reached `validation_balanced_accuracy`.
        at_edge: whether C is the first or last of the grid.
        confusion: (classes, classes) true class by row, predicted by column.
        balanced_accuracy, top1, chance, majority_top1: on test, in [0, 1].
    """

    seed: int
    split_digest: str
    head: LinearHead
    at_edge: bool
    validation_balanced_accuracy: float
    confusion: NDArray[np.int64]
    balanced_accuracy: float
    top1: float
    chance: float
    majority_top1: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticReport:
    """A logistic probe on several splits."""

    store: TokenStore
    label: str
    groups: tuple[str, ...]
    features: FeatureKind
    selection: Selection
    results: tuple[LogisticSeed, ...]

    def mean(self, metric: str) -> float:
        """Mean over splits of `balanced_accuracy` or `top1`."""
        return float(np.mean([getattr(result, metric) for result in self.results]))

    def sd(self, metric: str) -> float | None:
        """Standard deviation over splits (n - 1 below the line), None for one."""
        values = [getattr(result, metric) for result in self.results]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def card(self, created_by: str) -> tuple[ProbeCard, dict[str, NDArray[Any]]]:
        """Card and tensors of the head that is best on its validation rows."""
        best = max(self.results, key=lambda result: result.validation_balanced_accuracy)
        card = ProbeCard(
            kind="linear",
            label=self.label,
            names=self.selection.labels.names,
            recipe=self.store.recipe.to_dict(),
            geometry=geometry_dict(self.store),
            split_digest=best.split_digest,
            split_seed=best.seed,
            seed=best.seed,
            validation_balanced_accuracy=best.validation_balanced_accuracy,
            created_by=created_by,
            features=self.features,
            link=best.head.link,
            strength=best.head.strength,
        )
        return card, {name: getattr(best.head, name) for name in ("mean", "scale", "weight", "intercept")}


def logistic_probe(
    store: TokenStore,
    *,
    label: str,
    groups: tuple[str, ...] = ("source",),
    features: FeatureKind = "cls",
    strengths: Sequence[float] = STRENGTHS,
    seeds: Sequence[int] = (0, 1, 2),
    on_rows: Callable[[int], object] = lambda count: None,
) -> LogisticReport:
    """Fit a multinomial logistic head on each split, C chosen on validation, test read once a split.

    The head is solved to tolerance and has no seed of its own; what varies between seeds is the split.

    Args:
        store: an open token store.
        label: video column with the classes.
        groups: video columns whose values must stay on one side of a split.
        features: `cls`, or `mean` of the patch tokens of real frames.
        strengths: grid of C.
        seeds: one split each.
        on_rows: called with the number of rows after each read of features.

    Raises:
        UsageError: the columns do not allow an honest split.
    """
    selection = select_rows(store, label, groups)
    matrix = read_features(store, selection.rows, features, on_rows)
    results = tuple(_logistic_once(matrix, selection, tuple(strengths), seed) for seed in seeds)
    return LogisticReport(
        store=store, label=label, groups=groups, features=features, selection=selection, results=results
    )


def _logistic_once(
    matrix: NDArray[np.float32], selection: Selection, strengths: tuple[float, ...], seed: int
) -> LogisticSeed:
    labels = selection.labels.codes
    classes = len(selection.labels.names)
    split = split_by_group(selection.components, selection.labels, seed=seed)
    require_disjoint(split, selection.components)
    targets = np.eye(classes, dtype=np.float32)[labels[split.train]]
    heads = fit_logistic(matrix[split.train], targets, link="softmax", strengths=strengths)
    head, validation = choose_strength(heads, matrix[split.validation], labels[split.validation])
    counts = confusion(labels[split.test], decide(head.logits(matrix[split.test])), classes)
    return LogisticSeed(
        seed=seed,
        split_digest=split.digest,
        head=head,
        at_edge=head.strength in (min(strengths), max(strengths)),
        validation_balanced_accuracy=validation,
        confusion=counts,
        balanced_accuracy=balanced_accuracy(counts),
        top1=top1(counts),
        chance=chance(counts),
        majority_top1=majority_top1(labels[split.train], counts),
    )


def logistic_dict(report: LogisticReport) -> dict[str, Any]:
    """The report for `json.dumps`."""
    return {
        "protocol": "linear probe: multinomial logistic, L-BFGS, C chosen on validation, test read once a split",
        "store": report.store.name,
        "recipe_id": report.store.recipe_id,
        "encoder": {"name": report.store.recipe.encoder, "untrained": report.store.encoder.get("untrained")},
        "label": report.label,
        "group": list(report.groups),
        "features": report.features,
        "classes": [asdict(count) for count in report.selection.classes],
        "excluded_classes": [asdict(count) for count in report.selection.excluded],
        "seed_meaning": "Each seed is another split by source.",
        "seeds": [
            {
                **{name: value for name, value in vars(one).items() if name != "head"},
                "confusion": one.confusion.tolist(),
                "C": one.head.strength,
            }
            for one in report.results
        ],
        "balanced_accuracy": {"mean": report.mean("balanced_accuracy"), "sd": report.sd("balanced_accuracy")},
        "top1": {"mean": report.mean("top1"), "sd": report.sd("top1")},
    }


def logistic_text(report: LogisticReport) -> str:
    """The report as people read it."""
    facts = logistic_dict(report)
    head = f"{'split':<6} {'C':>9} {'validation':>11} {'balanced acc':>13} {'chance':>7} {'top-1':>6} {'majority':>9}"
    rows = [
        f"{one.seed:<6} {one.head.strength:>9.2g} {one.validation_balanced_accuracy:>11.3f} "
        f"{one.balanced_accuracy:>13.3f} {one.chance:>7.3f} {one.top1:>6.3f} {one.majority_top1:>9.3f}"
        for one in report.results
    ]
    sd = report.sd("balanced_accuracy")
    lines = [
        f"{facts['protocol']}.",
        f"store {one_line(facts['store'])}, features {report.features}, label {one_line(report.label)}",
        "",
        head,
        *rows,
        f"mean {report.mean('balanced_accuracy'):.3f}, sd {'-' if sd is None else f'{sd:.3f}'} over splits",
    ]
    edge = sum(one.at_edge for one in report.results)
    if edge:
        lines.append(f"warning: C is at the edge of the grid in {edge} of {len(report.results)} splits. Widen it.")
    if report.store.encoder.get("untrained"):
        lines.append("warning: the encoder is UNTRAINED: its weights are random, so these numbers are a baseline.")
    return "\n".join(lines)


def knn_probe(
    store: TokenStore,
    *,
    label: str,
    groups: tuple[str, ...] = ("source",),
    features: FeatureKind = "cls",
    neighbours: Sequence[int] = NEIGHBOURS,
    on_rows: Callable[[int], object] = lambda count: None,
) -> KnnReport:
    """`knn` on the labelled rows of a store, sources as in `logistic_probe`.

    Raises:
        UsageError: unusable columns, or no k that every query can have.
    """
    selection = select_rows(store, label, groups)
    matrix = read_features(store, selection.rows, features, on_rows)
    return knn(matrix, selection.labels, selection.components, neighbours)
