"""VideoGLUE's averages (arXiv 2307.03166, text of version 1): over task groups, and over adaptations by their cost.

Printed averages are means over task groups of the means over each group's datasets, without action localisation
(TAL). 17 of the 18 rows of the paper's Tables 3, 4 and 6 agree within 0.05; CLIP in Table 3 and all of Table 5 do not.

The VideoGLUE score (VGS) weights adaptations by 1 / log10 of their trainable FLOPs in units of 1e9. It depends on that
unit and on whether a multiply-add counts as one or two, its weight explodes at 1 GFLOP and is negative below; such
costs are refused. The paper's value has four adaptations, of which two read a store of frozen features: a score over
those two is another number and must not stand beside the paper's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coldframe.errors import UsageError

TASK_GROUPS: Mapping[str, tuple[str, ...]] = {
    "STAL": ("AVA", "AVA-K"),
    "TAL": ("ANet",),
    "VC(A)": ("K400", "MiT"),
    "VC(M)": ("D48", "SSv2"),
    "VC(ML)": ("Charades",),
}
PRINTED_TOLERANCE = 0.1  # half a unit of the printed average, and as much carried over from the printed cells


@dataclass(frozen=True, kw_only=True)
class GroupAverage:
    """A mean over task groups.

    Attributes:
        value: in the unit of the scores.
        groups: mean of each group that has a score.
        missing_datasets: without a score in a group that has others; the group's mean is over those.
        missing_groups: without any score; the value is comparable only with values that lack the same groups.
    """

    value: float
    groups: dict[str, float]
    missing_datasets: tuple[str, ...]
    missing_groups: tuple[str, ...]

    def agrees(self, printed: float) -> bool:
        """Whether an average printed with one decimal can be this one."""
        return abs(self.value - printed) <= PRINTED_TOLERANCE


def group_average(scores: Mapping[str, float], *, include_tal: bool = False) -> GroupAverage:
    """Mean over task groups of the mean over their datasets.

    Args:
        scores: one a dataset of `TASK_GROUPS`.
        include_tal: whether action localisation counts; the printed averages leave it out.

    Raises:
        UsageError: an unknown dataset, a score that is not finite, or nothing to average.
    """
    known = {name for names in TASK_GROUPS.values() for name in names}
    unknown = sorted(set(scores) - known)
    if unknown:
        raise UsageError(f"VideoGLUE has no dataset {unknown[0]!r}; its datasets are {', '.join(sorted(known))}.")
    _require_finite(scores)
    used = {name: names for name, names in TASK_GROUPS.items() if include_tal or name != "TAL"}
    held = {name: [scores[one] for one in names if one in scores] for name, names in used.items()}
    groups = {name: math.fsum(values) / len(values) for name, values in held.items() if values}
    if not groups:
        raise UsageError(
            f"no task group has a score; give one of {', '.join(n for names in used.values() for n in names)}."
        )
    return GroupAverage(
        value=math.fsum(groups.values()) / len(groups),
        groups=groups,
        missing_datasets=tuple(one for name in groups for one in used[name] if one not in scores),
        missing_groups=tuple(name for name in used if name not in groups),
    )


def cost_weights(gflops: Sequence[float]) -> list[float]:
    """VGS weight of each adaptation; they sum to 1.

    Args:
        gflops: trainable FLOPs of a forward pass, in units of 1e9, each above 1.

    Raises:
        UsageError: nothing to weight, or a cost of 1 GFLOP or less, where the formula has no meaning.
    """
    if not gflops:
        raise UsageError("there are 0 costs to weight by; VGS needs at least 1.")
    for cost in gflops:
        if not 1 < cost < math.inf:
            raise UsageError(
                f"an adaptation costs {cost} GFLOP; VGS weights by 1 / log10 of it, infinite at 1 and negative "
                "below: allowed is more than 1. Report scores and costs side by side instead."
            )
    inverse = [1 / math.log10(cost) for cost in gflops]
    return [value / math.fsum(inverse) for value in inverse]


def weighted_score(scores: Mapping[str, float], gflops: Mapping[str, float]) -> float:
    """VGS of the adaptations in `scores`, by their costs in units of 1e9 FLOPs.

    With less than the paper's four adaptations this is another number; say which ones it has, as in `VGS2_frozen_mlap`.

    Raises:
        UsageError: other adaptations in one than in the other, or a cost that has no weight.
    """
    if set(scores) != set(gflops):
        raise UsageError(
            f"scores are of {', '.join(sorted(scores))} and costs of {', '.join(sorted(gflops))}; both need the same "
            "adaptations."
        )
    _require_finite(scores)
    weights = cost_weights(list(gflops.values()))
    return math.fsum(weight * scores[name] for name, weight in zip(gflops, weights, strict=True))


def _require_finite(scores: Mapping[str, float]) -> None:
    for name, value in scores.items():
        if not math.isfinite(value):
            raise UsageError(f"the score of {name} is {value}; leave out what was not measured.")
