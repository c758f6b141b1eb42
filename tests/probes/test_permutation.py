import itertools

import numpy as np
import pytest
from scipy import stats

from coldframe.probes.permutation import Null, balanced_differences, holm, sign_flip, swap_test
from coldframe.probes.source_counts import Counts, balanced_accuracy, macro_f1, source_counts


def two_readouts(seed: int, sources: int = 8) -> tuple[Counts, Counts]:
    rng = np.random.default_rng(seed)
    true, owner = rng.integers(0, 3, 12 * sources), np.repeat(np.arange(sources), 12)
    good = np.where(rng.random(len(true)) < 0.7, true, rng.integers(0, 3, len(true)))
    poor = rng.integers(0, 3, len(true))
    made = [source_counts(true, answer, owner, classes=3, count=sources) for answer in (good, poor)]
    return made[0], made[1]


@pytest.mark.parametrize("alternative", ["greater", "two-sided"])
def test_exact_sign_flip_equals_enumeration_and_scipy(alternative: str) -> None:
    differences = np.random.default_rng(1).normal(0.3, 1, 9)
    found = sign_flip(differences, alternative=alternative)  # type: ignore[arg-type]
    assert (found.exact, found.flips, found.sources) == (True, 512, 9)
    expected = stats.permutation_test(
        (differences,), lambda x: x.sum(), permutation_type="samples", alternative=alternative, n_resamples=np.inf
    )
    assert found.p == pytest.approx(expected.pvalue)
    assert found.effect == pytest.approx(differences.sum())


def test_equal_sums_in_another_order_count_as_ties() -> None:
    # 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in floating point; the null holds 2 such extremes of 8, whatever rounds.
    assert sign_flip(np.array([0.1, 0.2, 0.3])).p == 2 / 8
    assert sign_flip(np.zeros(5)).p == 1.0


def test_random_flips_agree_with_the_exact_answer() -> None:
    differences = np.random.default_rng(2).normal(0.25, 1, 17)
    exact = np.mean(
        [
            np.dot(signs, differences) >= differences.sum() - 1e-12
            for signs in itertools.product([-1, 1], repeat=len(differences))
        ]
    )
    found = sign_flip(differences, alternative="greater")
    assert not found.exact
    assert found.p == pytest.approx(exact, abs=4 * np.sqrt(exact / 9999))


def test_p_of_random_flips_is_never_0() -> None:
    assert sign_flip(np.ones(40)).p == 1 / 10_000


def test_type_one_error_on_clustered_data() -> None:
    rng = np.random.default_rng(3)
    rejected = windows = 0
    for repeat in range(400):
        # Two equally good readouts; which one is better on a video is a property of the video, for 20 windows.
        difference = rng.normal(size=40)[:, None] + rng.normal(size=(40, 20))
        rejected += sign_flip(difference.sum(axis=1), flips=499, seed=repeat).p <= 0.05
        windows += stats.ttest_1samp(difference.ravel(), 0).pvalue <= 0.05
    assert rejected / 400 <= 0.07
    assert rejected > 0
    assert windows / 400 > 0.2  # what a test over windows would do


def test_power_is_not_lost() -> None:
    rng = np.random.default_rng(4)
    found = [sign_flip(rng.normal(0.8, 1, 30), flips=499).p <= 0.05 for _ in range(100)]
    assert np.mean(found) > 0.9


def test_differences_of_sources_sum_to_the_difference_of_balanced_accuracies() -> None:
    first, second = two_readouts(5)
    total = balanced_accuracy(first.sum(axis=0)) - balanced_accuracy(second.sum(axis=0))
    assert balanced_differences(first, second).sum() == pytest.approx(total, abs=1e-15)
    empty = np.zeros((2, 3, 3))
    padded = balanced_differences(np.concatenate([first, empty]), np.concatenate([second, empty]))
    assert len(padded) == 8


def test_swapping_predictions_equals_flipping_signs_for_a_mean_of_recalls() -> None:
    first, second = two_readouts(6)
    swapped = swap_test(first, second, balanced_accuracy)
    flipped = sign_flip(balanced_differences(first, second))
    assert (swapped.p, swapped.effect) == pytest.approx((flipped.p, flipped.effect))


def test_swap_test_of_macro_f1_equals_swapping_by_hand() -> None:
    first, second = two_readouts(7, sources=6)
    observed = macro_f1(first.sum(axis=0)) - macro_f1(second.sum(axis=0))
    values = []
    for swap in itertools.product([False, True], repeat=6):
        which = np.array(swap)[:, None, None]
        one, other = np.where(which, second, first), np.where(which, first, second)
        values.append(macro_f1(one.sum(axis=0)) - macro_f1(other.sum(axis=0)))
    found = swap_test(first, second, macro_f1)
    assert found.effect == pytest.approx(observed)
    assert found.p == np.mean(np.abs(values) >= abs(observed) - 1e-12)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_null_by_hand() -> None:
    null = Null(scores=np.array([0.2, 0.3, 0.4]))
    assert null.p_value(0.4) == pytest.approx(2 / 4)
    assert null.p_value(0.1 + 0.2) == pytest.approx(3 / 4)  # 0.30000000000000004 ties with 0.3
    assert null.p_value(0.9) == pytest.approx(1 / 4)
    assert (null.mean, null.sd) == pytest.approx((0.3, 0.1))
    assert null.detectable_excess == pytest.approx(0.28)
