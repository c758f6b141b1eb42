"""Probe report: what every readout that gives one class a row reports, whatever its head is."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.features import TokenStore
from coldframe.probes.metrics import recalls
from coldframe.probes.sample_efficiency import FractionResult
from coldframe.probes.scored import Head, Scored
from coldframe.probes.sealed import TestReads
from coldframe.probes.selection import Selection
from coldframe.probes.split_manifest import SplitManifest
from coldframe.probes.svg_lines import Plot

FOLD_MEANING = "Each number is a fold of the split: it is tested, the next one validates, the others train."


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeReport(ABC, Generic[Head]):
    """What was read and what came out. `coldframe.probes.report` prints it.

    Attributes:
        store: that was read.
        label, groups: what was asked for.
        selection: rows that were used and why others were not.
        results: one a seed, or one a fold.
        split: the split from a file; None without one.
        reads: how often the file's test part was read; None without a file, where nobody counts.
        fractions: sample efficiency on the first split; empty if not asked for.
        title: name of the readout.
        no_calibration: why there is no calibration; empty where there is one.
        seeds_are_splits: whether two seeds without a file should be two divisions.
    """

    title: ClassVar[str]
    no_calibration: ClassVar[str] = ""
    seeds_are_splits: ClassVar[bool]

    store: TokenStore
    label: str
    groups: tuple[str, ...]
    selection: Selection
    results: tuple[Scored[Head], ...]
    split: SplitManifest | None
    reads: TestReads | None
    fractions: tuple[FractionResult, ...] = ()

    @property
    @abstractmethod
    def protocol(self) -> str:
        """What was done, as one clause."""

    @property
    @abstractmethod
    def seed_meaning(self) -> str:
        """What the numbers in the column `seed` stand for."""

    @property
    @abstractmethod
    def reads_cls(self) -> bool:
        """Whether the head has seen [CLS]."""

    @abstractmethod
    def chosen(self, result: Scored[Head]) -> tuple[str, str]:
        """Name and value of what was chosen on validation."""

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """Entries of the JSON object that other readouts do not have."""

    @abstractmethod
    def seed_details(self, place: int) -> dict[str, Any]:
        """Likewise, of the result at `place`."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """How it was fitted, by name, for people."""

    def plots(self) -> list[Plot]:
        """Curves of the fit."""
        return []

    def notes(self) -> Iterator[str]:
        """What to know before quoting a number, beyond what holds for every readout."""
        yield from ()

    def best(self) -> Scored[Head]:
        """The result whose head is best on its validation rows."""
        return max(self.results, key=lambda result: result.validation_balanced_accuracy)

    def mean(self, metric: str) -> float:
        """Mean over seeds of a score by the name of its field, such as `balanced_accuracy`."""
        return float(np.mean([getattr(result, metric) for result in self.results]))

    def sd(self, metric: str) -> float | None:
        """Standard deviation over seeds (n - 1 below the line), None for one seed."""
        return _sd([getattr(result, metric) for result in self.results])

    def confusion(self) -> NDArray[np.int64]:
        """(classes, classes) sum over seeds; a row counts once for each test set that it is in."""
        total: NDArray[np.int64] = np.sum([result.confusion for result in self.results], axis=0)
        return total

    def recalls(self) -> list[float | None]:
        """Recall of each class in the summed confusion matrix, None where it has no test row."""
        return [None if np.isnan(value) else float(value) for value in recalls(self.confusion())]

    def calibration(self) -> dict[str, dict[str, float | None]]:
        """Mean and sd over seeds of every number of `Calibration`; empty where there is none."""
        found = [asdict(result.calibration) for result in self.results if result.calibration is not None]
        return {
            name: {"mean": float(np.mean(values)), "sd": _sd(values)}
            for name, values in {name: [one[name] for one in found] for name in (found[0] if found else ())}.items()
        }


def _sd(values: list[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
