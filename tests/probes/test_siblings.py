import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from coldframe.errors import RecipeMismatch, UsageError
from coldframe.probe_cli import main
from coldframe.probes.controls import Problem
from coldframe.probes.linear import linear_probe
from coldframe.probes.selection import select_rows
from coldframe.probes.siblings import Siblings, require_sibling, sibling_controls
from coldframe.probes.split import split_by_group
from coldframe.probes.verdict import Control, judged
from tests.probes.memory import MemoryStore, separable_store

WINDOWS = 4


def sibling(store: MemoryStore, control: str, tokens: NDArray[np.float32]) -> MemoryStore:
    recipe = replace(store.recipe, control=control)  # type: ignore[arg-type]
    return replace(store, recipe=recipe, tokens=tokens.astype(np.float32))


def untrained(store: MemoryStore, tokens: NDArray[np.float32]) -> MemoryStore:
    recipe = replace(store.recipe, weights_sha256="11")
    return replace(store, recipe=recipe, tokens=tokens.astype(np.float32), encoder={**store.encoder, "untrained": True})


def noise(store: MemoryStore, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=store.tokens.shape).astype(np.float32)


def found(store: MemoryStore, time_sensitive: bool | None = True, **stores: MemoryStore) -> dict[str, Control]:
    chosen = select_rows(store, "label", ("source",))
    split = split_by_group(chosen.components, chosen.labels, seed=0)
    problem = Problem(matrix=store.tokens[chosen.rows], selection=chosen, split=split)
    siblings = Siblings(stores=dict(stores), time_sensitive=time_sensitive)
    return {control.name: control for control in judged(sibling_controls(store, problem, "cls", siblings))}


def test_classes_that_only_motion_shows_pass() -> None:
    store = separable_store(videos=90)
    controls = found(store, static=sibling(store, "static", noise(store)))
    retrained = controls["static_retrain"]
    assert retrained.verdict == "pass"
    assert retrained.effect is not None
    assert retrained.effect > 0.4
    assert retrained.interval is not None
    assert retrained.interval[0] > 0
    assert retrained.p_holm is not None
    assert retrained.p_holm < 0.05
    assert controls["static_test_only"].verdict == "not_applicable"
    assert controls["encoder_digest"].verdict == "pass"


def test_classes_that_a_still_shows_do_not() -> None:
    store = separable_store(videos=90)
    still = store.tokens + 0.01 * noise(store)
    controls = found(store, static=sibling(store, "static", still))
    assert controls["static_retrain"].effect == 0.0
    assert controls["static_retrain"].verdict == "fail"
    assert (
        found(separable_store(videos=30), static=sibling(separable_store(videos=30), "static", noise(store)[:120]))[
            "static_retrain"
        ].sources
        == 6
    )


@pytest.mark.parametrize("declared", [None, False])
def test_undeclared_controls_of_time_are_measured_and_not_judged(declared: bool | None) -> None:
    store = separable_store(videos=90)
    controls = found(store, declared, shuffled=sibling(store, "shuffled", noise(store)))
    control = controls["shuffled_retrain"]
    assert (control.verdict, control.p_holm) == ("not_applicable", None)
    assert control.p is not None
    assert control.p < 0.05


def test_features_blind_to_order_are_named() -> None:
    store = separable_store(videos=90)
    control = found(store, reversed=sibling(store, "reversed", store.tokens))["reversed_retrain"]
    assert (control.effect, control.verdict) == (0.0, "not_applicable")
    assert "exactly equal" in control.reason
    arrow = found(store, reversed=sibling(store, "reversed", store.tokens))["arrow_of_time"]
    assert (arrow.effect, arrow.verdict) == (0.0, "not_applicable")
    assert "exactly equal" in arrow.reason


