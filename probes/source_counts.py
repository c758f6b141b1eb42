"""Source counts: all that a metric of decisions needs of each source, so that resampling sources is one product.

For every source and class: rows that were right, rows that are truly of the class, rows that were answered so.
Balanced accuracy, macro-F1 and top-1 of any weighting of sources follow from the weighted sum.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

HITS, TRUE, ANSWERED = range(3)
Counts = NDArray[np.float64]  # (sources, 3, classes), or (..., 3, classes) after weighting
Metric = Callable[[Counts], NDArray[np.float64]]


def source_counts(
    true: NDArray[np.int64],
    predicted: NDArray[np.int64],
    sources: NDArray[np.int64],
    *,
    classes: int,
    count: int,
) -> Counts:
    """(count, 3, classes) float64 counts.

    Args:
        true, predicted: (n,) class codes.
        sources: (n,) source of each row, below `count`.
        classes: number of classes.
        count: number of sources; those without a row are all zero.
    """
    right = true == predicted
    kinds = {HITS: (true[right], sources[right]), TRUE: (true, sources), ANSWERED: (predicted, sources)}
    out = np.zeros((count, 3, classes))
    for kind, (codes, owner) in kinds.items():
        out[:, kind] = np.bincount(owner * classes + codes, minlength=count * classes).reshape(count, classes)
    return out


def balanced_accuracy(counts: Counts) -> NDArray[np.float64]:
    """(...) mean recall over classes with a true row; NaN where there is none at all."""
    return _mean_over_present(counts[..., HITS, :], counts[..., TRUE, :], counts[..., TRUE, :])


def macro_f1(counts: Counts) -> NDArray[np.float64]:
    """(...) mean F1 over classes with a true row; NaN where there is none at all."""
    both = counts[..., TRUE, :] + counts[..., ANSWERED, :]
    return _mean_over_present(2 * counts[..., HITS, :], both, counts[..., TRUE, :])


def top1(counts: Counts) -> NDArray[np.float64]:
    """(...) share of rows that were right; NaN where there is none."""
    return _divide(counts[..., HITS, :].sum(axis=-1), counts[..., TRUE, :].sum(axis=-1))


METRICS: Mapping[str, Metric] = {"balanced_accuracy": balanced_accuracy, "macro_f1": macro_f1, "top1": top1}


def any_class_absent(counts: Counts, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(...) whether a class of `present` (classes,) has no true row."""
    absent: NDArray[np.bool_] = (counts[..., TRUE, :][..., present] == 0).any(axis=-1)
    return absent


def _mean_over_present(
    above: NDArray[np.float64], below: NDArray[np.float64], true: NDArray[np.float64]
) -> NDArray[np.float64]:
    present = true > 0
    shares = np.divide(above, below, out=np.zeros_like(above), where=present)
    return _divide(shares.sum(axis=-1), present.sum(axis=-1).astype(np.float64))


def _divide(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.full(np.shape(above), np.nan)
    np.divide(above, below, out=out, where=np.asarray(below) > 0)
    return out
