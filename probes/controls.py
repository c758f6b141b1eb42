"""Controls that need nothing but the store: label permutations, and what sources give away.

    window_shuffle    labels permuted among train windows, and among validation windows. Finds labels in features and
                      test rows in train; blind to leaks between windows of one source.
    source_relabel    every source gets the labels of another, in all parts. Above chance: sources straddle the split.
    label_null        labels permuted among train sources, and among validation sources: the null of the real score,
                      with the larger p of two exchanges (see `relabelling`).
    same_source       share of test windows whose nearest train window is of the same source or content.
    near_duplicates   confirmed copies with one side in train and the other in test.

The penalty is chosen again in every permutation. All are made with the ridge readout, which has a closed form.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.category import Category
from coldframe.probes.metrics import chance, confusion
from coldframe.probes.near_duplicates import NearDuplicates
from coldframe.probes.permutation import Null
from coldframe.probes.refit import Refit
from coldframe.probes.relabelling import Exchange, standardised_excess
from coldframe.probes.selection import Selection
from coldframe.probes.source_counts import Counts, balanced_accuracy, source_counts
from coldframe.probes.split import Split
from coldframe.probes.verdict import Control, above_null, at_chance

PERMUTATIONS = 999
FEW_PERMUTATIONS = 199  # for a mean, which is known sooner than a small p
_BLOCK_BYTES = 64 << 20
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """One split of labelled features.

    Attributes:
        matrix: (n, dim) float32.
        selection: classes and components of the n rows.
        split: train, validation and test rows.
    """

    matrix: NDArray[np.float32]
    selection: Selection
    split: Split

    @property
    def classes(self) -> int:
        return len(self.selection.labels.names)

    @property
    def test_sources(self) -> int:
        return len(np.unique(self.selection.components.codes[self.split.test]))


def label_controls(
    problem: Problem,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    on_fit: Callable[[int], object] = lambda count: None,
) -> list[Control]:
    """`window_shuffle`, `source_relabel` and `label_null`; judge them with `verdict.judged`.

    Args:
        problem: what is permuted.
        permutations: of `label_null`; the other two take at most 199.
        seed: of the permutations.
        on_fit: called with 1 after each fit.
    """
    refit = Refit(problem.matrix, problem.split, problem.classes)
    labels = problem.selection.labels.codes
    few = min(FEW_PERMUTATIONS, permutations)
    shuffled, relabelled = (
        Null(scores=np.array(list(_counted(make(problem, refit, few, seed), on_fit))))
        for make in (_window_shuffle, _source_relabel)
    )
    predicted = _refitted(problem, refit, labels)
    real = _counts(problem, predicted, labels)
    drawn = list(_counted(_source_shuffle(problem, refit, permutations, seed), on_fit))
    exchanged = list(_test_exchange(problem, predicted, permutations, seed))
    level = chance(confusion(labels[problem.split.test], labels[problem.split.test], problem.classes))
    sources = problem.test_sources
    return [
        at_chance(
            "window_shuffle",
            "balanced accuracy minus chance, labels permuted among windows of a part",
            shuffled,
            level,
            sources,
            two_sided=True,
        ),
        at_chance(
            "source_relabel",
            "balanced accuracy minus chance, labels permuted among all sources",
            relabelled,
            level,
            sources,
            two_sided=False,
        ),
        above_null(
            "label_null",
            "balanced accuracy minus its mean under labels permuted among sources",
            _balanced(real),
            Null(scores=np.array([_balanced(counts) for counts in drawn])),
            sources,
            # Each is fair under its own assumption about how long the sources of a class are (see `relabelling`).
            p=max(
                _share(standardised_excess, real, drawn),
                _share(_balanced, real, exchanged),
            ),
        ),
    ]


def label_fits(permutations: int) -> int:
    """Fits that `label_controls` makes."""
    return permutations + 2 * min(FEW_PERMUTATIONS, permutations)


def leak_controls(
    problem: Problem, source_column: Category, copies: NearDuplicates, video: NDArray[np.int64]
) -> list[Control]:
    """`same_source` and `near_duplicates`.

    Args:
        problem: what is checked.
        source_column: source of each row as the store says it, before anything was joined.
        copies: what the search for near-duplicates found.
        video: (n,) video of each row.
    """
    return [_same_source(problem, source_column), _copies_apart(problem, copies, video)]


def _window_shuffle(problem: Problem, refit: Refit, count: int, seed: int) -> Iterator[float]:
    labels = problem.selection.labels.codes
    rng = np.random.default_rng([seed, 1])
    for _ in range(count):
        permuted = labels.copy()
        for rows in (problem.split.train, problem.split.validation):
            permuted[rows] = rng.permutation(labels[rows])
        yield _balanced(_counts(problem, _refitted(problem, refit, permuted), labels))


def _source_relabel(problem: Problem, refit: Refit, count: int, seed: int) -> Iterator[float]:
    labels, components = problem.selection.labels.codes, problem.selection.components.codes
    exchange = Exchange(labels, components, np.arange(len(labels)))
    level = chance(confusion(labels[problem.split.test], labels[problem.split.test], problem.classes))
    rng = np.random.default_rng([seed, 2])
    for _ in range(count):
        permuted = exchange.draw(rng)
        test = permuted[problem.split.test]
        # A relabelled test part can lack a class; its chance is then higher, which is no leak.
        own_level = chance(confusion(test, test, problem.classes))
        predicted = _refitted(problem, refit, permuted)
        yield _balanced(_counts(problem, predicted, permuted)) - own_level + level


def _source_shuffle(problem: Problem, refit: Refit, count: int, seed: int) -> Iterator[Counts]:
    labels, components = problem.selection.labels.codes, problem.selection.components.codes
    train, validation = (Exchange(labels, components, rows) for rows in (problem.split.train, problem.split.validation))
    rng = np.random.default_rng([seed, 3])
    for _ in range(count):
        permuted = validation.draw(rng, into=train.draw(rng))
        yield _counts(problem, _refitted(problem, refit, permuted), labels)


def _test_exchange(problem: Problem, predicted: NDArray[np.int64], count: int, seed: int) -> Iterator[Counts]:
    """Counts of the real head's answers, its test sources having exchanged their labels."""
    labels, components = problem.selection.labels.codes, problem.selection.components.codes
    exchange = Exchange(labels, components, problem.split.test)
    rng = np.random.default_rng([seed, 4])
    for _ in range(count):
        yield _counts(problem, predicted, exchange.draw(rng))


