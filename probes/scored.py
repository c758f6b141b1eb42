"""Scored: one head's look at the test rows of one split, the same for every readout that gives one class a row."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.calibration import Calibration, calibration, log_softmax
from coldframe.probes.metrics import balanced_accuracy, chance, confusion, decide, macro_f1, majority_top1, top1
from coldframe.probes.ranking import class_mean_recall, top_k
from coldframe.probes.selection import Selection
from coldframe.probes.split import Split

Head = TypeVar("Head")
_TOP = 5  # of a ranking; needs more classes than that


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored(Generic[Head]):
    """One split, one head, one look at its test rows.

    Attributes:
        seed: of the split or of the head (the report says which); the number of the fold for folds from a file.
        split_digest: sha256 of the division, in hexadecimal.
        part_rows, part_sources: rows and leak components in train, validation and test.
        parameters: numbers that were fitted in the head.
        head: chosen on validation, where it reached `validation_balanced_accuracy`.
        confusion: (classes, classes) test rows; true class by row, predicted by column.
        split: rows of each part, as positions in the selection.
        scores: (n, classes) of the test rows, in the order of `split.test`.
        balanced_accuracy, macro_f1, top1: on test, in [0, 1].
        top5, class_mean_recall5: likewise; None for 5 classes or fewer, where they would be 1.
        chance: balanced accuracy without looking at the features.
        majority_top1: top-1 of always answering train's commonest class.
        calibration: of the probabilities on test; None where the scores are no logits.
    """

    seed: int
    split_digest: str
    part_rows: dict[str, int]
    part_sources: dict[str, int]
    parameters: int
    head: Head
    validation_balanced_accuracy: float
    confusion: NDArray[np.int64]
    split: Split
    scores: NDArray[np.float64]
    balanced_accuracy: float
    macro_f1: float
    top1: float
    top5: float | None
    class_mean_recall5: float | None
    chance: float
    majority_top1: float
    calibration: Calibration | None


def score(
    selection: Selection,
    split: Split,
    scores: NDArray[np.floating[Any]],
    *,
    seed: int,
    head: Head,
    parameters: int,
    validation: float,
    logits: bool,
) -> Scored[Head]:
    """Score a head that was chosen on validation.

    Args:
        selection: the rows that `split` divides.
        scores: (n, classes) of the test rows, in the order of `split.test`.
        seed, head, parameters: of the result.
        validation: balanced accuracy there.
        logits: whether softmax of `scores` is a probability.
    """
    components, labels = selection.components, selection.labels
    classes = len(labels.names)
    exact, true = scores.astype(np.float64), labels.codes[split.test]
    counts = confusion(true, decide(exact), classes)
    return Scored(
        seed=seed,
        split_digest=split.digest,
        part_rows={name: len(rows) for name, rows in split.parts().items()},
        part_sources={name: len(np.unique(components.codes[rows])) for name, rows in split.parts().items()},
        parameters=parameters,
        head=head,
        validation_balanced_accuracy=validation,
        confusion=counts,
        split=split,
        scores=exact,
        balanced_accuracy=balanced_accuracy(counts),
        macro_f1=macro_f1(counts),
        top1=top1(counts),
        top5=top_k(exact, true, _TOP) if classes > _TOP else None,
        class_mean_recall5=class_mean_recall(exact, true, _TOP) if classes > _TOP else None,
        chance=chance(counts),
        majority_top1=majority_top1(labels.codes[split.train], counts),
        calibration=calibration(log_softmax(exact), true) if logits else None,
    )
