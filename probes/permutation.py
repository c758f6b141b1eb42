"""Permutation tests over sources: paired sign flips, swapped predictions, Holm's correction, null distributions.

A z-test over windows of clustered data rejects a true null in 25 % of cases at a nominal 5 %; flipping whole sources
keeps 5 %. Nothing here looks at single windows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.source_counts import HITS, TRUE, Counts, Metric

Alternative = Literal["greater", "two-sided"]
FLIPS = 9999
MAX_EXACT = 16  # sources; 2^16 sign patterns are enumerated
DETECTABLE_SDS = 2.8  # 1.96 + 0.84: found with 80 % power at 5 %
_SEED = 0
_BLOCK_BYTES = 64 << 20
_ROUNDING = 1e-9  # of the statistic's scale; sums of the same numbers in another order count as equal


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """A difference and how often chance alone gives one as large.

    Attributes:
        effect: the observed difference.
        p: (1 + as large) / (1 + flips), or the exact share.
        flips: sign patterns that were tried.
        exact: whether these were all of them.
        sources: independent units.
        alternative: which differences count as large.
    """

    effect: float
    p: float
    flips: int
    exact: bool
    sources: int
    alternative: Alternative


def sign_flip(
    differences: NDArray[np.float64], *, alternative: Alternative = "two-sided", flips: int = FLIPS, seed: int = _SEED
) -> PairedTest:
    """Test that the sum of `differences` (sources,) is 0, by flipping the sign of each.

    Each entry is what one source contributes to the difference of two scores, so their sum is the effect. All sign
    patterns are tried for up to 16 sources, else `flips` random ones.
    """
    observed = float(differences.sum())
    exact = len(differences) <= MAX_EXACT
    sums = [signs @ differences for signs in _signs(len(differences), flips, seed)]
    scale = float(np.abs(differences).sum())
    return _paired(observed, np.concatenate(sums), scale, exact, len(differences), alternative)


def balanced_differences(first: Counts, second: Counts) -> NDArray[np.float64]:
    """(sources,) what each source contributes to the difference of two balanced accuracies on the same rows.

    Recalls share their denominators, so the difference is a sum over sources and `sign_flip` applies to it.

    Args:
        first, second: (sources, 3, classes) from `source_counts`.
    """
    support = first[:, TRUE].sum(axis=0)
    present = support > 0
    gained = (first[:, HITS] - second[:, HITS])[:, present] / support[present]
    held = first[:, TRUE].sum(axis=1) > 0
    differences: NDArray[np.float64] = gained.sum(axis=1)[held] / np.count_nonzero(present)
    return differences


def swap_test(
    first: Counts,
    second: Counts,
    metric: Metric,
    *,
    alternative: Alternative = "two-sided",
    flips: int = FLIPS,
    seed: int = _SEED,
) -> PairedTest:
    """Test that two readouts score equally, for a metric that is no mean over rows, such as macro-F1.

    The two predictions of a source are swapped with probability 1/2 and the whole metric is computed again.
    """
    held = first[:, TRUE].sum(axis=1) > 0
    one, other = first[held].reshape(held.sum(), -1), second[held].reshape(held.sum(), -1)
    shape = first.shape[1:]

    def difference(signs: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = signs @ (one - other) / 2
        middle = (one + other).sum(axis=0) / 2
        return metric((middle + moved).reshape(-1, *shape)) - metric((middle - moved).reshape(-1, *shape))

    observed = float(difference(np.ones((1, len(one))))[0])
    values = np.concatenate([difference(signs) for signs in _signs(len(one), flips, seed)])
    return _paired(observed, values, 1.0, len(one) <= MAX_EXACT, len(one), alternative)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of one family, in its order: step-down Bonferroni (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    worst = 0.0
    for place, test in enumerate(order.tolist()):
        worst = max(worst, min(1.0, (len(p_values) - place) * p_values[test]))
        adjusted[test] = worst
    return [float(value) for value in adjusted]


@dataclass(frozen=True, kw_only=True, eq=False)
class Null:
    """Scores under permuted labels.

    Attributes:
        scores: (permutations,).
    """

    scores: NDArray[np.float64]

    @property
    def mean(self) -> float:
        return float(self.scores.mean())

    @property
    def sd(self) -> float:
        return float(self.scores.std(ddof=1))

    @property
    def detectable_excess(self) -> float:
        """Excess over chance that would be found with 80 % power at 5 %; larger means a weaker test."""
        return DETECTABLE_SDS * self.sd

    def quantiles(self) -> tuple[float, float]:
        """2.5 % and 97.5 % of the scores."""
        low, high = np.quantile(self.scores, [0.025, 0.975])
        return float(low), float(high)

    def p_value(self, observed: float) -> float:
        """(1 + scores at least as high) / (1 + permutations)."""
        return float((1 + np.count_nonzero(self.scores >= observed - _ROUNDING)) / (1 + len(self.scores)))


def _signs(sources: int, flips: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """(block, sources) of -1 and 1: every pattern for few sources, random ones for many."""
    if sources <= MAX_EXACT:
        yield _as_signs(np.arange(2**sources)[:, None] >> np.arange(sources) & 1)
        return
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK_BYTES // (8 * sources))
    for start in range(0, flips, block):
        yield _as_signs(rng.integers(0, 2, (min(block, flips - start), sources)))


def _as_signs(bits: NDArray[np.int64]) -> NDArray[np.float64]:
    return (2 * bits - 1).astype(np.float64)


def _paired(
    observed: float,
    values: NDArray[np.float64],
    scale: float,
    exact: bool,
    sources: int,
    alternative: Alternative,
) -> PairedTest:
    if alternative == "two-sided":
        large = np.abs(values) >= abs(observed) - _ROUNDING * scale
    else:
        large = values >= observed - _ROUNDING * scale
    found, tried = int(np.count_nonzero(large)), len(values)
    # All patterns hold the observed one; random patterns are given it, so that p is never 0.
    p = found / tried if exact else (1 + found) / (1 + tried)
    return PairedTest(effect=observed, p=p, flips=tried, exact=exact, sources=sources, alternative=alternative)
