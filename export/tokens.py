"""What every runtime gives: tokens as numpy arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """Output tokens of a batch of clips, after the final norm. The arrays own their memory.

    Attributes:
        cls: `(B, D)` float32.
        patch: `(B, T, h, w, D)` float32; token (t, y, x) stands for patch row y and column x of frame t.
    """

    cls: Floats
    patch: Floats

    def __post_init__(self) -> None:
        assert self.cls.dtype == self.patch.dtype == np.float32, (self.cls.dtype, self.patch.dtype)
        shapes = f"cls {self.cls.shape} and patch {self.patch.shape} do not belong together"
        assert (self.cls.ndim, self.patch.ndim) == (2, 5), shapes
        assert self.cls.shape == (self.patch.shape[0], self.patch.shape[-1]), shapes

    def __len__(self) -> int:
        return len(self.cls)

    def __repr__(self) -> str:
        return f"Tokens(cls={self.cls.shape}, patch={self.patch.shape}, float32)"
