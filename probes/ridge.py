"""Closed-form ridge classifier: one-vs-all least squares, the whole penalty grid from one eigendecomposition.

With standardised train features X (n, dim), centred targets Y (n, classes; +1 for the class, -1 otherwise):

    W(penalty) = Q (E + n * penalty)^-1 Q^T X^T Y    where    X^T X = Q E Q^T

With fewer rows than features the basis Q comes from the smaller X X^T; what it leaves out gets no weight either way.
The intercept is not penalised. The penalty is per row, so a grid means the same whatever n is; scikit-learn's
`Ridge(alpha=n * penalty)` is the same problem. Everything is accumulated in float64, in blocks of rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.metrics import balanced_accuracy, confusion, decide

PENALTIES = np.logspace(-6, 4, 41)
_BLOCK_BYTES = 64 << 20

Features = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class RidgeHead:
    """A fitted head.

    Attributes:
        mean, scale: (dim,) float64 statistics of the train rows; the scale of a constant feature is 1.
        weight: (dim, classes) float64 on standardised features; 0 for constant features.
        intercept: (classes,) float64.
        penalty: per row.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weight: NDArray[np.float64]
    intercept: NDArray[np.float64]
    penalty: float

    def scores(self, features: Features) -> NDArray[np.float64]:
        """(n, classes) scores of `features` (n, dim)."""
        blocks = [(block - self.mean) / self.scale @ self.weight + self.intercept for block in _blocks(features)]
        return np.concatenate(blocks)

    def predict(self, features: Features) -> NDArray[np.int64]:
        """(n,) class codes."""
        return decide(self.scores(features))


def fit_ridge(features: Features, labels: NDArray[np.int64], classes: int) -> list[RidgeHead]:
    """One head for every penalty of `PENALTIES`, in that order.

    Args:
        features: (n, dim) float32, finite; the train rows and no others.
        labels: (n,) class codes below `classes`.
        classes: number of classes.
    """
    mean = np.asarray(features.mean(axis=0, dtype=np.float64))
    varies = features.min(axis=0) != features.max(axis=0)
    targets = _targets(labels, classes)
    intercept = targets.mean(axis=0)
    # Constant features stay out of the fit: the rounding noise that centring leaves in them gets no weight.
    if len(features) < np.count_nonzero(varies):
        centred = features.astype(np.float64) - mean
        cross = centred.T @ (targets - intercept)
        scale = np.where(varies, np.sqrt(np.square(centred).mean(axis=0)), 1.0)
        eigenvalues, vectors = eigenbasis((centred / scale)[:, varies])
    else:
        gram, cross = _moments(features, mean, targets - intercept)
        scale = np.where(varies, np.sqrt(np.diagonal(gram) / len(features)), 1.0)
        eigenvalues, vectors = np.linalg.eigh((gram / np.outer(scale, scale))[np.ix_(varies, varies)])
        eigenvalues = np.maximum(eigenvalues, 0.0)
    rotated = vectors.T @ (cross / scale[:, None])[varies]
    heads = []
    for penalty in PENALTIES:
        weight = np.zeros_like(cross)
        weight[varies] = vectors @ (rotated / (eigenvalues + len(features) * penalty)[:, None])
        heads.append(RidgeHead(mean=mean, scale=scale, weight=weight, intercept=intercept, penalty=float(penalty)))
    return heads


def eigenbasis(standard: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eigenvalues (rank,) and eigenvectors (dim, rank) of X^T X, by the smaller of X^T X and X X^T.

    Args:
        standard: X, (n, dim).
    """
    rows, dim = standard.shape
    if rows >= dim:
        eigenvalues, vectors = np.linalg.eigh(standard.T @ standard)
        return np.maximum(eigenvalues, 0.0), vectors
    eigenvalues, vectors = np.linalg.eigh(standard @ standard.T)
    kept = eigenvalues > eigenvalues.max(initial=0.0) * rows * np.finfo(np.float64).eps
    return eigenvalues[kept], standard.T @ (vectors[:, kept] / np.sqrt(eigenvalues[kept]))


def choose(
    heads: list[RidgeHead], features: Features, labels: NDArray[np.int64], classes: int
) -> tuple[RidgeHead, float]:
    """The head with the highest balanced accuracy on validation rows, and that accuracy.

    Equal accuracies are common, since validation sets have few sources. They go to the smaller squared error
    there, and only then to the larger penalty: the largest penalty of a plateau of accuracies is the last one
    before uneven class sizes make the head answer the commonest class only.
    """
    predicted, errors = _validate(heads, features, _targets(labels, classes))
    accuracies = [balanced_accuracy(confusion(labels, codes, classes)) for codes in predicted]

    def merit(i: int) -> tuple[float, float, float]:
        # Rounding makes means of the same recalls equal whatever order they were added in.
        return round(accuracies[i], 12), -errors[i], heads[i].penalty

    best = max(range(len(heads)), key=merit)
    return heads[best], accuracies[best]


def _validate(
    heads: list[RidgeHead], features: Features, targets: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(heads, n) class codes and (heads,) sums of squared errors; one product a block serves all heads."""
    first = heads[0]
    classes = len(first.intercept)
    weights = np.concatenate([head.weight for head in heads], axis=1)  # (dim, heads * classes)
    errors = np.zeros(len(heads))
    predicted = []
    start = 0
    for block in _blocks(features, weights.shape[1]):
        scores = (block - first.mean) / first.scale @ weights
        scores = scores.reshape(len(block), len(heads), classes) + first.intercept
        # One call a head, so that heads with equal scores are decided equally.
        predicted.append(np.stack([decide(scores[:, i]) for i in range(len(heads))]))
        errors += np.square(scores - targets[start : start + len(block), None]).sum(axis=(0, 2))
        start += len(block)
    return np.concatenate(predicted, axis=1), errors


def _targets(labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    return np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)


def _moments(
    features: Features, mean: NDArray[np.float64], targets: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centred X^T X (dim, dim) and X^T Y (dim, classes)."""
    dim = features.shape[1]
    gram = np.zeros((dim, dim))
    cross = np.zeros((dim, targets.shape[1]))
    start = 0
    for block in _blocks(features):
        centred = block - mean
        gram += centred.T @ centred
        cross += centred.T @ targets[start : start + len(block)]
        start += len(block)
    return gram, cross


def _blocks(features: Features, columns: int = 0) -> Iterator[NDArray[np.float64]]:
    """Blocks of rows in float64, sized for `columns` further float64 a row."""
    rows = max(1, _BLOCK_BYTES // (8 * (features.shape[1] + columns)))
    for start in range(0, len(features), rows):
        yield features[start : start + rows].astype(np.float64)
