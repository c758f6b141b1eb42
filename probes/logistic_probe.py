"""Logistic probe of a token store: rows, splits, heads over a grid of C, and their report."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.division import divide
from coldframe.probes.features import FeatureKind, TokenStore, read_varied_features
from coldframe.probes.logistic import STRENGTHS, LinearHead, choose_strength, fit_logistic, unsolved
from coldframe.probes.probe_report import FOLD_MEANING, ProbeReport
from coldframe.probes.scored import Scored, score
from coldframe.probes.sealed import count_read, require_readable
from coldframe.probes.selection import Selection
from coldframe.probes.split import Split
from coldframe.probes.split_manifest import SplitManifest
from coldframe.probes.svg_lines import Line, Plot


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticReport(ProbeReport[LinearHead]):
    """A logistic readout on several splits.

    Attributes:
        features: what was read.
        strengths: grid of C, ascending.
        validation: (results, strengths) balanced accuracy there.
    """

    features: FeatureKind
    strengths: tuple[float, ...]
    validation: NDArray[np.float64]

    title = "logistic probe"
    seeds_are_splits = True

    @property
    def protocol(self) -> str:
        return "linear probe: multinomial logistic, L-BFGS, C chosen on validation, test read once a split"

    @property
    def seed_meaning(self) -> str:
        if self.split is None:
            return "Each seed is another split by source; the head is solved to tolerance and has no seed of its own."
        if self.split.folds:
            return FOLD_MEANING
        return "One split from a file; the head is solved to tolerance, so there is no spread over seeds."

    @property
    def reads_cls(self) -> bool:
        return self.features == "cls"

    def chosen(self, result: Scored[LinearHead]) -> tuple[str, str]:
        return "C", f"{result.head.strength:.2g}"

    def details(self) -> dict[str, Any]:
        return {"features": self.features, "strengths": list(self.strengths)}

    def seed_details(self, place: int) -> dict[str, Any]:
        head = self.results[place].head
        return {"C": head.strength, "at_edge": self._at_edge(head), "validation": self.validation[place].tolist()}

    def facts(self) -> dict[str, str]:
        return {"features": self.features}

    def plots(self) -> list[Plot]:
        lines = [
            Line(
                name=f"seed {result.seed}",
                points=tuple(zip(np.log10(self.strengths), accuracy, strict=True)),
                chosen=True,
            )
            for result, accuracy in zip(self.results, self.validation.tolist(), strict=True)
        ]
        return [Plot(title="Balanced accuracy on validation", x_name="log10 C", lines=tuple(lines))]

    def notes(self) -> Iterator[str]:
        yield from unsolved([result.head for result in self.results])
        edge = sum(self._at_edge(result.head) for result in self.results)
        if edge:
            yield f"C is at the edge of the grid in {edge} of {len(self.results)} splits: widen it."

    def _at_edge(self, head: LinearHead) -> bool:
        return head.strength in (self.strengths[0], self.strengths[-1])


def logistic_probe(
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
) -> LogisticReport:
    """Fit a multinomial logistic head on each split, C chosen on validation, test read once a split.

    The head is solved to tolerance and has no seed of its own; what varies between seeds is the split.

    Args:
        store, label, groups, features, seeds, split, again, on_rows: as for `linear_probe`.
        strengths: grid of C.

    Raises:
        UsageError: the columns do not allow an honest split, or the test part was read before.
        StoreError: ok rows hold inf or nan.
    """
    require_readable(split, again)
    grid = tuple(sorted(set(strengths)))
    selection, splits = divide(store, label, groups, seeds, split)
    matrix = read_varied_features(store, selection.rows, features, on_rows)
    what = {"probe": "logistic", "features": features, "label": label, "recipe_id": store.recipe_id}
    reads = count_read(split, what, again)
    fitted = [_fit_once(matrix, selection, division, grid, seed) for seed, division in splits]
    return LogisticReport(
        store=store,
        label=label,
        groups=groups if split is None else split.by,
        features=features,
        strengths=grid,
        selection=selection,
        results=tuple(result for result, _ in fitted),
        validation=np.array([accuracy for _, accuracy in fitted]),
        split=split,
        reads=reads,
    )


def _fit_once(
    matrix: NDArray[np.float32], selection: Selection, split: Split, strengths: tuple[float, ...], seed: int
) -> tuple[Scored[LinearHead], list[float]]:
    """The chosen head on test, and every head's balanced accuracy on validation."""
    labels = selection.labels.codes
    targets = np.eye(len(selection.labels.names), dtype=np.float32)[labels[split.train]]
    heads = fit_logistic(matrix[split.train], targets, link="softmax", strengths=strengths)
    place, accuracy = choose_strength(heads, matrix[split.validation], labels[split.validation])
    head = heads[place]
    result = score(
        selection,
        split,
        head.logits(matrix[split.test]),
        seed=seed,
        head=head,
        parameters=head.weight.size + head.intercept.size,
        validation=accuracy[place],
        logits=True,
    )
    return result, accuracy
