"""Kept memory: arrays whose memory is used again once nobody refers to them.

A kernel hands out fresh memory page by page and zeroes it. For tokens, and for what is computed from them, that costs
more than reading or normalising does.
"""

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

_ONLY_OURS = 3  # references to a free block: the list's, the loop's, and that of the counting call
_ALIGNED = 64  # bytes; products read whole cache lines


@dataclass(kw_only=True, eq=False)
class KeptMemory:
    """Blocks of memory, grown to what was held at once. One thread at a time may ask for some.

    An array refers to its block, as do all views of it and all tensors made of it, so that CPython's count of
    references says when it is free. Nothing that somebody still holds is ever overwritten.
    """

    _blocks: list[NDArray[np.uint8]] = field(default_factory=list)

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array that holds anything."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        block = self._block(size + _ALIGNED)
        start = -block.ctypes.data % _ALIGNED
        return block[start : start + size].view(dtype).reshape(shape)

    def tensor(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor that holds anything, with the dtype and on the device of `like`; PyTorch itself keeps a GPU's."""
        if like.device.type != "cpu":
            return like.new_empty(shape)
        made = torch.from_numpy(self.array((math.prod(shape) * like.element_size(),), np.uint8))
        return made.view(like.dtype).view(shape)

    def _block(self, size: int) -> NDArray[np.uint8]:
        """The smallest free block that is large enough, and not twice as large, or a new one."""
        best = None
        for block in self._blocks:
            free = sys.getrefcount(block) <= _ONLY_OURS
            if free and size <= len(block) < 2 * size and (best is None or len(block) < len(best)):
                best = block
        if best is None:
            best = np.empty(size, np.uint8)
            self._blocks.append(best)
        return best
