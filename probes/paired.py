"""Paired comparison: two readouts on the same test rows, as one line of the verdict table.

The difference of their balanced accuracies is a sum over sources, so its test flips the signs of whole sources, and its
interval draws whole sources for both.
"""

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.bootstrap import MIN_SOURCES, paired_bootstrap
from coldframe.probes.controls import Problem
from coldframe.probes.metrics import decide
from coldframe.probes.permutation import DETECTABLE_SDS, balanced_differences, sign_flip
from coldframe.probes.ridge import RidgeHead, choose, fit_ridge
from coldframe.probes.source_counts import Counts, balanced_accuracy, source_counts
from coldframe.probes.verdict import MOST_UNDETECTED, Control, ends


def fitted(problem: Problem, matrix: NDArray[np.float32]) -> RidgeHead:
    """The ridge readout of other features (n, dim) of the problem's rows, its penalty chosen on validation."""
    split, labels = problem.split, problem.selection.labels.codes
    heads = fit_ridge(matrix[split.train], labels[split.train], problem.classes)
    return choose(heads, matrix[split.validation], labels[split.validation], problem.classes)[0]


def difference(
    problem: Problem,
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    *,
    name: str,
    what: str,
    not_judged: str = "",
) -> Control:
    """Balanced accuracy of `first` minus that of `second`; judge it with `verdict.judged`.

    Args:
        first, second: (n_test, classes) scores of two readouts, in the order of the split's test rows.
        name, what: of the control.
        not_judged: why the difference is shown without a verdict; empty if it is judged.
    """
    one, other = _counts(problem, first), _counts(problem, second)
    per_source = balanced_differences(one, other)
    test = sign_flip(per_source, alternative="greater")
    detectable = DETECTABLE_SDS * float(np.sqrt(np.square(per_source).sum()))
    return Control(
        name=name,
        what=what,
        effect=test.effect,
        interval=ends(paired_bootstrap(one, other, balanced_accuracy)),
        p=test.p,
        draws=test.flips,
        sources=test.sources,
        detectable=detectable,
        verdict="not_applicable" if not_judged else "inconclusive",
        reason=not_judged or weak(test.sources, detectable),
    )


def weak(sources: int, detectable: float) -> str:
    """Why the test could not have found an effect; empty if it could."""
    if sources < MIN_SOURCES:
        return f"{sources} test sources, and {MIN_SOURCES} are needed"
    if detectable > MOST_UNDETECTED:
        return f"with {sources} test sources only a difference of {detectable:.2f} or more would be seen"
    return ""


def _counts(problem: Problem, scores: NDArray[np.float64]) -> Counts:
    test = problem.split.test
    return source_counts(
        problem.selection.labels.codes[test],
        decide(scores),
        problem.selection.components.codes[test],
        classes=problem.classes,
        count=len(problem.selection.components.names),
    )
