"""Token tiers: what of an encoder's output is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.export import Tokens
from coldframe.store.schema import Tokens as Tier

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """What a tier stores of a batch.

    Attributes:
        cls: (B, dim) float32, or None where the tier or the encoder has none.
        patch: (B, time, rows, cols, dim) float32, or None for the tier `cls`.
        layers: the same of each further block that the encoder gives.
    """

    cls: Floats | None
    patch: Floats | None
    layers: Mapping[int, Floats] = field(default_factory=dict)


def keep_tier(tokens: Tokens, tier: Tier) -> Kept:
    """Reduce tokens to what `tier` stores.

    `cls+mean` and `mean` have one mean token a frame (rows = cols = 1), `cls+grid7` and `grid7` the mean of each
    2 x 2 block of the patch grid, `full` the whole grid. Means are taken in float32.

    Raises:
        UsageError: the patch grid has an odd side and cannot be pooled 2 x 2.
    """
    if tier == "cls":
        return Kept(cls=tokens.cls, patch=None)
    return Kept(
        cls=tokens.cls if tokens.has_cls and tier not in ("mean", "grid7") else None,
        patch=_pool(tokens.patch, tier),
        layers={layer: _pool(patch, tier) for layer, patch in tokens.layers.items()},
    )


def _pool(patch: Floats, tier: Tier) -> Floats:
    batch, time, rows, cols, dim = patch.shape
    if tier in ("cls+mean", "mean"):
        mean: Floats = patch.mean(axis=(2, 3), keepdims=True, dtype=np.float32)
        return mean
    if tier in ("cls+grid7", "grid7"):
        require_even_grid(rows, cols, tier)
        blocks: Floats = patch.reshape(batch, time, rows // 2, 2, cols // 2, 2, dim).mean(axis=(3, 5), dtype=np.float32)
        return blocks
    return patch


def require_even_grid(rows: int, cols: int, tier: Tier) -> None:
    """Refuse a grid that 2 x 2 pooling would cut."""
    if rows % 2 or cols % 2:
        raise UsageError(f"The patch grid is {rows} x {cols}; {tier} needs even sides. Use --tokens full.")
