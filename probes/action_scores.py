"""Scores of actions: ranks of the true classes, and what follows from them for each task.

    class-mean recall@5   mean over the classes among the rows that are scored, as in EPIC-KITCHENS' scorer; a class
                          that train does not know is one of them and counts 0
    top-1, top-5          share of the rows; not what V-JEPA 2's code calls accuracy, which is top-5

Ranks are counted on logits: a sigmoid in 16 or 32 bits makes large ones equal (field case 50).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.actions import Task
from coldframe.probes.bootstrap import Interval, cluster_robust
from coldframe.probes.heads import HeadShape, Parameters
from coldframe.probes.loader import TokenLoader
from coldframe.probes.losses import losses
from coldframe.probes.ranking import class_mean, true_ranks
from coldframe.probes.training import all_logits_of

TOP = 5
Ranks = NDArray[np.int64]  # (G, n) of the true class, 0 for the first; the number of classes where train lacks it


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """What G heads do on some rows.

    Attributes:
        ranks: one a task.
        loss: (G,) mean of the preset's loss over rows of which train knows every class; 0 if there is none.
        merit: (G,) class-mean recall of the last task, at 5 or, with 5 classes or fewer, at 1; NaN for heads that
            diverged.
    """

    ranks: tuple[Ranks, ...]
    loss: NDArray[np.float64]
    merit: NDArray[np.float64]


def rank_heads(
    loader: TokenLoader, tasks: Sequence[Task], positions: NDArray[np.int64], parameters: Parameters, shape: HeadShape
) -> Ranked:
    """Rank the classes of every row of `loader` with every head.

    Args:
        loader: of the rows at `positions`, ascending.
        tasks: one a classifier.
        positions: (n,) of the rows among those that `tasks` has codes of.
        parameters, shape: of the heads.

    Raises:
        UsageError: two heads or more, and all of them give logits that are not finite.
    """
    heads, count = len(next(iter(parameters.values()))), len(positions)
    ranks = tuple(np.empty((heads, count), np.int64) for _ in tasks)
    seen = np.all([task.is_seen[positions] for task in tasks], axis=0)
    loss, finite = np.zeros(heads), np.ones(heads, bool)
    for rows, logits in all_logits_of(loader, parameters, shape):
        at = np.searchsorted(loader.rows, rows)
        for task, own, into in zip(tasks, logits, ranks, strict=True):
            codes = task.codes[positions[at]]
            for head, values in enumerate(own.double().cpu().numpy()):
                finite[head] &= np.isfinite(values).all()
                into[head, at] = _ranks(values, codes) if finite[head] else values.shape[1]
        loss += _loss(shape, tasks, logits, positions[at], seen[at])
    merit = np.array([_merit(tasks[-1].codes[positions], one, len(tasks[-1].classes)) for one in ranks[-1]])
    merit[~finite] = np.nan
    loss[~finite] = np.nan
    return Ranked(ranks=ranks, loss=loss / max(1, int(seen.sum())), merit=merit)


def _ranks(scores: NDArray[np.float64], codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) rank of each true class; behind all others where the head has no output for it."""
    known = codes < scores.shape[1]
    found = np.full(len(codes), scores.shape[1], np.int64)
    if known.any():
        found[known] = true_ranks(scores[known], codes[known])
    return found


def _loss(
    shape: HeadShape,
    tasks: Sequence[Task],
    logits: Sequence[torch.Tensor],
    positions: NDArray[np.int64],
    seen: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """(G,) sum of the preset's loss over the rows of a batch that are seen."""
    if not seen.any():
        return np.zeros(len(logits[0]))
    device = logits[0].device
    kept = torch.from_numpy(np.flatnonzero(seen)).to(device)
    targets = [torch.from_numpy(task.codes[positions[seen]]).to(device) for task in tasks]
    summed = losses(shape.preset, [one[:, kept] for one in logits], targets).sum(dim=1)
    return np.asarray(summed.double().cpu().numpy())


def _merit(codes: NDArray[np.int64], ranks: NDArray[np.int64], classes: int) -> float:
    return class_mean(ranks < (TOP if classes > TOP else 1), codes)


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One task on some rows; shares in [0, 1].

    Attributes:
        rows: that were scored.
        classes: classes among them.
        recall5, top5: class-mean recall at 5 and top-5; None where heads have 5 classes or fewer, as both would be 1.
        recall1: class-mean recall at 1, which is balanced accuracy.
        top1: share of the rows.
    """

    rows: int
    classes: int
    recall5: float | None
    recall1: float
    top1: float
    top5: float | None


def score_task(task: Task, ranks: NDArray[np.int64], positions: NDArray[np.int64]) -> TaskScore | None:
    """Scores of the rows at `positions`, whose true classes have `ranks` (n,); None without any row."""
    if not len(positions):
        return None
    codes, ranked = task.codes[positions], len(task.classes) > TOP
    return TaskScore(
        rows=len(codes),
        classes=len(np.unique(codes)),
        recall5=class_mean(ranks < TOP, codes) if ranked else None,
        recall1=class_mean(ranks < 1, codes),
        top1=float((ranks < 1).mean()),
        top5=float((ranks < TOP).mean()) if ranked else None,
    )


def class_mean_interval(
    hits: NDArray[np.float64], codes: NDArray[np.int64], owners: NDArray[np.int64], sources: int
) -> Interval:
    """Interval over sources of class-mean recall, as the mean of rows that weigh 1 / rows of their class.

    A bootstrap of sources would drop most rare classes from every replicate, which is another mean: it covered 79 % of
    200 such sets where 95 is claimed, this one 95.5 (docs/LOG.md). The classes are those there are.

    Args:
        hits: (n,) share of seeds that had the true class among the first.
        codes, owners: (n,) class and source of each row.
        sources: number of sources.
    """
    weights = 1 / np.bincount(codes)[codes]
    found, weighed = (
        np.bincount(owners, weights=values, minlength=sources).astype(np.float64)
        for values in (weights * hits, weights)
    )
    return cluster_robust(found, weighed)


def frequency_ranks(task: Task, train: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) ranks of a rule that answers the commonest classes of train for every row, whatever it shows."""
    counts = np.bincount(task.codes[train], minlength=len(task.classes)).astype(np.float64)
    return _ranks(np.tile(counts, (len(positions), 1)), task.codes[positions])


def require_finite(ranked: Ranked) -> None:
    """Raise UsageError if a head gave logits that are no numbers."""
    if np.isnan(ranked.merit).any():
        raise UsageError(
            "the chosen heads give logits on test that are not finite. Add smaller learning rates with --lr."
        )
