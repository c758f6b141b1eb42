"""Logistic readout: multinomial, or one binary problem a class for several labels a row, over a grid of C.

On features standardised by train statistics it minimises, as scikit-learn's `LogisticRegression(C=C)` does,

    sum of losses over rows + |W|^2 / (2 C)                the intercept is not penalised

One eigendecomposition of X^T X serves the whole grid. In its basis, scaled by the square root of an upper estimate of
the Hessian's diagonal, L-BFGS needs tens of steps where the raw features need hundreds; each C starts from the
solution of the next stronger penalty. Features and products are float32, sums and weights float64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.calibration import log_softmax
from coldframe.probes.lbfgs import minimise
from coldframe.probes.metrics import balanced_accuracy, confusion, decide

STRENGTHS = tuple(float(c) for c in np.logspace(-6, 5, 45))  # DINOv2's grid of C
Link = Literal["softmax", "sigmoid"]
_Float = TypeVar("_Float", bound=np.floating[Any])

TOLERANCE = 1e-5  # scikit-learn's default is 1e-4
SOLVED = 1e-3  # ten times scikit-learn's default: above it the weights are not those of their C
STRENGTH_RANGE = (1e-12, 1e12)  # beyond it penalty and loss no longer fit into one sum
_STRIDE = 1e4  # between two penalties, from the solution of one to that of the next
_MAX_STEPS = 1000
_LEAST_VARIANCE = 1e-3  # of a predicted probability, in the estimate of the curvature


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearHead:
    """A linear head on standardised features.

    Attributes:
        mean, scale: (dim,) float64 of the train rows; the scale of a constant feature is 1.
        weight: (dim, classes) float64; 0 for constant features.
        intercept: (classes,) float64.
        link: `softmax` for one class a row, `sigmoid` for any number.
        strength: C.
        steps: of L-BFGS.
        gradient: largest component of the objective's gradient per row where it stopped.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weight: NDArray[np.float64]
    intercept: NDArray[np.float64]
    link: Link
    strength: float
    steps: int
    gradient: float

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, classes) logits of `features` (n, dim)."""
        folded = self.weight / self.scale[:, None]
        logits: NDArray[np.float64] = features.astype(np.float64) @ folded + (self.intercept - self.mean @ folded)
        return logits

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, classes) in [0, 1]; rows sum to 1 under `softmax`."""
        logits = self.logits(features)
        return _softmax(logits) if self.link == "softmax" else _sigmoid(logits)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Problem:
    """Train rows in the eigenbasis of their standardised Gram matrix."""

    rotated: NDArray[np.float32]  # (n, rank)
    targets: NDArray[np.float32]  # (n, classes)
    link: Link
    curvature: NDArray[np.float64]  # (rank,) mean square of each rotated feature

    def value_and_gradient(
        self, scale: NDArray[np.float64], strength: float, variables: NDArray[np.float64]
    ) -> tuple[float, NDArray[np.float64]]:
        """Objective per row at `variables` (1 + rank, classes), which are weights over `scale`; intercepts first."""
        rows = len(self.rotated)
        weights = variables * scale
        logits = self.rotated @ weights[1:].astype(np.float32) + weights[0].astype(np.float32)
        loss, residual = _loss(logits, self.targets, self.link)
        gradient = np.empty_like(weights)
        gradient[0] = residual.sum(axis=0, dtype=np.float64)
        gradient[1:] = self.rotated.T @ residual
        gradient[1:] += weights[1:] / strength
        value = loss + float(np.square(weights[1:]).sum()) / (2 * strength)
        return value / rows, gradient * scale / rows


def fit_logistic(
    features: NDArray[np.float32],
    targets: NDArray[np.float32],
    *,
    link: Link,
    strengths: Sequence[float] = STRENGTHS,
    tolerance: float = TOLERANCE,
) -> list[LinearHead]:
    """One head for every C of `strengths`, in that order.

    Args:
        features: (n, dim) float32, finite; the train rows and no others.
        targets: (n, classes) 0 or 1; under `softmax` one 1 a row.
        link: `softmax` or `sigmoid`.
        strengths: values of C, each from 1e-12 to 1e12.
        tolerance: largest component of the objective's gradient per row at which a head counts as solved, as `tol` of
            scikit-learn. Rounding to float32 leaves about 1e-7.

    Raises:
        UsageError: a C out of range.
    """
    for strength in strengths:
        if not STRENGTH_RANGE[0] <= strength <= STRENGTH_RANGE[1]:
            raise UsageError("C is {:g}; allowed is {:g} to {:g}.".format(strength, *STRENGTH_RANGE))
    mean = np.asarray(features.mean(axis=0, dtype=np.float64))
    varies = features.min(axis=0) != features.max(axis=0)
    scale = np.where(varies, features.std(axis=0, dtype=np.float64), 1.0)
    standard = ((features - mean.astype(np.float32)) / scale.astype(np.float32))[:, varies]
    eigenvalues, basis = np.linalg.eigh((standard.T @ standard).astype(np.float64) / len(standard))
    problem = _Problem(
        rotated=np.asarray(standard @ basis.astype(np.float32)),
        targets=targets,
        link=link,
        curvature=np.maximum(eigenvalues, 0.0),
    )
    weights = np.zeros((1 + len(eigenvalues), targets.shape[1]))
    weights[0] = _prior(targets, link)
    heads = {}
    for strength in _path(strengths, len(standard)):
        weights, steps, gradient = _solve(problem, strength, weights, tolerance)
        full = np.zeros((len(mean), targets.shape[1]))
        full[varies] = basis @ weights[1:]
        heads[strength] = LinearHead(
            mean=mean,
            scale=scale,
            weight=full,
            intercept=weights[0].copy(),
            link=link,
            strength=strength,
            steps=steps,
            gradient=gradient,
        )
    return [heads[strength] for strength in strengths]