def test_arrow_of_time() -> None:
    store = separable_store(videos=90)
    turned = store.tokens.copy()
    turned[:, 0] += 4.0
    seen = found(store, reversed=sibling(store, "reversed", turned))["arrow_of_time"]
    assert seen.verdict == "pass"
    assert seen.effect is not None
    assert seen.effect > 0.3
    blind = found(store, reversed=sibling(store, "reversed", store.tokens + 1e-3 * noise(store)))["arrow_of_time"]
    assert blind.verdict != "pass"
    assert blind.effect is not None
    assert abs(blind.effect) < 0.15


def test_padded_clips_do_not_tell_the_arrow() -> None:
    store = separable_store(videos=90)
    store.columns["n_real"][::2] = 9
    turned = store.tokens.copy()
    turned[::2, 0] += 100.0  # only padded clips differ
    control = found(store, reversed=sibling(store, "reversed", turned))["arrow_of_time"]
    assert control.effect == pytest.approx(0.0, abs=0.15)
    assert control.verdict != "pass"
    store.columns["n_real"][:] = 9
    control = found(store, reversed=sibling(store, "reversed", turned))["arrow_of_time"]
    assert (control.effect, control.verdict) == (None, "not_applicable")


def test_random_encoder() -> None:
    store = separable_store(videos=90)
    assert found(store, None, random_init=untrained(store, noise(store)))["random_init_retrain"].verdict == "pass"


def test_stores_that_are_no_siblings_are_refused() -> None:
    store = separable_store()
    other = sibling(store, "static", store.tokens)
    require_sibling(store, other, "static")
    with pytest.raises(RecipeMismatch, match="control: 'reversed' here, 'static' in"):
        require_sibling(store, other, "reversed")
    with pytest.raises(RecipeMismatch, match="fps"):
        require_sibling(store, replace(other, recipe=replace(other.recipe, fps=15.0)), "static")
    with pytest.raises(RecipeMismatch, match="weights_sha256"):
        require_sibling(store, replace(other, recipe=replace(other.recipe, weights_sha256="22")), "static")
    moved = {**other.columns, "frame_index": other.columns["frame_index"] + 1}
    with pytest.raises(UsageError, match="holds other clips"):
        require_sibling(store, replace(other, columns=moved), "static")
    with pytest.raises(UsageError, match="not a random initialisation of its own"):
        require_sibling(store, store, "random_init")


def test_a_sibling_that_is_not_finished_is_refused() -> None:
    store = separable_store()
    half = sibling(store, "static", store.tokens)
    half.columns = {**half.columns, "status": half.columns["status"].copy()}
    half.columns["status"][3] = 2
    with pytest.raises(UsageError, match=r"has no ok row 3 \(and 0 more"):
        found(store, static=half)


def test_a_control_store_is_no_ordinary_one() -> None:
    store = separable_store()
    assert sibling(store, "static", store.tokens).recipe_id != store.recipe_id
    report = linear_probe(sibling(store, "static", store.tokens), label="label")
    assert report.store.recipe.control == "static"


def test_command(monkeypatch: pytest.MonkeyPatch) -> None:
    store = separable_store(videos=60)
    stores = {"S": store, "T": sibling(store, "static", noise(store)), "R": sibling(store, "reversed", noise(store, 1))}
    monkeypatch.setattr("coldframe.probes.controls_cli.open_store", stores.__getitem__)
    args = ["controls", "S", "--label", "label", "--static", "T", "--reversed", "R", "--time-sensitive"]
    result = CliRunner().invoke(main, [*args, "--permutations", "99", "--json"])
    data = json.loads(result.stdout)
    names = {control["name"]: control["verdict"] for control in data["controls"]}
    assert {"static_retrain", "static_test_only", "reversed_retrain", "arrow_of_time", "encoder_digest"} <= set(names)
    assert result.exit_code == int("fail" in names.values())
    tested = [control for control in data["controls"] if control["p_holm"] is not None]
    assert all(control["p_holm"] >= control["p"] for control in tested)
