import itertools

import numpy as np
import pytest

from coldframe.probes.groups import leak_components


def parts(names: list[str]) -> set[frozenset[int]]:
    groups: dict[str, set[int]] = {}
    for item, name in enumerate(names):
        groups.setdefault(name, set()).add(item)
    return {frozenset(items) for items in groups.values()}


def names_of(columns: dict[str, list[str]], sha256: list[str]) -> list[str]:
    components = leak_components(columns, sha256)
    return [components.names[code] for code in components.codes]


def test_equal_source_or_equal_content_is_one_component() -> None:
    names = names_of({"source": ["s1", "s1", "s2", "s3", "s4"]}, ["a", "b", "c", "c", "d"])
    assert parts(names) == {frozenset({0, 1}), frozenset({2, 3}), frozenset({4})}


def test_relations_chain_over_columns() -> None:
    # 0-1 share a source, 1-2 a subject, 2-3 content: all four are kept together.
    columns = {"source": ["s1", "s1", "s2", "s3", "s4"], "subject": ["p1", "p2", "p2", "p3", "p4"]}
    assert parts(names_of(columns, ["a", "b", "c", "c", "d"])) == {frozenset({0, 1, 2, 3}), frozenset({4})}


def test_the_same_text_in_two_columns_is_no_relation() -> None:
    columns = {"source": ["x", "y"], "subject": ["y", "z"]}
    assert len(parts(names_of(columns, ["a", "b"]))) == 2


def test_empty_values_join_nothing() -> None:
    names = names_of({"source": ["", "", "s", ""]}, ["", "", "a", "a"])
    assert parts(names) == {frozenset({0}), frozenset({1}), frozenset({2, 3})}


def test_ids_do_not_depend_on_order_of_items_or_columns() -> None:
    rng = np.random.default_rng(0)
    source = [f"s{i}" for i in rng.integers(0, 12, 40)]
    subject = [f"p{i}" for i in rng.integers(0, 30, 40)]
    sha256 = [f"{i}" for i in range(40)]
    names = names_of({"source": source, "subject": subject}, sha256)
    order = rng.permutation(40)
    shuffled = names_of(
        {"subject": [subject[i] for i in order], "source": [source[i] for i in order]},
        [sha256[i] for i in order],
    )
    assert shuffled == [names[i] for i in order]
    assert all(len(name) == 16 for name in names)


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_closure_by_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = {name: [str(i) for i in rng.integers(0, 14, 18)] for name in ("source", "subject", "date")}
    sha256 = [str(i) for i in rng.integers(0, 16, 18)]
    related = np.eye(18, dtype=bool)
    for values in [*columns.values(), sha256]:
        related |= np.array([[a == b for b in values] for a in values])
    for middle in range(18):  # Warshall
        related |= related[:, [middle]] & related[[middle], :]
    names = names_of(columns, sha256)
    for one, other in itertools.combinations(range(18), 2):
        assert (names[one] == names[other]) == related[one, other]
