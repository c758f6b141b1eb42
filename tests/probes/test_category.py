import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldframe.probes.category import Category


def test_names_are_sorted_by_text_whatever_the_order() -> None:
    values = ["b", "10", "é", "2", "B", "b"]
    category = Category.from_text(values)
    assert category.names == ("10", "2", "B", "b", "é")
    assert Category.from_text(values[::-1]).names == category.names
    assert category.codes.tolist() == [3, 0, 4, 1, 2, 3]
    assert category.counts().tolist() == [1, 1, 1, 2, 1]


@given(st.lists(st.text(max_size=2), min_size=1, max_size=20))
def test_take_equals_making_it_from_the_taken_values(values: list[str]) -> None:
    items = np.random.default_rng(len(values)).integers(0, len(values), len(values))
    taken = Category.from_text(values).take(items)
    remade = Category.from_text([values[i] for i in items])
    assert taken.names == remade.names
    assert taken.codes.tolist() == remade.codes.tolist()


@pytest.mark.parametrize("values", [[], ["only"]])
def test_small_categories(values: list[str]) -> None:
    category = Category.from_text(values)
    assert len(category) == len(values)
    assert category.counts().tolist() == [1] * len(values)
