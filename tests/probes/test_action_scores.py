"""Scores of actions against loops over rows and classes, and by hand."""

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.probes.action_scores import _ranks, class_mean_interval, frequency_ranks, score_task
from coldframe.probes.actions import Task
from coldframe.probes.ranking import class_mean

CLASSES, UNSEEN = 9, 2


def task(codes: NDArray[np.int64], classes: int = CLASSES) -> Task:
    names = [(str(c),) for c in range(classes + UNSEEN)]
    return Task(name="verb", classes=tuple(names[:classes]), unseen=tuple(names[classes:]), codes=codes)


def plain_recall(scores: NDArray[np.float64], codes: NDArray[np.int64], k: int) -> float:
    """Class by class; scores are distinct, and a class without an output is never found."""
    shares = []
    for c in sorted(set(codes.tolist())):
        found = [c in np.argsort(-row)[:k] for row, code in zip(scores, codes, strict=True) if code == c]
        shares.append(sum(found) / len(found))
    return float(np.mean(shares))


def test_recall_equals_a_loop_with_classes_that_train_lacks() -> None:
    rng = np.random.default_rng(0)
    scores, codes = rng.normal(size=(200, CLASSES)), rng.integers(0, CLASSES + UNSEEN, 200)
    scores[np.arange(200), np.minimum(codes, CLASSES - 1)] += 1
    score = score_task(task(codes), _ranks(scores, codes), np.arange(200))
    assert score is not None
    assert score.recall5 == pytest.approx(plain_recall(scores, codes, 5))
    assert score.recall1 == pytest.approx(plain_recall(scores, codes, 1))
    found = [code in np.argsort(-row)[:5] for row, code in zip(scores, codes, strict=True)]
    assert score.top5 == pytest.approx(np.mean(found))
    assert score.top1 == pytest.approx(np.mean(scores.argmax(axis=1) == codes))
    assert (score.rows, score.classes) == (200, 11)
    seen = np.flatnonzero(codes < CLASSES)
    filtered = score_task(task(codes), _ranks(scores, codes)[seen], seen)
    assert filtered is not None
    assert filtered.recall5 == pytest.approx(plain_recall(scores[seen], codes[seen], 5))
    # two of eleven classes are misses: the filter alone multiplies the score by 11 / 9
    assert filtered.recall5 == pytest.approx((score.recall5 or 0) * 11 / 9)


def test_classes_without_rows_do_not_enter() -> None:
    """Field case 50: 0.875 over the two classes that occur, not 0.583 over the union of three."""
    codes, answers = np.array([0, 0, 0, 0, 1, 1]), [0, 0, 0, 2, 1, 1]
    score = score_task(task(codes), _ranks(np.eye(CLASSES)[answers], codes), np.arange(6))
    assert score is not None
    assert (score.recall1, score.classes) == (0.875, 2)


def test_large_logits_keep_their_order_where_a_sigmoid_loses_it() -> None:
    scores = np.full((1, CLASSES), -5.0)
    scores[0, :4] = [18, 20, 25, 22]
    assert _ranks(scores, np.array([2])).tolist() == [0]
    assert len(set((1 / (1 + np.exp(-scores[0, :4].astype(np.float32)))).tolist())) == 1


def test_few_classes_have_no_recall_at_5_and_no_rows_no_score() -> None:
    codes = np.array([0, 1, 2, 3])
    score = score_task(task(codes, 5), codes * 0, np.arange(4))
    assert score is not None
    assert (score.recall5, score.top5, score.recall1) == (None, None, 1.0)
    assert score_task(task(codes), np.empty(0, np.int64), np.empty(0, np.int64)) is None


def test_frequency_answers_the_commonest_classes_of_train() -> None:
    codes = np.array([3] * 5 + [1] * 4 + [0] * 3 + [7] * 2 + [8] + [3, 1, 0, 2, 9])
    ranks = frequency_ranks(task(codes), np.arange(15), np.arange(15, 20))
    assert ranks[:3].tolist() == [0, 1, 2]
    assert ranks[3] >= 5  # no train row
    assert ranks[4] == CLASSES  # no output


def test_intervals_hold_with_many_rare_classes() -> None:
    """The mean of the true recalls of 60 classes in 20 sources of 15 rows, most classes with a row or two."""
    rng, classes, covered = np.random.default_rng(1), 60, 0
    often = 1 / np.arange(1, classes + 1) ** 1.2
    recall = 0.75 - 0.7 * np.arange(classes) / classes
    for _ in range(200):
        codes, owners = rng.choice(classes, 300, p=often / often.sum()), np.repeat(np.arange(20), 15)
        shift = rng.normal(0, 0.1, 20)[owners]
        hits = (rng.random(300) < np.clip(recall[codes] + shift, 0, 1)).astype(np.float64)
        found = class_mean_interval(hits, codes, owners, 20)
        assert found.low is not None
        assert found.high is not None
        assert (found.low + found.high) / 2 == pytest.approx(class_mean(hits, codes))
        covered += found.low <= recall[np.unique(codes)].mean() <= found.high
    assert covered >= 0.9 * 200


def test_few_sources_give_no_interval() -> None:
    found = class_mean_interval(np.ones(9), np.arange(9), np.arange(9), 9)
    assert found.low is None
    assert "9 sources" in found.reason
