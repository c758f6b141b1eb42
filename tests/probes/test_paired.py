"""Two readouts on the same test rows: effect, one-sided p, and what the test could have found."""

import itertools

import numpy as np
import pytest

from coldframe.probes.controls import Problem
from coldframe.probes.paired import difference, weak
from coldframe.probes.selection import select_rows
from coldframe.probes.split import split_by_group
from tests.probes.memory import separable_store


def test_effect_p_and_power_by_hand() -> None:
    store = separable_store(videos=60)  # 12 test sources, 4 of each of 3 classes, 4 windows each
    chosen = select_rows(store, "label", ("source",))
    split = split_by_group(chosen.components, chosen.labels, seed=0)
    problem = Problem(matrix=store.tokens, selection=chosen, split=split)
    truth, source = chosen.labels.codes[split.test], chosen.components.codes[split.test]
    rng = np.random.default_rng(1)
    right = [rng.random(48) < share for share in (0.8, 0.6)]
    scores = [np.eye(3)[np.where(hit, truth, (truth + 1) % 3)] for hit in right]
    found = difference(problem, scores[0], scores[1], name="n", what="w")
    # all classes have 16 rows, so balanced accuracy is the share of right rows
    gained = right[0].astype(float) - right[1]
    parts = np.array([gained[source == one].sum() / 48 for one in np.unique(source)])
    assert len(parts) == 12
    assert found.effect == pytest.approx(parts.sum())
    assert found.effect is not None
    assert found.effect > 0
    sums = [np.dot(signs, parts) for signs in itertools.product([-1, 1], repeat=12)]
    assert found.p == pytest.approx(np.mean(np.array(sums) >= parts.sum() - 1e-12))
    assert found.detectable == pytest.approx(2.8 * np.sqrt((parts**2).sum()))
    assert found.reason == weak(12, found.detectable or 0.0)
    worse = difference(problem, scores[1], scores[0], name="n", what="w")
    assert worse.p is not None
    assert worse.p > 0.5  # one-sided: a control that beats the real clips is no evidence for them


def test_weak_tests_say_why() -> None:
    assert weak(9, 0.01) == "9 test sources, and 10 are needed"
    assert weak(12, 0.2) == "with 12 test sources only a difference of 0.20 or more would be seen"
    assert weak(12, 0.05) == ""
