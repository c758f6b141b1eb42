import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from coldframe.probes.bootstrap import (
    Interval,
    averaged_bootstrap,
    cluster_bootstrap,
    cluster_robust,
    design_effect,
    paired_bootstrap,
)
from coldframe.probes.source_counts import METRICS, Counts, balanced_accuracy, macro_f1, source_counts, top1


def of_hits(hits: NDArray[np.int64], rows: int) -> Counts:
    """Two classes, all rows truly of class 0; `hits` of the `rows` rows of each source are right."""
    counts = np.zeros((len(hits), 3, 2))
    counts[:, 0, 0] = hits
    counts[:, 1, 0] = rows
    counts[:, 2] = np.stack([hits, rows - hits], axis=1)
    return counts


def width(interval: Interval) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


def test_clustered_windows_get_a_wide_interval() -> None:
    # Field case 53: 40 videos of 25 windows with uniform accuracies; over windows the width is 0.063.
    rng = np.random.default_rng(53)
    hits = rng.binomial(25, rng.random(40))
    assert width(cluster_bootstrap(of_hits(hits, 25), top1)) > 0.14
    assert width(cluster_robust(hits.astype(float), np.full(40, 25.0))) > 0.14
    effect = design_effect(hits.astype(float), np.full(40, 25.0))
    assert effect.effect is not None
    assert effect.effect > 5
    windows = np.repeat(np.eye(2)[[0, 1]], [hits.sum(), 1000 - hits.sum()], axis=0)[:, 0]
    over_windows = windows[rng.integers(0, 1000, (2000, 1000))].mean(axis=1)
    assert np.diff(np.quantile(over_windows, [0.025, 0.975]))[0] < 0.07


def test_coverage_with_50_sources_and_icc_03() -> None:
    rng = np.random.default_rng(0)
    truth, total = 0.6, (1 - 0.3) / 0.3  # beta-binomial with intra-class correlation 1 / (1 + a + b)
    covered = {"bootstrap": 0, "robust": 0}
    for repeat in range(300):
        hits = rng.binomial(20, rng.beta(truth * total, (1 - truth) * total, 50))
        intervals = {
            "bootstrap": cluster_bootstrap(of_hits(hits, 20), top1, replicates=500, seed=repeat),
            "robust": cluster_robust(hits.astype(float), np.full(50, 20.0)),
        }
        for name, interval in intervals.items():
            assert interval.low is not None
            assert interval.high is not None
            covered[name] += interval.low <= truth <= interval.high
    assert covered["bootstrap"] / 300 >= 0.9
    assert covered["robust"] / 300 >= 0.9
    assert max(covered.values()) < 300  # an interval that always covers would be no interval


@pytest.mark.parametrize("name", METRICS)
def test_resampling_equals_recomputing_from_rows(name: str) -> None:
    rng = np.random.default_rng(7)
    true, predicted, sources = rng.integers(0, 3, 200), rng.integers(0, 3, 200), np.arange(200) // 10
    counts = source_counts(true, predicted, sources, classes=3, count=20)
    found = cluster_bootstrap(counts, METRICS[name], replicates=4000)
    values = []
    for _ in range(1500):
        rows = np.concatenate([np.flatnonzero(sources == s) for s in rng.integers(0, 20, 20)])
        values.append(METRICS[name](source_counts(true[rows], predicted[rows], rows * 0, classes=3, count=1)[0]))
    assert (found.low, found.high) == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.015)


def test_few_sources_give_no_interval_and_say_why() -> None:
    for interval in (
        cluster_bootstrap(of_hits(np.arange(9), 9), top1),
        cluster_robust(np.arange(9.0), np.full(9, 9.0)),
        paired_bootstrap(of_hits(np.arange(9), 9), of_hits(np.arange(9), 9), top1),
    ):
        assert (interval.low, interval.high, interval.sources) == (None, None, 9)
        assert interval.reason == "9 sources, and an interval needs at least 10"
    assert cluster_bootstrap(of_hits(np.arange(10), 10), top1).reason == ""


def test_sources_without_test_rows_are_no_sources() -> None:
    counts = of_hits(np.arange(12), 12)
    padded = np.concatenate([counts, np.zeros((50, 3, 2))])
    assert cluster_bootstrap(padded, top1) == cluster_bootstrap(counts, top1)
    assert cluster_robust(padded[:, 0].sum(axis=1), padded[:, 1].sum(axis=1)).sources == 12


def test_replicates_that_lack_a_class_are_counted() -> None:
    counts = np.zeros((10, 3, 2))
    counts[:9, :, 0] = 1.0  # class 1 lives in the last source, absent from (9/10)^10 = 0.349 of the draws
    counts[9, :, 1] = 1.0
    interval = cluster_bootstrap(counts, balanced_accuracy, replicates=4000)
    assert interval.absent_share == pytest.approx(0.349, abs=0.03)
    assert (interval.low, interval.high) == (1.0, 1.0)


def test_pairing_removes_what_both_share() -> None:
    rng = np.random.default_rng(0)
    hits = rng.binomial(18, rng.random(30))
    first, second = of_hits(hits + 2, 20), of_hits(hits, 20)
    paired = paired_bootstrap(first, second, top1)
    assert (paired.low, paired.high) == pytest.approx((0.1, 0.1))
    assert width(cluster_bootstrap(first, top1)) > 0.15


def test_average_over_test_sets_is_of_the_average() -> None:
    rng = np.random.default_rng(0)
    one, two = of_hits(rng.binomial(20, 0.5, 30), 20), of_hits(rng.binomial(20, 0.8, 30), 20)
    one[20:] = 0.0
    two[:10] = 0.0
    both = averaged_bootstrap([one, two], top1)
    centre = (top1(one.sum(axis=0)) + top1(two.sum(axis=0))) / 2
    assert both.sources == 20
    assert both.low is not None
    assert both.high is not None
    assert both.low < centre < both.high
    assert averaged_bootstrap([one, one], macro_f1) == cluster_bootstrap(one, macro_f1)


def test_design_effect_by_hand() -> None:
    # All rows of a source agree: correlation 1, and 40 rows in 4 sources are worth 4.
    full = design_effect(np.array([10.0, 0.0, 10.0, 0.0]), np.full(4, 10.0))
    assert (full.icc, full.effect, full.effective_rows) == (1.0, 10.0, 4.0)
    none = design_effect(np.full(4, 5.0), np.full(4, 10.0))
    assert (none.icc, none.effect) == (0.0, 1.0)
    assert design_effect(np.array([1.0, 0.0]), np.ones(2)).icc is None
    assert design_effect(np.full(3, 10.0), np.full(3, 10.0)).effect is None


def test_cluster_robust_interval_by_hand() -> None:
    hits, rows = np.array([3.0, 1, 4, 1, 5, 2, 2, 0, 3, 5]), np.array([5.0, 4, 5, 5, 5, 3, 4, 5, 4, 5])
    share = 26 / 45
    se = (10 / 9 * sum((h - share * n) ** 2 for h, n in zip(hits, rows, strict=True))) ** 0.5 / 45
    half = stats.t.ppf(0.975, 9) * se
    found = cluster_robust(hits, rows)
    assert (found.low, found.high) == pytest.approx((share - half, share + half), rel=1e-9)


def test_seed_decides_the_interval() -> None:
    counts = of_hits(np.random.default_rng(0).binomial(20, 0.5, 30), 20)
    assert cluster_bootstrap(counts, top1, seed=1) == cluster_bootstrap(counts, top1, seed=1)
    assert cluster_bootstrap(counts, top1, seed=1) != cluster_bootstrap(counts, top1, seed=2)
