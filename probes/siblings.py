"""Siblings: stores of the same clips under a control, and what the difference to the real clips says.

    static, reversed, shuffled   the same plan extracted with `coldframe extract --control ...`
    random_init                  the same plan with an untrained encoder of the same shape

`*_retrain` fits the readout on the control and asks what it can solve alone. `*_test_only` gives the control to the
readout of the real clips; it is confounded by the shift (no encoder was trained on frozen video) and is not judged.
`arrow_of_time` tells a clip from the same frames reversed; its accuracy is compared with one half.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import RecipeMismatch, UsageError
from coldframe.probes.bootstrap import cluster_robust
from coldframe.probes.controls import Problem
from coldframe.probes.features import FeatureKind, TokenStore, read_features
from coldframe.probes.paired import difference, fitted, weak
from coldframe.probes.permutation import DETECTABLE_SDS, sign_flip
from coldframe.probes.ridge import RidgeHead, choose, fit_ridge
from coldframe.probes.verdict import Control, ends

_TIMES = ("static", "reversed", "shuffled")
_BLIND = "the features are exactly equal: the encoder, or the readout, cannot see the order of frames"
_CONFOUNDED = "confounded by clips that the encoder was never trained on; see the retrained control"


@dataclass(frozen=True, kw_only=True)
class Siblings:
    """Control stores, each optional.

    Attributes:
        stores: by control: `static`, `reversed`, `shuffled`, `random_init`.
        time_sensitive: whether the labels depend on the order of frames, declared before looking; None if nobody
            said so, and then controls of time are measured and not judged.
    """

    stores: dict[str, TokenStore]
    time_sensitive: bool | None


def require_sibling(store: TokenStore, sibling: TokenStore, control: str) -> None:
    """Refuse a store that is not `store` under `control`: other recipe, other videos, other frames.

    Raises:
        RecipeMismatch: something else in the recipe differs.
        UsageError: other clips, or a random encoder that says it was trained.
    """
    # baselines beside the tokens do not change them
    here, there = (replace(one.recipe, baselines="none").to_dict() for one in (store, sibling))
    wanted = {**here, "control": control}
    if control == "random_init":
        wanted = {**here, "weights_sha256": there["weights_sha256"]}
        if not sibling.encoder.get("untrained") or here["weights_sha256"] == there["weights_sha256"]:
            raise UsageError(
                f"the encoder of {sibling.name} is not a random initialisation of its own: export one "
                "with `coldframe export ... --random-init SEED` and extract with it."
            )
    if there != wanted:
        raise RecipeMismatch(sibling.name, wanted, there)
    same = (
        list(store.video_column("sha256")) == list(sibling.video_column("sha256"))
        and np.array_equal(store.column("video"), sibling.column("video"))
        and np.array_equal(store.column("frame_index"), sibling.column("frame_index"))
    )
    if not same:
        raise UsageError(
            f"{sibling.name} holds other clips than {store.name}: extract the same videos "
            "with the same recipe and --control."
        )


def sibling_controls(store: TokenStore, problem: Problem, features: FeatureKind, siblings: Siblings) -> list[Control]:
    """Every control that `siblings` allows; judge them with `verdict.judged`."""
    rows = problem.selection.rows
    found = []
    if siblings.stores:
        found.append(_digest(store, siblings))
    real = fitted(problem, problem.matrix)
    for name, sibling in siblings.stores.items():
        require_sibling(store, sibling, name)
        lost = np.setdiff1d(rows, sibling.ok_rows())
        if len(lost):
            raise UsageError(
                f"{sibling.name} has no ok row {lost[0]} (and {len(lost) - 1} more that are used): "
                "run its extraction to the end."
            )
        matrix = read_features(sibling, rows, features)
        found += _differences(problem, real, matrix, name, siblings.time_sensitive)
        if name == "reversed":
            full = store.column("n_real")[rows] == store.recipe.frames
            found.append(_arrow(problem, matrix, full, siblings.time_sensitive))
    return found


def _digest(store: TokenStore, siblings: Siblings) -> Control:
    digests = {s.recipe.weights_sha256 for name, s in siblings.stores.items() if name != "random_init"}
    equal = digests <= {store.recipe.weights_sha256}
    return Control(
        name="encoder_digest",
        what="weights of the encoder in all stores but that of the random one",
        effect=None,
        verdict="pass" if equal else "fail",
        reason=f"sha256 {store.recipe.weights_sha256[:12]} in each" if equal else "they differ",
    )


def _differences(
    problem: Problem, real: RidgeHead, matrix: NDArray[np.float32], name: str, time_sensitive: bool | None
) -> list[Control]:
    """The control with its own readout, and, for a control of time, with the readout of the real clips."""
    test = problem.split.test
    shown = real.scores(problem.matrix[test])
    retrained = fitted(problem, matrix).scores(matrix[test])
    what = f"balanced accuracy of the real clips minus that of {name.replace('_', '-')} ones"
    unseen = bool(np.array_equal(problem.matrix, matrix))
    judge = name not in _TIMES or bool(time_sensitive)
    undeclared = "nobody declared whether these labels depend on time (--time-sensitive)"
    unjudged = undeclared if time_sensitive is None else "these labels were declared not to depend on time"
    why_not = _BLIND if unseen else "" if judge else unjudged
    out = [difference(problem, shown, retrained, name=f"{name}_retrain", what=what, not_judged=why_not)]
    if name in _TIMES:
        why_not = _BLIND if unseen else _CONFOUNDED
        moved = real.scores(matrix[test])
        out.append(difference(problem, shown, moved, name=f"{name}_test_only", what=what, not_judged=why_not))
    return out


def _arrow(
    problem: Problem, reversed_matrix: NDArray[np.float32], full: NDArray[np.bool_], time_sensitive: bool | None
) -> Control:
    """Forward against reversed clips of the same frames. Padded clips are left out: padding tells them apart."""
    split, components = problem.split, problem.selection.components.codes

    def both(rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        kept = rows[full[rows]]
        return np.concatenate([problem.matrix[kept], reversed_matrix[kept]]), np.repeat([0, 1], len(kept))

    name, what = "arrow_of_time", "accuracy of telling a clip from its reversal, minus one half"
    if not all(full[rows].any() for rows in split.parts().values()):
        reason = "a part has no clip without padding"
        return Control(name=name, what=what, effect=None, verdict="not_applicable", reason=reason)
    if np.array_equal(problem.matrix[full], reversed_matrix[full]):
        return Control(name=name, what=what, effect=0.0, verdict="not_applicable", reason=_BLIND)
    head, _ = choose(fit_ridge(*both(split.train), 2), *both(split.validation), 2)
    features, truth = both(split.test)
    right = head.predict(features) == truth
    owners = np.tile(components[split.test[full[split.test]]], 2)
    count = int(components.max()) + 1
    hits = np.bincount(owners, weights=right, minlength=count).astype(np.float64)
    rows = np.bincount(owners, minlength=count).astype(np.float64)
    # Exchanging the two labels of a source turns its accuracy around one half: a sign flip.
    test = sign_flip(((hits - rows / 2) / rows.sum())[rows > 0], alternative="greater")
    interval = ends(cluster_robust(hits, rows))
    detectable = DETECTABLE_SDS * float(np.sqrt(np.square((hits - rows / 2) / rows.sum()).sum()))
    judge = bool(time_sensitive)
    return Control(
        name=name,
        what=what,
        effect=test.effect,
        interval=None if interval is None else (interval[0] - 0.5, interval[1] - 0.5),
        p=test.p,
        draws=test.flips,
        sources=test.sources,
        detectable=detectable,
        verdict="inconclusive" if judge else "not_applicable",
        reason=weak(test.sources, detectable) if judge else "these labels are not declared to depend on time",
    )
