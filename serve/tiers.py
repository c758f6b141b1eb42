"""Token tiers: what of an encoder's output is kept."""

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.export import Tokens
from coldframe.store.schema import Tokens as Tier


def keep_tier(tokens: Tokens, tier: Tier) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Reduce tokens to what `tier` stores.

    Returns:
        cls: (B, dim) float32.
        patch: (B, time, rows, cols, dim) float32, or None for `cls`. `cls+mean` has one mean token a frame
            (rows = cols = 1), `cls+grid7` the mean of each 2 x 2 block of the patch grid. Means are taken in float32.

    Raises:
        UsageError: the patch grid has an odd side and cannot be pooled 2 x 2.
    """
    patch = tokens.patch
    batch, time, rows, cols, dim = patch.shape
    if tier == "cls":
        return tokens.cls, None
    if tier == "cls+mean":
        return tokens.cls, patch.mean(axis=(2, 3), keepdims=True, dtype=np.float32)
    if tier == "cls+grid7":
        if rows % 2 or cols % 2:
            raise UsageError(f"The patch grid is {rows} x {cols}; cls+grid7 needs even sides. Use --tokens full.")
        blocks = patch.reshape(batch, time, rows // 2, 2, cols // 2, 2, dim)
        return tokens.cls, blocks.mean(axis=(3, 5), dtype=np.float32)
    return tokens.cls, patch
