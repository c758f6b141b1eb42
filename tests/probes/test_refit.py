import numpy as np
import pytest

from coldframe.probes.refit import Refit
from coldframe.probes.ridge import choose, fit_ridge
from coldframe.probes.selection import select_rows
from coldframe.probes.split import split_by_group
from tests.probes.memory import windows_of_random_videos


@pytest.mark.parametrize("seed", range(4))
def test_the_same_answers_as_the_readout_itself(seed: int) -> None:
    store = windows_of_random_videos()
    chosen = select_rows(store, "label", ("source",))
    split = split_by_group(chosen.components, chosen.labels, seed=0)
    matrix = store.tokens.copy()
    matrix[:, 5] = 3.0  # a constant feature
    refit = Refit(matrix, split, 4)
    labels = np.random.default_rng(seed).permutation(chosen.labels.codes)
    heads = fit_ridge(matrix[split.train], labels[split.train], 4)
    head, _ = choose(heads, matrix[split.validation], labels[split.validation], 4)
    expected = head.predict(matrix[split.test])
    assert np.array_equal(refit.predict(labels[split.train], labels[split.validation]), expected)
