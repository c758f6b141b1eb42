import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from coldframe.probes import ridge
from coldframe.probes.metrics import balanced_accuracy, confusion
from coldframe.probes.ridge import PENALTIES, RidgeHead, choose, fit_ridge


def problem(
    rows: int = 120, dim: int = 20, classes: int = 4, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    features = rng.normal(size=(rows, dim)) * rng.uniform(0.1, 50, dim) + rng.normal(size=dim) * 100
    features += rng.normal(size=(classes, dim))[labels] * 5
    return features.astype(np.float32), labels


def parameters(head: RidgeHead) -> bytes:
    arrays = (head.mean, head.scale, head.weight, head.intercept)
    return b"".join(array.tobytes() for array in arrays)


@pytest.mark.parametrize(("rows", "dim"), [(120, 20), (30, 64)], ids=["tall", "wide"])
@pytest.mark.parametrize("block_bytes", [64 << 20, 5000], ids=["one block", "many blocks"])
def test_equal_to_sklearn_on_every_penalty(
    rows: int, dim: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ridge, "_BLOCK_BYTES", block_bytes)
    features, labels = problem(rows, dim)
    test, _ = problem(50, dim, seed=1)
    scaler = StandardScaler().fit(features.astype(np.float64))
    targets = np.where(labels[:, None] == np.arange(4), 1.0, -1.0)
    heads = fit_ridge(features, labels, 4)
    assert [head.penalty for head in heads] == PENALTIES.tolist()
    for head in heads:
        reference = Ridge(alpha=head.penalty * rows, solver="svd")
        reference.fit(scaler.transform(features.astype(np.float64)), targets)
        expected = reference.predict(scaler.transform(test.astype(np.float64)))
        # The normal equations square the condition number: 1e-16 * 1e6 and some.
        np.testing.assert_allclose(head.scores(test), expected, rtol=0, atol=1e-7)
        np.testing.assert_allclose(head.weight, reference.coef_.T, rtol=0, atol=1e-7)


def test_predicts_the_highest_score() -> None:
    features, labels = problem()
    head = fit_ridge(features, labels, 4)[10]
    assert np.array_equal(head.predict(features), head.scores(features).argmax(axis=1))


@pytest.mark.parametrize(("rows", "dim"), [(120, 20), (30, 64)], ids=["tall", "wide"])
def test_constant_features_have_no_say(rows: int, dim: int) -> None:
    features, labels = problem(rows, dim)
    constant = np.full((rows, 2), np.float32(0.1))
    constant[:, 1] = 65504  # largest float16
    heads = fit_ridge(np.hstack([constant, features]), labels, 4)
    plain = fit_ridge(features, labels, 4)
    test = np.hstack([np.full((rows, 2), np.float32(1e30)), features])
    for head, without in zip(heads, plain, strict=True):
        assert np.isfinite(head.scores(test)).all()
        np.testing.assert_allclose(head.scores(test), without.scores(features), rtol=0, atol=1e-8)
        assert head.scale[:2].tolist() == [1, 1]


def test_features_without_any_information_give_class_shares() -> None:
    labels = np.array([0] * 30 + [1] * 10)
    heads = fit_ridge(np.ones((40, 3), dtype=np.float32), labels, 2)
    scores = heads[0].scores(np.ones((5, 3), dtype=np.float32))
    assert scores.tolist() == [[0.5, -0.5]] * 5  # 2 * share - 1


def test_test_rows_cannot_change_the_head() -> None:
    # Field case 52: 1,000 extreme rows more in the test part.
    features, labels = problem()
    train = np.arange(0, 80)
    before = fit_ridge(features[train], labels[train], 4)
    extreme = np.full((1000, features.shape[1]), np.float32(1e9))
    after = fit_ridge(np.vstack([features, extreme])[train], np.append(labels, [0] * 1000)[train], 4)
    assert [parameters(head) for head in before] == [parameters(head) for head in after]


@pytest.mark.parametrize("block_bytes", [64 << 20, 20_000], ids=["one block", "many blocks"])
def test_choice_is_best_on_validation(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "_BLOCK_BYTES", block_bytes)
    everything, codes = problem(360, 40)
    features, labels, validation, truth = everything[:60], codes[:60], everything[60:], codes[60:]
    heads = fit_ridge(features, labels, 4)
    accuracies = [balanced_accuracy(confusion(truth, head.predict(validation), 4)) for head in heads]
    head, accuracy = choose(heads, validation, truth, 4)
    assert head is heads[int(np.argmax(accuracies))]  # the problem has one best head
    assert sorted(accuracies)[-2] < accuracy == max(accuracies)
    assert len(set(accuracies)) > 5  # the problem is not flat, so the choice means something


@pytest.mark.parametrize("block_bytes", [64 << 20, 20_000], ids=["one block", "many blocks"])
def test_equal_accuracies_go_to_the_smaller_error_not_to_the_brink(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ridge, "_BLOCK_BYTES", block_bytes)
    # 40 rows of one class and 8 of the other, far apart: every penalty that has not collapsed is perfect.
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [40, 8])
    train, validation = ((rng.normal(size=(48, 4)) * 0.3 + labels[:, None] * 5).astype(np.float32) for _ in range(2))
    heads = fit_ridge(train, labels, 2)
    perfect = [head for head in heads if np.array_equal(head.predict(validation), labels)]
    assert 5 < len(perfect) < len(heads)
    targets = np.where(labels[:, None] == [0, 1], 1.0, -1.0)
    errors = [np.square(head.scores(validation) - targets).sum() for head in perfect]
    chosen, accuracy = choose(heads, validation, labels, 2)
    assert chosen is perfect[int(np.argmin(errors))]
    assert chosen.penalty < perfect[-1].penalty / 10
    assert accuracy == 1.0


def test_heads_without_any_difference_go_to_the_largest_penalty() -> None:
    labels = np.repeat([0, 1], 10)
    features = np.ones((20, 3), dtype=np.float32)
    chosen, accuracy = choose(fit_ridge(features, labels, 2), features, labels, 2)
    assert chosen.penalty == PENALTIES[-1]
    assert 0 <= accuracy <= 1
