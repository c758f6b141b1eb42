"""Split: which rows train, choose and test. Whole leak components, so no test row has a relative in train.

The assignment is greedy and stratified, over components and not rows: components are the independent units,
and one long video must not count as many. In the order of a hash of seed and component name, which does not
depend on the order of the rows, each goes to the part that lacks most of the share of its classes.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.category import Category
from coldframe.store.recipe import canonical_json

PARTS = ("train", "validation", "test")
MIN_COMPONENTS = len(PARTS)  # a class with fewer cannot be in every part
_ATTEMPTS = 100


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Rows of each part, as positions into the columns that were split; ascending.

    Attributes:
        train, validation, test: (n_part,) int64.
        components: the component of every row.
        digest: sha256, in hexadecimal, over each part's components with their rows of each class; the same
            division has the same digest whatever the order of the rows.
    """

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    components: Category
    digest: str

    def parts(self) -> dict[str, NDArray[np.int64]]:
        return {name: getattr(self, name) for name in PARTS}


def split_by_group(
    components: Category,
    labels: Category,
    *,
    ratios: tuple[float, float, float] = (0.6, 0.2, 0.2),
    seed: int,
) -> Split:
    """Divide rows into train, validation and test by whole components, with every class in every part.

    Args:
        components: leak component of every row.
        labels: class of every row.
        ratios: wanted share of each class's components in train, validation and test; sums to 1.
        seed: another seed gives another division, where there is more than one.

    Raises:
        UsageError: a class has fewer than 3 components, or no division has every class in every part.
    """
    require_ratios(ratios)
    sources = components_per_class(components, labels)
    few = [name for name, count in zip(labels.names, sources, strict=True) if count < MIN_COMPONENTS]
    if few:
        raise UsageError(
            f"too few sources to split by: {', '.join(map(repr, few))} (fewer than {MIN_COMPONENTS} each). "
            "Leave these classes out or add sources."
        )
    for attempt in range(_ATTEMPTS):
        part_of_component = assign(components, labels, ratios, f"{seed}:{attempt}")
        if covers(part_of_component, components, labels, parts=len(PARTS)):
            part_of_row = part_of_component[components.codes]
            train, validation, test = (np.flatnonzero(part_of_row == part) for part in range(len(PARTS)))
            return build_split(components, labels, train=train, validation=validation, test=test)
    raise UsageError(
        "found no split by source that has every class in train, validation and test: sources that hold "
        f"several classes are too entangled ({_ATTEMPTS} attempts). Add sources or leave rare classes out."
    )


def require_ratios(ratios: Sequence[float]) -> None:
    """Refuse shares of parts that are not positive or do not sum to 1.

    Raises:
        UsageError: they are not.
    """
    if not (min(ratios) > 0 and abs(sum(ratios) - 1) <= 1e-9):  # nan is neither
        raise UsageError(f"split ratios are {ratios}; allowed are three positive numbers that sum to 1.")


def require_disjoint(split: Split, components: Category) -> None:
    """Refuse a split that shares a row or a component between two parts.

    Args:
        components: component of every row that the split's positions point into.

    Raises:
        UsageError: two parts share a component; the message shows one.
    """
    part_of: dict[int, str] = {}
    leaks: dict[int, tuple[str, str]] = {}
    for name, rows in split.parts().items():
        for code in np.unique(components.codes[rows]).tolist():
            if part_of.setdefault(code, name) != name:
                leaks[code] = (part_of[code], name)
    if leaks:
        code, (one, other) = next(iter(sorted(leaks.items())))
        raise UsageError(
            f"leaky split: {len(leaks)} of {len(part_of)} sources have rows in two parts, such as component "
            f"{components.names[code]} in {one} and {other}. Split by whole sources."
        )


def components_per_class(components: Category, labels: Category) -> NDArray[np.int64]:
    """(classes,) distinct components among the rows of each class."""
    return np.bincount(_pairs(components, labels)[1], minlength=len(labels.names)).astype(np.int64)


def _pairs(components: Category, labels: Category) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Component and class codes of every combination that occurs, sorted."""
    width = len(labels.names)
    pairs = np.unique(components.codes * width + labels.codes)
    return pairs // width, pairs % width


def assign(components: Category, labels: Category, ratios: Sequence[float], salt: str) -> NDArray[np.int64]:
    """(components,) part of each, as an index into `ratios`, the shares that the parts should have."""
    sources = components_per_class(components, labels).tolist()
    placed = [[0] * len(ratios) for _ in sources]
    classes: list[list[int]] = [[] for _ in components.names]
    for component, label in zip(*(codes.tolist() for codes in _pairs(components, labels)), strict=True):
        classes[component].append(label)

    def lack(component: int, part: int) -> float:
        shares = (placed[label][part] / (ratios[part] * sources[label]) for label in classes[component])
        return len(classes[component]) - math.fsum(shares)

    luck = [hashlib.sha256(f"{salt}:{name}".encode()).digest() for name in components.names]
    part_of = np.zeros(len(components.names), dtype=np.int64)
    for component in sorted(range(len(luck)), key=luck.__getitem__):
        part = max(range(len(ratios)), key=lambda p: lack(component, p))  # ties: the first part
        part_of[component] = part
        for label in classes[component]:
            placed[label][part] += 1
    return part_of


def covers(part_of_component: NDArray[np.int64], components: Category, labels: Category, *, parts: int) -> bool:
    """Whether every class has a component in each of `parts` parts."""
    component, label = _pairs(components, labels)
    cells = np.unique(label * parts + part_of_component[component])
    return len(cells) == len(labels.names) * parts


def build_split(
    components: Category,
    labels: Category,
    *,
    train: NDArray[np.int64],
    validation: NDArray[np.int64],
    test: NDArray[np.int64],
) -> Split:
    """The split with these positions in each part, and its digest."""
    part_of_row = np.zeros(len(components), dtype=np.int64)
    part_of_row[validation], part_of_row[test] = 1, 2
    used = np.concatenate([train, validation, test])
    codes = (part_of_row * len(components.names) + components.codes) * len(labels.names) + labels.codes
    cells, rows = np.unique(codes[used], return_counts=True)
    # Sorted by component and not by part, so that the digest is that of the same division whoever made it.
    manifest = sorted(
        (
            [
                PARTS[cell // len(labels.names) // len(components.names)],
                components.names[cell // len(labels.names) % len(components.names)],
                labels.names[cell % len(labels.names)],
                n,
            ]
            for cell, n in zip(cells.tolist(), rows.tolist(), strict=True)
        ),
        key=lambda entry: (entry[1], entry[2]),
    )
    digest = hashlib.sha256(canonical_json(manifest).encode()).hexdigest()
    return Split(train=train, validation=validation, test=test, components=components, digest=digest)
