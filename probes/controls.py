"""Controls that need nothing but the store: label permutations, and what sources give away.

    window_shuffle    labels permuted among train windows, and among validation windows. Finds labels in features and
                      test rows in train; blind to leaks between windows of one source.
    source_relabel    every source gets the labels of another, in all parts. Above chance: sources straddle the split.
                      Where sources hold several classes, these are also renamed within each source.
    label_null        labels permuted among train sources, and among validation sources: the null of the real score.
    same_source       share of test windows whose nearest train window is of the same source or content.
    near_duplicates   confirmed copies with one side in train and the other in test.

The penalty is chosen again in every permutation. All are made with the ridge readout, which has a closed form.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.category import Category
from coldframe.probes.metrics import balanced_accuracy, chance, confusion
from coldframe.probes.near_duplicates import NearDuplicates
from coldframe.probes.permutation import Null
from coldframe.probes.refit import Refit
from coldframe.probes.selection import Selection
from coldframe.probes.split import Split
from coldframe.probes.verdict import Control, above_null, at_chance

PERMUTATIONS = 999
FEW_PERMUTATIONS = 199  # for a mean, which is known sooner than a small p
_BLOCK_BYTES = 64 << 20


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
    observed = _score(problem, refit, labels, labels)
    few = min(FEW_PERMUTATIONS, permutations)
    drawn = {
        name: Null(scores=np.array(list(_counted(make(problem, refit, count, seed), on_fit))))
        for name, make, count in (
            ("window_shuffle", _window_shuffle, few),
            ("source_relabel", _source_relabel, few),
            ("label_null", _source_shuffle, permutations),
        )
    }
    level = chance(confusion(labels[problem.split.test], labels[problem.split.test], problem.classes))
    sources = problem.test_sources
    return [
        at_chance(
            "window_shuffle",
            "balanced accuracy minus chance, labels permuted among windows of a part",
            drawn["window_shuffle"],
            level,
            sources,
            two_sided=True,
        ),
        at_chance(
            "source_relabel",
            "balanced accuracy minus chance, labels permuted among all sources",
            drawn["source_relabel"],
            level,
            sources,
            two_sided=False,
        ),
        above_null(
            "label_null",
            "balanced accuracy minus its mean under labels permuted among sources",
            observed,
            drawn["label_null"],
            sources,
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


def permute_sources(
    labels: NDArray[np.int64], components: NDArray[np.int64], rows: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """`labels` with those of `rows` replaced: each source gets the labels of another, repeated to its length.

    Where that source holds several classes, they are renamed among each other as well: if every source held all classes
    in the same order, exchanging sources alone would change nothing, and the real score would be its own null.
    """
    out = labels.copy()
    order = np.argsort(components[rows], kind="stable")
    _, starts = np.unique(components[rows][order], return_index=True)
    members = np.split(rows[order], starts[1:])
    for mine, other in zip(members, rng.permutation(len(members)).tolist(), strict=True):
        given = np.resize(labels[members[other]], len(mine))
        held, code = np.unique(given, return_inverse=True)
        out[mine] = rng.permutation(held)[code] if len(held) > 1 else given
    return out


def _window_shuffle(problem: Problem, refit: Refit, count: int, seed: int) -> Iterator[float]:
    labels = problem.selection.labels.codes
    rng = np.random.default_rng([seed, 1])
    for _ in range(count):
        permuted = labels.copy()
        for rows in (problem.split.train, problem.split.validation):
            permuted[rows] = rng.permutation(labels[rows])
        yield _score(problem, refit, permuted, labels)


def _source_relabel(problem: Problem, refit: Refit, count: int, seed: int) -> Iterator[float]:
    labels, components = problem.selection.labels.codes, problem.selection.components.codes
    everything = np.arange(len(labels))
    level = chance(confusion(labels[problem.split.test], labels[problem.split.test], problem.classes))
    rng = np.random.default_rng([seed, 2])
    for _ in range(count):
        permuted = permute_sources(labels, components, everything, rng)
        test = permuted[problem.split.test]
        # A relabelled test part can lack a class; its chance is then higher, which is no leak.
        own_level = chance(confusion(test, test, problem.classes))
        yield _score(problem, refit, permuted, permuted) - own_level + level


def _source_shuffle(problem: Problem, refit: Refit, count: int, seed: int) -> Iterator[float]:
    labels, components = problem.selection.labels.codes, problem.selection.components.codes
    rng = np.random.default_rng([seed, 3])
    for _ in range(count):
        permuted = permute_sources(labels, components, problem.split.train, rng)
        yield _score(problem, refit, permute_sources(permuted, components, problem.split.validation, rng), labels)


def _score(problem: Problem, refit: Refit, fitted: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Balanced accuracy on test by `truth` of the head that `fitted` gives."""
    split = problem.split
    predicted = refit.predict(fitted[split.train], fitted[split.validation])
    return balanced_accuracy(confusion(truth[split.test], predicted, problem.classes))


def _counted(scores: Iterator[float], on_fit: Callable[[int], object]) -> Iterator[float]:
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
