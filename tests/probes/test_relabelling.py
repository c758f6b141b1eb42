"""The null of the real score: what is exchanged, and how often a true null is rejected."""

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.probes.permutation import Null
from coldframe.probes.relabelling import Exchange, standardised_excess
from coldframe.probes.source_counts import Counts, balanced_accuracy, source_counts

Codes = NDArray[np.int64]
CLASSES = 3


def test_one_class_a_source_is_exchanged_whole() -> None:
    components = np.repeat(np.arange(12), 5)
    labels = components % 3
    out = Exchange(labels, components, np.arange(60)).draw(np.random.default_rng(0))
    assert all(len(set(out[components == source].tolist())) == 1 for source in range(12))
    assert np.array_equal(np.bincount(out), np.bincount(labels))
    assert not np.array_equal(out, labels)
    half = np.arange(30)
    part = Exchange(labels, components, half).draw(np.random.default_rng(0))
    assert np.array_equal(part[30:], labels[30:])
    assert sorted(part[:30].tolist()) == sorted(labels[:30].tolist())
    both = Exchange(labels, components, np.arange(30, 60)).draw(np.random.default_rng(1), into=part)
    assert np.array_equal(both[:30], part[:30])
    assert not np.array_equal(both[30:], labels[30:])


def seen(components: list[int], labels: list[int]) -> set[tuple[int, ...]]:
    exchange = Exchange(np.array(labels), np.array(components), np.arange(len(labels)))
    return {tuple(exchange.draw(np.random.default_rng(s)).tolist()) for s in range(200)}


def test_every_arrangement_of_the_orbit_and_no_other() -> None:
    # sources of one class and of two do not exchange with each other; a set moves whole and its names are drawn anew
    assert seen([0, 0, 0, 1], [0, 1, 1, 2]) == {(0, 1, 1, 2), (1, 0, 0, 2)}
    assert seen([0, 1, 1], [0, 1, 1]) == {(0, 1, 1), (1, 0, 0)}
    pairs = [(0, 1), (1, 0)], [(2, 3), (3, 2)]
    expected = {(*a, *b) for a, b in itertools.product(*pairs)} | {(*b, *a) for a, b in itertools.product(*pairs)}
    assert seen([0, 0, 1, 1], [0, 1, 2, 3]) == expected
    # whatever the order of rows: those that share a class in a source go on sharing one
    assert seen([5, 5, 5, 5], [0, 1, 0, 1]) == {(0, 1, 0, 1), (1, 0, 1, 0)}


def test_standardised_excess_by_hand() -> None:
    # two sources of one class each, 4 rows: all right in the first, half in the second
    counts = source_counts(
        np.repeat([0, 1], 4), np.array([0, 0, 0, 0, 1, 1, 0, 0]), np.repeat([0, 1], 4), classes=2, count=3
    )
    blind = np.array([(1 + 0.5) / 2, (0 + 0.5) / 2])  # answered 0 and 1; source 2 has no row
    parts = np.array([1 - blind[0], 0.5 - blind[1]])
    assert standardised_excess(counts) == pytest.approx(parts.sum() / np.sqrt(np.square(parts).sum()))
    always = source_counts(np.repeat([0, 1], 4), np.zeros(8, np.int64), np.repeat([0, 1], 4), classes=2, count=2)
    assert standardised_excess(always) == 0.0
    # a long source is one source: 4 rows answered 0, 0, 0, 0 and 2 rows answered 1, 0
    uneven = source_counts(
        np.array([0] * 4 + [1] * 2), np.array([0, 0, 0, 0, 1, 0]), np.array([0] * 4 + [1] * 2), classes=2, count=2
    )
    parts = np.array([1 - 0.75, 0.5 - 0.25])
    assert standardised_excess(uneven) == pytest.approx(parts.sum() / np.sqrt(np.square(parts).sum()))
    # a class without a test row has no recall
    rare = source_counts(
        np.repeat([0, 1], 4), np.array([0, 0, 0, 2, 1, 1, 0, 0]), np.repeat([0, 1], 4), classes=3, count=2
    )
    blind = np.array([(0.75 + 0.5) / 2, 0.25])
    parts = np.array([0.75 - blind[0], 0.5 - blind[1]])
    assert standardised_excess(rare) == pytest.approx(parts.sum() / np.sqrt(np.square(parts).sum()))


