"""Label sets: cells that list several labels a video, and dividing sources so that every label has its share.

A cell lists its labels with `;` between them. An empty cell means that nobody looked. A cell with nothing but `;` means
that somebody looked and found none of the labels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.category import Category
from coldframe.probes.split import assign, components_per_class, covers

SEPARATOR = ";"
NONE = ""  # stands for no label at all where labels are counted
_ATTEMPTS = 100


def label_set(cell: str) -> frozenset[str]:
    """The labels that a cell lists; empty for `;` and for an empty cell alike."""
    return frozenset(part.strip() for part in cell.split(SEPARATOR)) - {""}


def set_text(labels: frozenset[str]) -> str:
    """One text for every way to write a set of labels; `;` for none."""
    return SEPARATOR.join(sorted(labels)) or SEPARATOR


def sources_per_label(components: Category, sets: Sequence[frozenset[str]]) -> dict[str, int]:
    """Distinct components among the items of each label, by label in order.

    Args:
        components: of every item.
        sets: labels of every item.
    """
    pairs, labels = _pairs(components, sets)
    return dict(zip(labels.names, components_per_class(pairs, labels).tolist(), strict=True))


def divide_sets(
    components: Category, sets: Sequence[frozenset[str]], ratios: Sequence[float], salt: str
) -> NDArray[np.int64]:
    """(n,) part of each item, as an index into `ratios`: whole components, each label with its share of them.

    A component counts for every label that it holds; those without any are divided as a label of their own, which need
    not be in every part.

    Args:
        components: of every item.
        sets: labels of every item; those that are to be in every part and no others.
        ratios: wanted share of each label's components in each part.
        salt: another one gives another division.

    Raises:
        UsageError: no division has every label in every part.
    """
    pairs, labels = _pairs(components, [one or frozenset({NONE}) for one in sets])
    held, wanted = _pairs(components, sets)
    for attempt in range(_ATTEMPTS):
        part_of = assign(pairs, labels, ratios, f"{salt}:{attempt}")
        if covers(part_of, held, wanted, parts=len(ratios)):
            return np.asarray(part_of[components.codes])
    raise UsageError(
        f"found no division by source that has every label in all {len(ratios)} parts ({_ATTEMPTS} attempts): sources "
        "hold too many labels together. Add sources or leave rare labels out."
    )


def _pairs(components: Category, sets: Sequence[frozenset[str]]) -> tuple[Category, Category]:
    """Component and label of every item with each of its labels."""
    count = [len(one) for one in sets]
    codes = np.repeat(components.codes, count)
    return Category(codes=codes, names=components.names), Category.from_text([name for one in sets for name in one])
