import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from coldframe.errors import UsageError
from coldframe.probes.calibration import calibration, log_softmax, multilabel_calibration


def test_by_hand() -> None:
    # Confidences .8 (bin 12), .8 and .6 (bin 9); hits 1, 0, 1.
    probabilities = np.array([[0.8, 0.2], [0.8, 0.2], [0.4, 0.6]])
    found = calibration(np.log(probabilities), np.array([0, 1, 1]))
    assert found.ece == pytest.approx((abs(1 - 1.6) + abs(1 - 0.6)) / 3)
    assert found.nll == pytest.approx(-np.log([0.8, 0.2, 0.6]).mean())
    assert found.brier == pytest.approx((0.08 + 1.28 + 0.32) / 3)


def test_confidence_of_exactly_1_is_in_the_last_bin() -> None:
    # 0.95 and 1.0 share the last of 15 bins: gap |1 + 0 - 1.95| / 2. A bin of its own for 1.0 would give .525.
    with np.errstate(divide="ignore"):
        logs = np.log(np.array([[0.95, 0.05], [1.0, 0.0]]))
    assert calibration(logs, np.array([0, 1])).ece == pytest.approx(0.475)
    assert calibration(logs, np.array([0, 1])).nll == np.inf
    assert calibration(logs, np.array([0, 0])).ece == pytest.approx(0.025)


def test_nll_equals_sklearn_and_survives_large_logits() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(200, 5)) * 3, rng.integers(0, 5, 200)
    logs = log_softmax(logits)
    assert calibration(logs, labels).nll == pytest.approx(log_loss(labels, np.exp(logs), labels=range(5)))
    assert calibration(log_softmax(np.array([[2000.0, 0.0]])), np.array([1])).nll == 2000.0


def test_calibrated_outcomes_are_near_the_simulated_value_and_it_is_not_0() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(400, 4)) * 2
    logs = log_softmax(logits)
    labels = np.array([rng.choice(4, p=row) for row in np.exp(logs)])
    honest = calibration(logs, labels)
    assert 0.02 < honest.ece_if_calibrated < 0.1
    assert honest.ece == pytest.approx(honest.ece_if_calibrated, abs=0.03)
    overconfident = calibration(log_softmax(logits * 5), labels)
    assert overconfident.ece > 3 * overconfident.ece_if_calibrated
    assert overconfident.ece_equal_mass == pytest.approx(overconfident.ece, abs=0.03)


def test_equal_mass_bins_hold_equally_many() -> None:
    # All 30 rows fall into one bin of equal width, where over- and underconfidence cancel; equal mass shows them.
    probabilities = np.linspace(0.94, 0.99, 30)
    logs = np.log(np.stack([probabilities, 1 - probabilities], axis=1))
    labels = (np.arange(30) < 2).astype(int)
    assert calibration(logs, labels).ece == pytest.approx(abs(28 - probabilities.sum()) / 30)
    expected = [abs(2 * (i >= 1) - probabilities[2 * i : 2 * i + 2].sum()) for i in range(15)]
    assert calibration(logs, labels).ece_equal_mass == pytest.approx(sum(expected) / 30)


def test_rows_that_do_not_sum_to_1_are_refused() -> None:
    with pytest.raises(UsageError, match="row 1 sum to 2"):
        calibration(np.log(np.array([[0.5, 0.5], [1.0, 1.0]])), np.array([0, 1]))
    with pytest.raises(UsageError, match="0 rows"):
        calibration(np.zeros((0, 2)), np.zeros(0, int))


def test_multilabel_is_the_mean_over_classes() -> None:
    logits = np.log(np.array([[0.9, 0.1], [0.9, 0.1]]) / np.array([[0.1, 0.9], [0.1, 0.9]]))
    targets = np.array([[True, False], [False, False]])
    assert multilabel_calibration(logits, targets).ece == pytest.approx((0.4 + 0.1) / 2)
    # one class is always there and one never: pooled over both, a half would look calibrated
    assert multilabel_calibration(np.zeros((4, 2)), np.array([[True, False]] * 4)).ece == 0.5


def test_multilabel_nll_and_brier_are_scikit_learns_of_each_label() -> None:
    rng = np.random.default_rng(2)
    logits, targets = rng.normal(size=(300, 6)) * 3, rng.random((300, 6)) < [0.02, 0.1, 0.3, 0.5, 0.9, 0.0]
    probabilities = 1 / (1 + np.exp(-logits))
    found = multilabel_calibration(logits, targets)
    columns = list(zip(targets.T, probabilities.T, strict=True))
    assert found.nll == pytest.approx(np.mean([log_loss(truth, p, labels=[False, True]) for truth, p in columns]))
    assert found.brier == pytest.approx(np.mean([brier_score_loss(truth, p, pos_label=True) for truth, p in columns]))


def test_multilabel_ece_has_its_equal_mass_form_and_its_simulated_value() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(600, 5)) * 2
    targets = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    honest, overconfident = multilabel_calibration(logits, targets), multilabel_calibration(logits * 5, targets)
    assert 0.01 < honest.ece_if_calibrated < 0.08
    assert honest.ece == pytest.approx(honest.ece_if_calibrated, abs=0.02)
    assert honest.ece_equal_mass == pytest.approx(honest.ece, abs=0.03)
    assert overconfident.ece > 3 * overconfident.ece_if_calibrated


def test_multilabel_probabilities_are_not_rounded_to_0_or_1() -> None:
    found = multilabel_calibration(np.array([[800.0], [-800.0]]), np.array([[False], [False]]))
    assert found.nll == 400.0
    assert found.brier == 0.5
    with pytest.raises(UsageError, match="0 rows"):
        multilabel_calibration(np.zeros((0, 2)), np.zeros((0, 2), bool))
