"""Baseline controls: does the encoder say more than colour histograms and motion of the very same frames?

The store keeps both if it was extracted with `--baselines`. Each gets the ridge readout and the split of the encoder's
features, and the two are compared on the same test rows.
"""

from typing import get_args

from coldframe.probes.controls import Problem
from coldframe.probes.features import FeatureKind, TokenStore, read_features
from coldframe.probes.paired import difference, fitted
from coldframe.probes.verdict import Control

KINDS: tuple[FeatureKind, ...] = tuple(kind for kind in get_args(FeatureKind) if kind.startswith("baseline_"))


def baseline_controls(store: TokenStore, problem: Problem, features: FeatureKind) -> list[Control]:
    """`baseline_colour` and `baseline_motion`; judge them with `verdict.judged`.

    Args:
        store: where the baselines are.
        problem: with the encoder's features.
        features: what these are; a baseline is not compared with itself, nor with the other.
    """
    why_not = ""
    if features in KINDS:
        why_not = "these features are a baseline themselves"
    elif store.recipe.baselines == "none":
        why_not = "the store keeps none: extract with --baselines into a new store"
    if why_not:
        what = "balanced accuracy of the encoder minus that of colour or motion"
        return [Control(name="baselines", what=what, effect=None, verdict="not_applicable", reason=why_not)]
    test = problem.split.test
    real = fitted(problem, problem.matrix).scores(problem.matrix[test])
    found = []
    for kind in KINDS:
        matrix = read_features(store, problem.selection.rows, kind)
        alone = fitted(problem, matrix).scores(matrix[test])
        what = f"balanced accuracy of the encoder minus that of {kind.removeprefix('baseline_')} alone"
        found.append(difference(problem, real, alone, name=kind, what=what))
    return found
