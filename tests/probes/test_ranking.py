import warnings

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, top_k_accuracy_score

from coldframe.errors import UsageError
from coldframe.probes.metrics import decide
from coldframe.probes.ranking import average_precision, class_mean_recall, mean_average_precision, top_k, true_ranks


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_equals_sklearn_without_ties(k: int) -> None:
    rng = np.random.default_rng(k)
    scores, labels = rng.normal(size=(300, 7)), rng.integers(0, 7, 300)
    assert top_k(scores, labels, k) == pytest.approx(top_k_accuracy_score(labels, scores, k=k), abs=1e-15)


def test_constant_scores_are_at_chance_and_agree_with_the_decision() -> None:
    labels = np.repeat(np.arange(4), 1000)
    scores = np.zeros((4000, 4))
    assert top_k(scores, labels, 1) == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / 4000))
    assert top_k(scores, labels, 2) == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / 4000))
    assert top_k(scores, labels, 4) == 1.0
    assert np.array_equal(true_ranks(scores, labels) == 0, decide(scores) == labels)


def test_ranks_of_partly_tied_scores() -> None:
    scores = np.array([[3.0, 1.0, 1.0, 0.0]] * 400)
    assert set(true_ranks(scores, np.zeros(400, int)).tolist()) == {0}
    assert set(true_ranks(scores, np.ones(400, int)).tolist()) == {1, 2}
    assert set(true_ranks(scores, np.full(400, 3)).tolist()) == {3}


def test_saturated_sigmoid_loses_the_order_and_logits_keep_it() -> None:
    # Field case 50: sigmoid of 18, 20, 25, 22 is 1, 1, 1, 1 in float32.
    logits = np.array([[18.0, 20.0, 25.0, 22.0]] * 100)
    saturated = (1 / (1 + np.exp(-logits.astype(np.float32)))).astype(np.float32)
    assert len(np.unique(saturated)) == 1
    labels = np.full(100, 2)
    assert top_k(logits, labels, 1) == 1.0
    assert top_k(saturated.astype(np.float64), labels, 1) < 0.5  # a tie is not won by default


def test_class_mean_recall_leaves_absent_classes_out() -> None:
    # 4 rows of class 0 with 3 hits, 2 rows of class 1 with 2 hits, 95 classes that never occur.
    labels = np.array([0, 0, 0, 0, 1, 1])
    scores = np.zeros((6, 97))
    scores[np.arange(6), [0, 0, 0, 2, 1, 1]] = 1.0
    assert class_mean_recall(scores, labels, 1) == 0.875
    assert class_mean_recall(scores, labels, 97) == 1.0


def test_class_mean_recall_by_hand_at_2() -> None:
    scores = np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    assert class_mean_recall(scores, np.array([1, 2, 2]), 2) == pytest.approx((1 + 0.5) / 2)


@pytest.mark.parametrize("k", [0, 4])
def test_k_beyond_the_classes_is_refused(k: int) -> None:
    with pytest.raises(UsageError, match=f"k is {k} for 3 classes; allowed is 1 to 3"):
        top_k(np.zeros((2, 3)), np.array([0, 1]), k)


@pytest.mark.parametrize("levels", [5, 1000000], ids=["many ties", "no ties"])
def test_average_precision_equals_sklearn(levels: int) -> None:
    rng = np.random.default_rng(levels)
    for _ in range(20):
        scores = rng.integers(0, levels, 60).astype(float)
        relevant = rng.random(60) < 0.2
        relevant[0] = True
        assert average_precision(scores, relevant) == pytest.approx(average_precision_score(relevant, scores))


def test_average_precision_by_hand() -> None:
    assert average_precision(np.array([4.0, 3, 2, 1]), np.array([True, False, True, False])) == pytest.approx(5 / 6)
    assert average_precision(np.zeros(4), np.array([False, False, False, True])) == 0.25


def test_classes_without_positives_do_not_enter_the_mean() -> None:
    targets = np.array([[True, False], [False, False], [False, False]])
    scores = np.array([[2.0, 0.3], [1.0, 0.2], [0.0, 0.1]])
    found = mean_average_precision(scores, targets)
    assert (found.value, found.absent) == (1.0, 1)
    assert np.isnan(found.per_class[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sklearn warns, and counts the absent class as 0
        assert average_precision_score(targets, scores) == 0.5
    with pytest.raises(UsageError, match="at least one positive"):
        mean_average_precision(scores, np.zeros_like(targets))


def test_random_ranking_has_the_expected_average_precision() -> None:
    # E[AP] = (1/n) [H_n + (R-1)/(n-1) (n - H_n)]; n = 50, R = 5 gives 0.164.
    n, r = 50, 5
    harmonic = sum(1 / i for i in range(1, n + 1))
    expected = (harmonic + (r - 1) / (n - 1) * (n - harmonic)) / n
    rng = np.random.default_rng(0)
    values = [average_precision(rng.random(n), np.arange(n) < r) for _ in range(4000)]
    assert expected == pytest.approx(0.164, abs=5e-4)
    assert np.mean(values) == pytest.approx(expected, abs=4 * np.std(values) / np.sqrt(4000))
