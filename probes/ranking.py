"""Ranking: what follows from the order of scores. Top-k, class-mean recall at k, mean average precision.

Ranks are counted on scores as they are given. Give logits: a sigmoid or softmax in float32 makes large logits
equal to 1 and their order is lost (field case 50). Everything is computed over the whole set, never averaged
over batches.

    class-mean recall@k   mean over the classes present among the true labels, as in EPIC-KITCHENS-100's scorer
    average precision     (1 / P) sum over positives of precision at their rank, not interpolated; equal scores
                          form one group, as in scikit-learn
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.metrics import tie_draw


def true_ranks(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) rank of the true class of each row, 0 for the first.

    Classes with an equal score are ordered by the draw that `decide` uses, so rank 0 is its answer, and
    constant scores give each class an equal share of the first ranks.

    Args:
        scores: (n, classes) finite, n >= 1.
        labels: (n,) class codes.
    """
    if not len(labels):
        raise UsageError("there are 0 rows to score; a metric needs at least 1.")
    own = scores[np.arange(len(labels)), labels][:, None]
    ranks: NDArray[np.int64] = (scores > own).sum(axis=1)
    tied = scores == own
    rows = np.flatnonzero(tied.sum(axis=1) > 1)
    if rows.size:
        draw = tie_draw(scores.shape)[rows]
        ahead = tied[rows] & (draw > draw[np.arange(rows.size), labels[rows]][:, None])
        ranks[rows] += ahead.sum(axis=1)
    return ranks


def top_k(scores: NDArray[np.float64], labels: NDArray[np.int64], k: int) -> float:
    """Share of rows whose true class is among the `k` highest, in [0, 1]."""
    _require_k(k, scores.shape[1])
    return float((true_ranks(scores, labels) < k).mean())


def class_mean_recall(scores: NDArray[np.float64], labels: NDArray[np.int64], k: int) -> float:
    """Recall at `k` of each class present among the true labels, averaged over them, in [0, 1]."""
    _require_k(k, scores.shape[1])
    return class_mean(true_ranks(scores, labels) < k, labels)


def class_mean(hits: NDArray[np.bool_] | NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Share of hits in each class present among the true labels, averaged over them, in [0, 1]."""
    support = np.bincount(labels)
    found = np.bincount(labels, weights=hits)
    return float((found[support > 0] / support[support > 0]).mean())


def _require_k(k: int, classes: int) -> None:
    if not 1 <= k <= classes:
        raise UsageError(f"k is {k} for {classes} classes; allowed is 1 to {classes}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanAveragePrecision:
    """Mean over the classes that have a positive.

    Attributes:
        value: in (0, 1].
        per_class: (classes,) NaN for classes without a positive.
        absent: classes without a positive, which do not enter.
    """

    value: float
    per_class: NDArray[np.float64]
    absent: int


def mean_average_precision(scores: NDArray[np.float64], targets: NDArray[np.bool_]) -> MeanAveragePrecision:
    """mAP of multi-label scores. A row without any label stays, as a negative of every class.

    Args:
        scores: (n, classes) finite; only their order within a class counts.
        targets: (n, classes) bool.

    Raises:
        UsageError: no class has a positive.
    """
    values = np.array([average_precision(scores[:, c], targets[:, c]) for c in range(scores.shape[1])])
    present = np.isfinite(values)
    if not present.any():
        raise UsageError(f"no row has a label in any of {len(values)} classes; mAP needs at least one positive.")
    return MeanAveragePrecision(
        value=float(values[present].mean()), per_class=values, absent=int(np.count_nonzero(~present))
    )


def resampled_average_precision(
    scores: NDArray[np.float64], relevant: NDArray[np.bool_], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(replicates,) `average_precision` of items repeated by `weights` (replicates, n); NaN without a positive."""
    order = np.argsort(-scores, kind="stable")
    last_of_group = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    drawn = weights[:, order]
    found = np.cumsum(drawn * relevant[order], axis=1)[:, last_of_group]
    shown = np.cumsum(drawn, axis=1)[:, last_of_group]
    precision = np.divide(found, shown, out=np.zeros_like(found), where=shown > 0)
    gained = np.diff(found, prepend=0, axis=1)
    out = np.full(len(weights), np.nan)
    np.divide((precision * gained).sum(axis=1), found[:, -1], out=out, where=found[:, -1] > 0)
    return out


def average_precision(scores: NDArray[np.float64], relevant: NDArray[np.bool_]) -> float:
    """AP of one ranking, in (0, 1]; NaN if nothing is relevant.

    Args:
        scores, relevant: (n,).
    """
    positives = np.count_nonzero(relevant)
    if not positives:
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(relevant[order])
    last_of_group = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    precision = found[last_of_group] / (last_of_group + 1)
    gained = np.diff(found[last_of_group], prepend=0)
    return float((precision * gained).sum() / positives)
