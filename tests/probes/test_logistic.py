"""The logistic head is scikit-learn's; its statistics come from train rows alone."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from coldframe.errors import UsageError
from coldframe.probes.logistic import SOLVED, LinearHead, choose_strength, fit_logistic, unsolved

CLASSES = 4


def problem(rows: int = 400) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Overlapping classes, correlated features of very different sizes, one constant feature."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=rows)
    mix = rng.normal(size=(12, 12)) * np.logspace(0, -1, 12)
    features = (rng.normal(size=(rows, 12)) + rng.normal(size=(CLASSES, 12))[labels]) @ mix * np.logspace(-2, 2, 12)
    return np.insert(features + 3, 5, 7.0, axis=1).astype(np.float32), labels


def one_hot(labels: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.eye(CLASSES, dtype=np.float32)[labels]


def standardised(features: NDArray[np.float32], head: LinearHead) -> NDArray[np.float64]:
    return (features.astype(np.float64) - head.mean) / head.scale


@pytest.mark.parametrize("strength", [1e-4, 1e-2, 1.0, 100.0])
def test_multinomial_is_scikit_learns(strength: float) -> None:
    features, labels = problem()
    train, other = slice(0, 300), slice(300, None)
    grid = (1e-6, strength, 1e3)  # warm starts from a neighbour must not show
    head = fit_logistic(features[train], one_hot(labels[train]), link="softmax", strengths=grid, tolerance=1e-7)[1]
    theirs = LogisticRegression(C=strength, tol=1e-10, max_iter=20_000)
    theirs.fit(standardised(features[train], head), labels[train])
    wanted = theirs.decision_function(standardised(features[other], head))
    ours = head.logits(features[other])
    centred = [logits - logits.mean(axis=1, keepdims=True) for logits in (ours, wanted)]
    assert np.abs(centred[0] - centred[1]).max() < 1e-2
    assert np.count_nonzero(ours.argmax(axis=1) != wanted.argmax(axis=1)) <= 1
    np.testing.assert_allclose(
        head.probabilities(features[other]), theirs.predict_proba(standardised(features[other], head)), atol=2e-3
    )


def test_several_labels_a_row_are_scikit_learns_binary_problems() -> None:
    features, labels = problem()
    targets = np.stack([labels == 0, labels <= 1, features[:, 0] > np.median(features[:, 0])], axis=1)
    head = fit_logistic(features, targets.astype(np.float32), link="sigmoid", strengths=[0.1], tolerance=1e-7)[0]
    for column in range(3):
        theirs = LogisticRegression(C=0.1, tol=1e-10, max_iter=20_000)
        theirs.fit(standardised(features, head), targets[:, column])
        wanted = theirs.predict_proba(standardised(features, head))[:, 1]
        np.testing.assert_allclose(head.probabilities(features)[:, column], wanted, atol=1e-3)


def test_default_tolerance_predicts_like_a_tight_one() -> None:
    features, labels = problem()
    loose = fit_logistic(features, one_hot(labels), link="softmax")
    tight = fit_logistic(features, one_hot(labels), link="softmax", tolerance=1e-7)
    for one, other in list(zip(loose, tight, strict=True))[::4]:
        np.testing.assert_allclose(one.probabilities(features), other.probabilities(features), atol=0.01)


def test_statistics_are_those_of_train_rows() -> None:
    features, labels = problem()
    head = fit_logistic(features[:300], one_hot(labels[:300]), link="softmax", strengths=[1.0])[0]
    np.testing.assert_allclose(head.mean, features[:300].mean(axis=0, dtype=np.float64))
    assert head.scale[5] == 1.0
    assert not head.weight[5].any()
    shifted = features[300:] + 3 * head.scale.astype(np.float32)
    assert np.abs(head.logits(shifted) - head.logits(features[300:])).max() > 0.1


def test_choice_is_made_on_validation_rows() -> None:
    features, labels = problem()
    heads = fit_logistic(features[:300], one_hot(labels[:300]), link="softmax")
    place, accuracy = choose_strength(heads, features[300:], labels[300:])
    assert len(accuracy) == len(heads)
    assert 0.7 < accuracy[place] == max(accuracy) <= 1
    random = np.random.default_rng(1).integers(CLASSES, size=100)
    weak, _ = choose_strength(heads, features[300:], random)
    assert heads[weak].strength < heads[place].strength


def test_c_must_be_positive() -> None:
    features, labels = problem(20)
    with pytest.raises(UsageError, match="C is 0"):
        fit_logistic(features, one_hot(labels), link="softmax", strengths=[0.0, 1.0])


@pytest.mark.parametrize("grid", [[1e12], [1e-6, 1e10], [1e8]])
def test_a_weak_penalty_alone_is_solved_as_at_the_end_of_a_grid(grid: list[float]) -> None:
    """More features than rows span: the first step from afar ended at the start, which predicts the commonest class."""
    rng = np.random.default_rng(0)
    labels = np.arange(200) % CLASSES
    few = rng.normal(size=(200, 30)) + np.eye(CLASSES, 30)[labels] * 3
    features = (
        100 * rng.normal(size=192) + few @ rng.normal(size=(30, 192)) + rng.normal(size=(200, 192)) * 1e-4
    ).astype(np.float32)
    alone = fit_logistic(features, one_hot(labels), link="softmax", strengths=grid)[-1]
    theirs = LogisticRegression(C=grid[-1], tol=1e-10, max_iter=20_000)
    theirs.fit(standardised(features, alone), labels)
    accuracy = float(np.mean(alone.logits(features).argmax(axis=1) == labels))
    assert accuracy >= theirs.score(standardised(features, alone), labels) - 0.01 > 0.9
    assert alone.gradient <= SOLVED
    assert list(unsolved([alone])) == []


def test_a_head_that_was_not_solved_is_said() -> None:
    features, labels = problem()
    head = fit_logistic(features, one_hot(labels), link="softmax", strengths=[1.0])[0]
    assert head.gradient <= 1e-5 * 1.01
    assert "stopped early at the chosen C (1; gradient 0.5 a row" in next(unsolved([replace(head, gradient=0.5)]))
    assert len(list(unsolved([replace(head, gradient=np.nan)]))) == 1


@pytest.mark.parametrize("strength", [0.0, np.nan, np.inf, 1e300, 1e-300])
def test_a_strength_out_of_range_is_refused(strength: float) -> None:
    features, labels = problem(40)
    with pytest.raises(UsageError, match=r"C is .*; allowed is 1e-12 to 1e\+12"):
        fit_logistic(features, one_hot(labels), link="softmax", strengths=[1.0, strength])
