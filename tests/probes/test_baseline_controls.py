"""The encoder against colour and motion of the same frames."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.probes.baseline_controls import baseline_controls
from coldframe.probes.control_report import run_controls, to_text
from coldframe.probes.controls import Problem
from coldframe.probes.features import FeatureKind
from coldframe.probes.linear import linear_probe
from coldframe.probes.permutation import balanced_differences, sign_flip
from coldframe.probes.selection import select_rows
from coldframe.probes.source_counts import source_counts
from coldframe.probes.split import split_by_group
from coldframe.probes.verdict import Control, judged
from tests.probes.memory import MemoryStore, separable_store


def with_baselines(store: MemoryStore, colour: NDArray[np.float32], motion: NDArray[np.float32]) -> MemoryStore:
    recipe = replace(store.recipe, baselines="colour+motion")
    return replace(store, recipe=recipe, baselines={"colour": colour, "motion": motion})


def noise(store: MemoryStore, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(len(store.tokens), 6)).astype(np.float32)


def found(store: MemoryStore, features: FeatureKind = "cls") -> dict[str, Control]:
    chosen = select_rows(store, "label", ("source",))
    split = split_by_group(chosen.components, chosen.labels, seed=0)
    problem = Problem(matrix=store.tokens[chosen.rows], selection=chosen, split=split)
    return {control.name: control for control in judged(baseline_controls(store, problem, features))}


def test_an_encoder_that_beats_both_passes_and_one_that_colour_equals_fails() -> None:
    store = separable_store(videos=90)
    beaten = found(with_baselines(store, noise(store, 1), noise(store, 2)))
    assert [control.verdict for control in beaten.values()] == ["pass", "pass"]
    assert beaten["baseline_colour"].p_holm == pytest.approx(2 * (beaten["baseline_motion"].p or 0))
    equal = found(with_baselines(store, store.tokens, noise(store, 2)))
    assert (equal["baseline_colour"].effect, equal["baseline_colour"].verdict) == (0.0, "fail")
    assert equal["baseline_motion"].verdict == "pass"


def test_effect_and_p_are_those_of_two_separate_probes_on_the_same_split() -> None:
    store = separable_store(videos=90)
    store = with_baselines(store, store.tokens[:, :2] + 4 * noise(store, 3)[:, :2], noise(store, 2))
    reports = [linear_probe(store, label="label", features=kind, seeds=[0]) for kind in ("cls", "baseline_colour")]
    first, second = (report.results[0] for report in reports)
    assert first.split_digest == second.split_digest
    control = found(store)["baseline_colour"]
    assert control.effect == pytest.approx(first.balanced_accuracy - second.balanced_accuracy, abs=1e-12)
    codes = reports[0].selection
    test = first.split.test
    counts = [
        source_counts(
            codes.labels.codes[test], one.scores.argmax(axis=1), codes.components.codes[test], classes=3, count=90
        )
        for one in (first, second)
    ]
    assert control.p == sign_flip(balanced_differences(*counts), alternative="greater").p


def test_nothing_is_claimed_where_there_is_nothing_to_compare_with() -> None:
    store = separable_store(videos=90)
    absent = found(store)["baselines"]
    assert (absent.verdict, absent.effect) == ("not_applicable", None)
    assert "extract with --baselines" in absent.reason
    itself = found(with_baselines(store, noise(store, 1), noise(store, 2)), "baseline_colour")["baselines"]
    assert "a baseline themselves" in itself.reason


def test_they_are_in_the_verdict_table_and_in_its_family() -> None:
    store = separable_store(videos=90)
    report = run_controls(
        with_baselines(store, noise(store, 1), noise(store, 2)), label="label", seeds=[0], permutations=99
    )
    tested = [control.name for control in report.controls if control.p_holm is not None]
    assert tested == ["label_null", "baseline_colour", "baseline_motion"]
    assert "baseline_motion" in to_text(report)