def one_long_rare(source: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    label = (0 if source % 10 < 7 else 1) if source % 10 < 9 else 2
    return [label], [(2, 10, 20)[label]]


def one_of_three(source: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    return [source % 3], [int(rng.integers(2, 14))]


def every_class_once(source: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    return [0, 1, 2], [4, 4, 4]


def uneven_blocks(source: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    return [0, 1, 2], [6, 3, 1]


def mixed_sets(source: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    held = rng.permutation(3)[: int(rng.integers(1, 4))]
    return held.tolist(), rng.integers(1, 8, len(held)).tolist()


Design = Callable[[int, np.random.Generator], tuple[list[int], list[int]]]
SOURCES, TESTED = 36, 12


def null_data(design: Design, rng: np.random.Generator) -> tuple[NDArray[np.float64], Codes, Codes]:
    """Rows of sources, of blocks of one class in a source, and noise: alike within either, and no class anywhere."""
    made = [design(source, rng) for source in range(SOURCES)]
    block_source = np.repeat(np.arange(SOURCES), [len(held) for held, _ in made])
    lengths = [length for _, some in made for length in some]
    block = np.repeat(np.arange(len(lengths)), lengths)
    source, label = block_source[block], np.array([name for held, _ in made for name in held])[block]
    effects = 1.5 * rng.normal(size=(SOURCES, 10))[source] + rng.normal(size=(len(lengths), 10))[block]
    return effects + 0.7 * rng.normal(size=effects.shape), source, label


def answers(train: NDArray[np.float64], test: NDArray[np.float64], labels: Codes) -> Codes:
    """(draws, n_test) of the ridge readout for labels (draws, n_train)."""
    mean, scale = train.mean(axis=0), train.std(axis=0)
    x, z = (train - mean) / scale, (test - mean) / scale
    hat = z @ np.linalg.solve(x.T @ x + 0.1 * len(x) * np.eye(x.shape[1]), x.T)
    wanted = np.where(labels[:, :, None] == np.arange(CLASSES), 1.0, -1.0)
    level = wanted.mean(axis=1, keepdims=True)
    found: Codes = (np.einsum("tn,bnc->btc", hat, wanted - level, optimize=True) + level).argmax(axis=2)
    return found


def balanced(counts: Counts) -> float:
    return float(balanced_accuracy(counts.sum(axis=0)))


def p_values(design: Design, count: int, draws: int, seed: int) -> NDArray[np.float64]:
    """(count, 3) p of data in which nothing is to be found.

    As `label_null` has it; with train labels exchanged alone, by the standardised excess; and by balanced accuracy.
    """
    rng = np.random.default_rng(seed)
    found: list[list[float]] = []
    while len(found) < count:
        x, source, label = null_data(design, rng)
        tested = np.isin(source, rng.permutation(SOURCES)[:TESTED])
        train, test = np.flatnonzero(~tested), np.flatnonzero(tested)
        if len(set(label[train].tolist())) < CLASSES or len(set(label[test].tolist())) < CLASSES:
            continue
        in_train, in_test = (Exchange(label, source, rows) for rows in (train, test))
        labels = np.stack([label, *(in_train.draw(rng) for _ in range(draws))])
        answered = answers(x[train], x[test], labels[:, train])
        truths = [label, *(in_test.draw(rng) for _ in range(draws))]

        def p(statistic: Callable[[Counts], float], pairs: Iterable[tuple[Codes, Codes]]) -> float:
            made = [
                source_counts(truth[test], row, source[test], classes=CLASSES, count=SOURCES)  # noqa: B023
                for truth, row in pairs
            ]
            values = np.array([statistic(counts) for counts in made])
            return Null(scores=values[1:]).p_value(float(values[0]))

        refitted = [(label, row) for row in answered]
        standardised = p(standardised_excess, refitted)
        ours = max(standardised, p(balanced, [(truth, answered[0]) for truth in truths]))
        found.append([ours, standardised, p(balanced, refitted)])
    return np.array(found)


@pytest.mark.parametrize(
    "design", [one_of_three, one_long_rare, every_class_once, uneven_blocks, mixed_sets], ids=lambda one: one.__name__
)
def test_a_true_null_is_rejected_no_more_often_than_claimed(design: Design) -> None:
    p = p_values(design, 200, 19, seed=0)[:, 0]
    # 0.05 and four standard errors of 200; at 0.5 a test that is never wrong by much is near one half
    assert (p <= 0.05).mean() <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 200)
    assert (p <= 0.5).mean() <= 0.5 + 4 * np.sqrt(0.25 / 200)
    assert p.min() <= 0.2  # a test that always says 1 would pass too


def test_train_labels_alone_would_reject_too_often_where_a_rare_class_has_long_videos() -> None:
    ours, _, plain = (p_values(one_long_rare, 200, 19, seed=1) <= 0.05).mean(axis=0)
    assert plain > 0.10
    assert ours <= 0.08
