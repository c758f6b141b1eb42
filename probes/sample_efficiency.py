"""Sample efficiency: the same readout with a share of the train sources, on the same test rows.

Sources are ranked by a hash of draw and name, and the first share of them is taken, so that the subsets of one draw
are nested, whole sources, and the same whatever the order of rows. The penalty is chosen again on the same share of
the validation sources. Small shares vary most and are drawn most often.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.metrics import balanced_accuracy, confusion
from coldframe.probes.ridge import choose, fit_ridge
from coldframe.probes.selection import Selection
from coldframe.probes.split import Split

_DRAWS = ((0.01, 5), (0.999, 3), (1.0, 1))  # up to this share, so many draws


@dataclass(frozen=True, kw_only=True)
class FractionResult:
    """Readouts on one share of the train sources.

    Attributes:
        fraction: share, in (0, 1].
        sources: train sources that it is.
        balanced_accuracy: on all test rows, one a draw.
        classes_without_rows: classes that have no train row, one number a draw.
    """

    fraction: float
    sources: int
    balanced_accuracy: tuple[float, ...]
    classes_without_rows: tuple[int, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.balanced_accuracy))

    @property
    def sd(self) -> float | None:
        """Over draws (n - 1 below the line); None for one draw."""
        return float(np.std(self.balanced_accuracy, ddof=1)) if len(self.balanced_accuracy) > 1 else None


def sample_efficiency(
    matrix: NDArray[np.float32], selection: Selection, split: Split, fractions: Sequence[float]
) -> tuple[FractionResult, ...]:
    """One result a fraction, ascending.

    Raises:
        UsageError: a fraction outside (0, 1].
    """
    for fraction in fractions:
        if not 0 < fraction <= 1:
            raise UsageError(f"the fraction is {fraction:g}; allowed is above 0 up to 1, such as 0.01,0.1,1.")
    return tuple(_at(matrix, selection, split, fraction) for fraction in sorted(set(fractions)))


def nested_subset(selection: Selection, rows: NDArray[np.int64], fraction: float, draw: int) -> NDArray[np.int64]:
    """Those of `rows` that belong to the first `fraction` of their sources, at least one source."""
    codes = np.unique(selection.components.codes[rows])
    names = selection.components.names
    ranked = sorted(codes.tolist(), key=lambda code: hashlib.sha256(f"{draw}:{names[code]}".encode()).digest())
    kept = ranked[: max(1, round(fraction * len(ranked)))]
    return rows[np.isin(selection.components.codes[rows], kept)]


def _at(matrix: NDArray[np.float32], selection: Selection, split: Split, fraction: float) -> FractionResult:
    labels, classes = selection.labels.codes, len(selection.labels.names)
    scores, empty, sources = [], [], 0
    for draw in range(next(count for limit, count in _DRAWS if fraction <= limit)):
        train = nested_subset(selection, split.train, fraction, draw)
        validation = nested_subset(selection, split.validation, fraction, draw)
        heads = fit_ridge(matrix[train], labels[train], classes)
        head, _ = choose(heads, matrix[validation], labels[validation], classes)
        scores.append(balanced_accuracy(confusion(labels[split.test], head.predict(matrix[split.test]), classes)))
        empty.append(classes - len(np.unique(labels[train])))
        sources = len(np.unique(selection.components.codes[train]))
    return FractionResult(
        fraction=fraction, sources=sources, balanced_accuracy=tuple(scores), classes_without_rows=tuple(empty)
    )
