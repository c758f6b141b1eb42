import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.errors import UsageError
from coldframe.probes.category import Category
from coldframe.probes.split import PARTS, Split, components_per_class, require_disjoint, split_by_group


def columns(sources: int, classes: int, seed: int = 0, rows_per_source: int = 6) -> tuple[Category, Category]:
    """Sources of uneven length, one class each."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 2 * rows_per_source, sources)
    source = np.repeat(np.arange(sources), lengths)
    return (
        Category.from_text([f"source {s}" for s in source]),
        Category.from_text([f"class {s % classes}" for s in source]),
    )


def sides(components: Category, seed: int, labels: Category) -> dict[str, str]:
    split = split_by_group(components, labels, seed=seed)
    return {components.names[components.codes[row]]: name for name, rows in split.parts().items() for row in rows}


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5), st.integers(3, 9), st.integers(0, 1000))
def test_whole_components_every_row_once_every_class_everywhere(
    classes: int, sources_per_class: int, seed: int
) -> None:
    components, labels = columns(classes * sources_per_class, classes, seed)
    split = split_by_group(components, labels, seed=seed)
    require_disjoint(split, components)
    assert sorted(np.concatenate(list(split.parts().values())).tolist()) == list(range(len(components)))
    for rows in split.parts().values():
        assert np.all(np.diff(rows) > 0)
        assert set(labels.codes[rows]) == set(range(classes))


@pytest.mark.parametrize(
    ("per_class", "expected"), [(3, (1, 1, 1)), (5, (3, 1, 1)), (10, (6, 2, 2)), (50, (30, 10, 10))]
)
def test_ratios_hold_for_the_sources_of_each_class(per_class: int, expected: tuple[int, int, int]) -> None:
    components, labels = columns(per_class * 4, 4)
    split = split_by_group(components, labels, seed=3)
    for code in range(4):
        of_class = [len(set(components.codes[rows][labels.codes[rows] == code])) for rows in split.parts().values()]
        assert tuple(of_class) == expected


def test_does_not_depend_on_row_order() -> None:
    components, labels = columns(40, 4)
    order = np.random.default_rng(9).permutation(len(components))
    shuffled = (
        Category.from_text([components.names[components.codes[i]] for i in order]),
        Category.from_text([labels.names[labels.codes[i]] for i in order]),
    )
    assert sides(components, 7, labels) == sides(shuffled[0], 7, shuffled[1])
    digests = {split_by_group(c, y, seed=7).digest for c, y in [(components, labels), shuffled]}
    assert len(digests) == 1


def test_seeds_give_other_splits_and_the_same_seed_the_same() -> None:
    components, labels = columns(40, 4)
    digests = [split_by_group(components, labels, seed=seed).digest for seed in (0, 1, 2, 0)]
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]


def test_a_long_source_counts_once() -> None:
    lengths = [500] + [4] * 19
    components = Category.from_text([f"s{s}" for s, n in enumerate(lengths) for _ in range(n)])
    labels = Category.from_text([f"c{s % 2}" for s, n in enumerate(lengths) for _ in range(n)])
    for seed in range(10):
        split = split_by_group(components, labels, seed=seed)
        assert [len(set(components.codes[rows])) for rows in split.parts().values()] == [12, 4, 4]


def test_sources_with_several_classes() -> None:
    rng = np.random.default_rng(2)
    components = Category.from_text([f"s{i}" for i in np.repeat(np.arange(60), 12)])
    labels = Category.from_text([f"c{i}" for i in rng.zipf(1.6, 720) % 9])
    split = split_by_group(components, labels, seed=0)
    require_disjoint(split, components)
    for rows in split.parts().values():
        assert set(labels.codes[rows]) == set(range(9))


def test_impossible_coverage_is_refused() -> None:
    # Each of the 4 triples of 4 sources is a class: all sources would have to be in different parts, of 3.
    pairs = [(f"s{s}", f"c{c}") for c in range(4) for s in range(4) if s != c]
    components, labels = (Category.from_text(values) for values in zip(*pairs, strict=True))
    with pytest.raises(UsageError, match="every class in train, validation and test"):
        split_by_group(components, labels, seed=0)


def test_classes_with_too_few_sources_are_refused_by_name() -> None:
    components = Category.from_text(["s0", "s1", "s2", "s3", "s4", "s4"])
    labels = Category.from_text(["a", "a", "a", "b", "b", "b"])
    assert components_per_class(components, labels).tolist() == [3, 2]
    with pytest.raises(UsageError, match=r"'b' \(fewer than 3 each\)"):
        split_by_group(components, labels, seed=0)


@pytest.mark.parametrize("ratios", [(0.6, 0.2, 0.1), (1.0, 0.0, 0.0), (1.2, -0.1, -0.1), (math.nan, 0.5, 0.5)])
def test_ratios_must_be_positive_and_sum_to_one(ratios: tuple[float, float, float]) -> None:
    components, labels = columns(12, 2)
    with pytest.raises(UsageError, match="sum to 1"):
        split_by_group(components, labels, ratios=ratios, seed=0)


@pytest.mark.parametrize(("one", "other"), [("train", "test"), ("train", "validation"), ("validation", "test")])
def test_component_on_two_sides_is_refused(one: str, other: str) -> None:
    components, labels = columns(30, 3)
    split = split_by_group(components, labels, seed=0)
    rows = split.parts()[one]
    leaking = rows[components.codes[rows] == np.bincount(components.codes[rows]).argmax()]
    name = components.names[components.codes[leaking[0]]]
    parts = split.parts()
    parts[one], parts[other] = np.setdiff1d(rows, leaking[:1]), np.append(parts[other], leaking[:1])
    moved = Split(components=components, digest=split.digest, **parts)
    with pytest.raises(UsageError, match=f"leaky split: 1 of 30 sources .* {name} in {one} and {other}"):
        require_disjoint(moved, components)


def test_one_row_in_two_parts_is_refused() -> None:
    components, labels = columns(30, 3)
    split = split_by_group(components, labels, seed=0)
    with pytest.raises(UsageError, match="leaky split"):
        require_disjoint(replace(split, test=np.append(split.test, split.train[0])), components)


def test_part_names_are_those_of_the_split() -> None:
    components, labels = columns(30, 3)
    assert tuple(split_by_group(components, labels, seed=0).parts()) == PARTS
