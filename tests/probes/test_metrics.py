import warnings

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score, recall_score

from coldframe.errors import UsageError
from coldframe.probes.metrics import (
    balanced_accuracy,
    chance,
    confusion,
    decide,
    macro_f1,
    majority_top1,
    recalls,
    top1,
)


def codes(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_sklearn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    true, predicted = rng.integers(0, 6, 200), rng.integers(0, 7, 200)  # class 6 is only predicted
    counts = confusion(true, predicted, 7)
    assert np.array_equal(counts, confusion_matrix(true, predicted, labels=range(7)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sklearn warns about the class without support
        assert balanced_accuracy(counts) == pytest.approx(balanced_accuracy_score(true, predicted), abs=1e-15)
    assert top1(counts) == pytest.approx(accuracy_score(true, predicted), abs=1e-15)
    expected = recall_score(true, predicted, labels=range(6), average=None)
    assert recalls(counts)[:6] == pytest.approx(expected, abs=1e-15)


def test_classes_without_support_do_not_enter() -> None:
    # Field case 50: 3/4 and 1 for the two classes that occur; over the union of labels it would be 0.583.
    counts = confusion(codes(0, 0, 0, 0, 1, 1), codes(0, 0, 0, 2, 1, 1), 97)
    assert balanced_accuracy(counts) == 0.875
    assert np.isnan(recalls(counts)[2])
    assert chance(counts) == 0.5
    assert top1(counts) == 5 / 6


def test_confusion_has_true_classes_by_row() -> None:
    assert confusion(codes(0, 0, 1), codes(1, 1, 1), 3).tolist() == [[0, 2, 0], [0, 1, 0], [0, 0, 0]]


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(UsageError, match="0 rows to score"):
        confusion(codes(), codes(), 3)


def test_majority_is_that_of_train() -> None:
    counts = confusion(codes(0, 0, 0, 1), codes(0, 0, 0, 0), 2)
    assert majority_top1(codes(1, 1, 0), counts) == 0.25
    assert majority_top1(codes(1, 0, 0), counts) == 0.75


def test_decide_takes_the_highest_score() -> None:
    scores = np.random.default_rng(0).normal(size=(50, 7))
    assert np.array_equal(decide(scores), scores.argmax(axis=1))


def test_equal_scores_do_not_favour_low_codes() -> None:
    picked = np.bincount(decide(np.zeros((4000, 4))), minlength=4)
    assert picked.sum() == 4000
    assert abs(picked - 1000).max() < 5 * np.sqrt(4000 * 0.25 * 0.75)
    # Only the tied classes are drawn, and only rows with ties.
    scores = np.array([[1.0, 3.0, 3.0], [5.0, 3.0, 3.0]] * 200)
    assert set(decide(scores)[::2].tolist()) == {1, 2}
    assert set(decide(scores)[1::2].tolist()) == {0}


def test_macro_f1_equals_sklearn_over_classes_with_support() -> None:
    rng = np.random.default_rng(0)
    true, predicted = rng.integers(0, 4, 100), rng.integers(0, 5, 100)
    expected = f1_score(true, predicted, labels=range(4), average="macro")
    assert macro_f1(confusion(true, predicted, 6)) == pytest.approx(expected, abs=1e-15)


def test_macro_f1_by_hand_where_sklearn_averages_over_the_union() -> None:
    # F1 of class 0 is 2 * 2 / (3 + 2), of class 1 it is 1; class 2 is only predicted.
    true, predicted = codes(0, 0, 0, 1), codes(0, 0, 2, 1)
    assert macro_f1(confusion(true, predicted, 3)) == pytest.approx((0.8 + 1) / 2)
    assert f1_score(true, predicted, average="macro") == pytest.approx((0.8 + 1 + 0) / 3)
