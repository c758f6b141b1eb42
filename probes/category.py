"""Category: a column of names as codes. Labels and leak components are both categories."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Category:
    """One name an item.

    The order of the names is that of their text, so it depends neither on the order of the items nor on
    Python's hash seed.

    Attributes:
        codes: (n,) int64 index into `names`.
        names: distinct, sorted by code point; some may have no item.
    """

    codes: NDArray[np.int64]
    names: tuple[str, ...]

    @classmethod
    def from_text(cls, values: Sequence[str]) -> Self:
        names = tuple(sorted(set(values)))
        code_of = {name: code for code, name in enumerate(names)}
        return cls(codes=np.array([code_of[value] for value in values], dtype=np.int64), names=names)

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, items: NDArray[np.int64]) -> Self:
        """The chosen items, without the names that none of them has.

        Args:
            items: (m,) positions, in any order; repeats allowed.
        """
        used, codes = np.unique(self.codes[items], return_inverse=True)
        return type(self)(codes=codes.astype(np.int64), names=tuple(self.names[code] for code in used))

    def counts(self) -> NDArray[np.int64]:
        """(names,) items of each name."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.int64)
