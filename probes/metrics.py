"""Point metrics of one classifier on one test set. All are computed from counts over the whole set.

Definitions: balanced accuracy is the mean recall over the classes that occur among the true labels (as in
scikit-learn, and as class-mean recall in EPIC-KITCHENS); classes that are only predicted do not enter.
"""

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError

_TIE_SEED = 0


def decide(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Class with the highest score of each row; equal highest scores are decided by a fixed random draw.

    Always taking the first of equal scores would favour low class codes: constant scores on a test set
    sorted by class could even look right.

    Args:
        scores: (n, classes) finite.

    Returns:
        (n,) class codes.
    """
    tied = scores == scores.max(axis=1, keepdims=True)
    best: NDArray[np.int64] = tied.argmax(axis=1)
    rows = np.flatnonzero(tied.sum(axis=1) > 1)
    if rows.size:
        best[rows] = np.where(tied[rows], tie_draw(scores.shape)[rows], -1.0).argmax(axis=1)
    return best


def tie_draw(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The fixed draw in [0, 1) that orders equal scores, the largest first; one for every rule that ranks."""
    return np.random.default_rng(_TIE_SEED).random(shape)


def confusion(true: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """(classes, classes) counts; the row is the true class, the column the predicted one.

    Raises:
        UsageError: there is nothing to count.
    """
    if not len(true):
        raise UsageError("there are 0 rows to score; a metric needs at least 1.")
    counts = np.bincount(true * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)


def recalls(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """(classes,) share of each true class that was found; NaN for classes without a row in the test set.

    Args:
        counts: confusion matrix as `confusion` gives it.
    """
    support = counts.sum(axis=1)
    found = np.diagonal(counts).astype(np.float64)
    share = np.full(len(support), np.nan)
    np.divide(found, support, out=share, where=support > 0)
    return share


def balanced_accuracy(counts: NDArray[np.int64]) -> float:
    """Mean recall over the classes present among the true labels, in [0, 1]."""
    return float(np.nanmean(recalls(counts)))


def macro_f1(counts: NDArray[np.int64]) -> float:
    """Mean F1 over the classes present among the true labels, in [0, 1].

    F1 of a class is 2 hits / (true rows + predicted rows). scikit-learn's default also averages over classes
    that are only predicted, each with F1 0, so that one stray prediction costs 1 / classes.
    """
    support = counts.sum(axis=1)
    present = support > 0
    f1 = 2 * np.diagonal(counts)[present] / (support + counts.sum(axis=0))[present]
    return float(f1.mean())


def top1(counts: NDArray[np.int64]) -> float:
    """Share of rows whose predicted class is the true one, in [0, 1]."""
    return float(np.trace(counts) / counts.sum())


def chance(counts: NDArray[np.int64]) -> float:
    """Balanced accuracy of any rule that does not look at the features: 1 / classes present."""
    return float(1 / np.count_nonzero(counts.sum(axis=1)))


def majority_top1(train: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """Top-1 of always answering the commonest class of the train set (the first of equally common ones).

    Args:
        train: (n,) class codes of the train set.
        counts: confusion matrix of the test set.
    """
    commonest = int(np.bincount(train, minlength=len(counts)).argmax())
    return float(counts[commonest].sum() / counts.sum())
