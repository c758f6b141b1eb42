import numpy as np
import pytest

from coldframe.probes import metrics
from coldframe.probes.source_counts import METRICS, any_class_absent, source_counts


@pytest.mark.parametrize("name", METRICS)
def test_sums_over_sources_give_the_metric_of_the_whole_set(name: str) -> None:
    rng = np.random.default_rng(3)
    true, predicted, sources = rng.integers(0, 4, 90), rng.integers(0, 5, 90), rng.integers(0, 7, 90)
    counts = source_counts(true, predicted, sources, classes=6, count=8)  # class 5 and source 7 never occur
    expected = getattr(metrics, name)(metrics.confusion(true, predicted, 6))
    assert METRICS[name](counts.sum(axis=0)) == pytest.approx(expected, abs=1e-15)
    doubled = np.concatenate([np.arange(90), np.flatnonzero(sources == 2)])  # source 2 drawn twice
    expected = getattr(metrics, name)(metrics.confusion(true[doubled], predicted[doubled], 6))
    weights = np.where(np.arange(8) == 2, 2.0, 1.0)
    assert METRICS[name](np.tensordot(weights, counts, 1)) == pytest.approx(expected, abs=1e-15)


def test_nothing_tested_is_nan() -> None:
    for metric in METRICS.values():
        assert np.isnan(metric(np.zeros((3, 4))))


def test_absent_classes_are_seen() -> None:
    counts = source_counts(np.array([0, 1]), np.array([0, 0]), np.array([0, 1]), classes=3, count=2)
    present = np.array([True, True, False])
    assert any_class_absent(counts, present).tolist() == [True, True]
    assert not any_class_absent(counts.sum(axis=0), present)