def _refitted(problem: Problem, refit: Refit, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    return refit.predict(labels[problem.split.train], labels[problem.split.validation])


def _counts(problem: Problem, predicted: NDArray[np.int64], truth: NDArray[np.int64]) -> Counts:
    """Counts of each source on test, by the classes `truth` of all rows."""
    rows, components = problem.split.test, problem.selection.components
    codes = components.codes[rows]
    return source_counts(truth[rows], predicted, codes, classes=problem.classes, count=len(components.names))


def _share(statistic: Callable[[Counts], float], real: Counts, permuted: Sequence[Counts]) -> float:
    """p-value of `statistic`."""
    return Null(scores=np.array([statistic(counts) for counts in permuted])).p_value(statistic(real))


def _balanced(counts: Counts) -> float:
    return float(balanced_accuracy(counts.sum(axis=0)))


def _counted(scores: Iterator[_T], on_fit: Callable[[int], object]) -> Iterator[_T]:
    for score in scores:
        on_fit(1)
        yield score


def _same_source(problem: Problem, source_column: Category) -> Control:
    split = problem.split
    nearest = split.train[_nearest(problem.matrix[split.test], problem.matrix[split.train])]
    codes = (problem.selection.components.codes, source_column.codes)
    shared = np.any([one[split.test] == one[nearest] for one in codes], axis=0)
    share = float(shared.mean())
    return Control(
        name="same_source",
        what="share of test windows whose nearest train window is of the same source",
        effect=share,
        sources=problem.test_sources,
        verdict="fail" if share else "pass",
        reason=f"{np.count_nonzero(shared)} of {len(shared)} test windows" if share else "no test window",
    )


def _copies_apart(problem: Problem, copies: NearDuplicates, video: NDArray[np.int64]) -> Control:
    name, what = "near_duplicates", "confirmed copies with one side in train and the other in test"
    if copies.threshold is None:
        reason = "too few pairs of windows to say what is unusually alike"
        return Control(name=name, what=what, effect=None, verdict="not_applicable", reason=reason)
    train, test = (set(video[rows].tolist()) for rows in (problem.split.train, problem.split.test))
    apart = [
        pair
        for pair in copies.confirmed()
        if (pair.first in train and pair.second in test) or (pair.first in test and pair.second in train)
    ]
    return Control(
        name=name,
        what=what,
        effect=float(len(apart)),
        verdict="fail" if apart else "pass",
        reason=f"{len(copies.confirmed())} confirmed pairs in all, {len(copies.pairs)} candidates",
    )


def _nearest(queries: NDArray[np.float32], gallery: NDArray[np.float32]) -> NDArray[np.int64]:
    """(n,) position in the gallery of the largest cosine; centred on the gallery, as encoders' cosines are all high."""
    mean = gallery.mean(axis=0, dtype=np.float64)
    unit = _unit(gallery - mean)
    step = max(1, _BLOCK_BYTES // (8 * len(gallery)))
    found = [(_unit(queries[s : s + step] - mean) @ unit.T).argmax(axis=1) for s in range(0, len(queries), step)]
    return np.concatenate(found)


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return unit
