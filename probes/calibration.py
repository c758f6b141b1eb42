"""Calibration: whether probabilities mean what they say. ECE with its bias, NLL and Brier score.

ECE is the top-label form with 15 equal-width bins, sum of (n_b / n) |accuracy_b - confidence_b|; a confidence of
exactly 1 belongs to the last bin. It is never 0 for a finite set, so the value that perfectly calibrated outcomes
would give stands beside it: labels drawn from the predicted probabilities themselves.

A ridge head's scores are no probabilities, so none of this applies to it.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError

BINS = 15
_DRAWS = 100
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Calibration of one classifier on one set.

    Attributes:
        ece: expected calibration error over equal-width bins, in [0, 1].
        ece_equal_mass: the same over bins of equally many rows.
        ece_if_calibrated: mean `ece` if the outcomes were drawn from the predicted probabilities.
        nll: mean negative log-likelihood in nats; infinite if a true class was given probability 0.
        brier: mean squared distance to the one-hot label, in [0, 2]; to 0 or 1 of a single class, in [0, 1].
    """

    ece: float
    ece_equal_mass: float
    ece_if_calibrated: float
    nll: float
    brier: float


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n, classes) log-probabilities in float64; no probability underflows to 0."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    normalised: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def calibration(log_probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Calibration:
    """Calibration of one label a row.

    Args:
        log_probabilities: (n, classes) natural logarithms of probabilities that sum to 1, n >= 1.
        labels: (n,) class codes.

    Raises:
        UsageError: no rows, or a row does not sum to 1.
    """
    probabilities = np.exp(log_probabilities)
    sums = probabilities.sum(axis=1)
    if not len(labels):
        raise UsageError("there are 0 rows to score; a metric needs at least 1.")
    if np.abs(sums - 1).max() > 1e-6:
        worst = int(np.abs(sums - 1).argmax())
        raise UsageError(f"the probabilities of row {worst} sum to {sums[worst]:.6g}; allowed is 1. Give log_softmax.")
    confidence = probabilities.max(axis=1)
    # Ties at the top are all or nothing for the class that argmax names; they do not change the confidence.
    correct = probabilities.argmax(axis=1) == labels
    rows = np.arange(len(labels))
    squares = np.square(probabilities).sum(axis=1) - 2 * probabilities[rows, labels] + 1
    draws = np.random.default_rng(_SEED).random((_DRAWS, len(labels))) < confidence
    return Calibration(
        ece=_ece(confidence, correct, _width_bins(confidence)),
        ece_equal_mass=_ece(confidence, correct, _mass_bins(confidence)),
        ece_if_calibrated=float(np.mean([_ece(confidence, draw, _width_bins(confidence)) for draw in draws])),
        nll=float(-log_probabilities[rows, labels].mean()),
        brier=float(squares.mean()),
    )


def multilabel_calibration(logits: NDArray[np.float64], targets: NDArray[np.bool_]) -> Calibration:
    """Mean over classes of the calibration of each, a binary problem of its own whose confidence is its probability.

    Args:
        logits: (n, classes) of each class on its own, finite, n >= 1.
        targets: (n, classes) bool.

    Raises:
        UsageError: no rows.
    """
    if not len(targets):
        raise UsageError("there are 0 rows to score; a metric needs at least 1.")
    found = [_binary(values, truth) for values, truth in zip(logits.T, targets.T, strict=True)]
    return Calibration(
        **{field.name: float(np.mean([getattr(one, field.name) for one in found])) for field in fields(Calibration)}
    )


def _binary(logits: NDArray[np.float64], truth: NDArray[np.bool_]) -> Calibration:
    """Calibration of one class (n,), from logits so that no probability is rounded to 0 or 1."""
    surprise = np.logaddexp(0.0, np.where(truth, -logits, logits))  # -log of the probability of what is true
    probabilities = np.exp(-np.logaddexp(0.0, -logits))
    bins = _width_bins(probabilities)
    draws = np.random.default_rng(_SEED).random((_DRAWS, len(truth))) < probabilities
    return Calibration(
        ece=_ece(probabilities, truth, bins),
        ece_equal_mass=_ece(probabilities, truth, _mass_bins(probabilities)),
        ece_if_calibrated=float(np.mean([_ece(probabilities, draw, bins) for draw in draws])),
        nll=float(surprise.mean()),
        brier=float(np.square(-np.expm1(-surprise)).mean()),
    )


def _ece(confidence: NDArray[np.float64], correct: NDArray[np.bool_], bins: NDArray[np.int64]) -> float:
    gap = np.bincount(bins, weights=correct.astype(np.float64) - confidence, minlength=BINS)
    return float(np.abs(gap).sum() / len(confidence))


def _width_bins(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.minimum((confidence * BINS).astype(np.int64), BINS - 1)


def _mass_bins(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    rank = np.empty(len(confidence), np.int64)
    rank[np.argsort(confidence, kind="stable")] = np.arange(len(confidence))
    return rank * BINS // len(confidence)