def _path(strengths: Sequence[float], rows: int) -> list[float]:
    """`strengths` from strong penalty to weak, and others between those far apart.

    Directions in which train rows hardly vary are scaled by the square root of C times rows. From far away the first
    step along their rounding noise is so long that no halving of it descends.
    """
    path: list[float] = []
    last = 1 / rows
    for strength in sorted(set(strengths)):
        while strength > last * _STRIDE:
            last *= _STRIDE
            path.append(last)
        path.append(strength)
        last = max(last, strength)
    return path


def _solve(
    problem: _Problem, strength: float, start: NDArray[np.float64], tolerance: float
) -> tuple[NDArray[np.float64], int, float]:
    """Weights (1 + rank, classes) for one C, from `start`; steps; and the largest component of the gradient there."""
    rows = len(problem.rotated)
    logits = problem.rotated @ start[1:].astype(np.float32) + start[0].astype(np.float32)
    p = _softmax(logits) if problem.link == "softmax" else _sigmoid(logits)
    variance = np.maximum((p * (1 - p)).mean(axis=0, dtype=np.float64), _LEAST_VARIANCE)
    diagonal = np.empty_like(start)
    diagonal[0] = variance
    diagonal[1:] = problem.curvature[:, None] * variance + 1 / (strength * rows)
    scale = 1 / np.sqrt(diagonal)
    found, steps = minimise(
        lambda variables: problem.value_and_gradient(scale, strength, variables),
        start / scale,
        converged=lambda gradient: bool((np.abs(gradient) <= tolerance * scale).all()),
        max_steps=_MAX_STEPS,
    )
    _, gradient = problem.value_and_gradient(scale, strength, found)
    return found * scale, steps, float(np.abs(gradient / scale).max())


def _prior(targets: NDArray[np.float32], link: Link) -> NDArray[np.float64]:
    """(classes,) intercepts that are optimal without features."""
    share = (targets.sum(axis=0, dtype=np.float64) + 0.5) / (len(targets) + 1)
    logits: NDArray[np.float64] = np.log(share) if link == "softmax" else np.log(share / (1 - share))
    return logits


def _loss(logits: NDArray[np.float32], targets: NDArray[np.float32], link: Link) -> tuple[float, NDArray[np.float32]]:
    """Summed loss, and its derivative (n, classes) by the logits."""
    if link == "softmax":
        top = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - top)
        total = weights.sum(axis=1, keepdims=True)
        # row by row, since the two sums over all rows are large and nearly equal
        loss = float(((np.log(total) + top)[:, 0] - (logits * targets).sum(axis=1)).sum(dtype=np.float64))
        return loss, weights / total - targets
    loss = float((np.maximum(logits, 0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))).sum(dtype=np.float64))
    return loss, _sigmoid(logits) - targets


def _softmax(logits: NDArray[_Float]) -> NDArray[_Float]:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: NDArray[_Float] = weights / weights.sum(axis=1, keepdims=True)
    return result


def _sigmoid(logits: NDArray[_Float]) -> NDArray[_Float]:
    result: NDArray[_Float] = 0.5 * (1 + np.tanh(0.5 * logits))
    return result


def unsolved(heads: Sequence[LinearHead]) -> Iterator[str]:
    """One sentence on those of the chosen `heads` whose solver stopped too early."""
    wrong = [head for head in heads if not head.gradient <= SOLVED]
    if wrong:
        listed = ", ".join(f"{head.strength:.2g}" for head in wrong)
        worst = max(head.gradient for head in wrong)
        yield (
            f"the solver stopped early at the chosen C ({listed}; gradient {worst:.1g} a row, {SOLVED:g} is allowed): "
            "these numbers are not those of that C. Try a smaller one with -C."
        )


def choose_strength(
    heads: Sequence[LinearHead], features: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[int, list[float]]:
    """Place of the `softmax` head with the highest balanced accuracy on validation rows, and all those accuracies.

    Equal accuracies go to the smaller loss there, and then to the stronger penalty.
    """
    merits = []
    for head in heads:
        logits = head.logits(features)
        accuracy = balanced_accuracy(confusion(labels, decide(logits), logits.shape[1]))
        likelihood = log_softmax(logits)[np.arange(len(labels)), labels]
        merits.append((round(accuracy, 12), float(likelihood.mean()), -head.strength))
    return max(range(len(heads)), key=merits.__getitem__), [accuracy for accuracy, _, _ in merits]
