"""Token tiers: what of an encoder's output is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.export import Tokens
from coldframe.store.schema import WITH_FRAME_CLS, WITHOUT_CLS, WITHOUT_PATCHES, layer_array
from coldframe.store.schema import Tokens as Tier

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """What a tier stores of a batch.

    Attributes:
        cls: (B, dim) float32, or None where the tier or the encoder has none.
        patch: (B, time, rows, cols, dim) float32, or None for the tier `cls`.
        layers: the same of each further block that the encoder gives.
        frame_cls: (B, time, dim) float32, or None where the tier or the encoder has none.
    """

    cls: Floats | None
    patch: Floats | None
    layers: Mapping[int, Floats] = field(default_factory=dict)
    frame_cls: Floats | None = None

    @property
    def arrays(self) -> dict[str, Floats | None]:
        """By the name that a store gives them."""
        layers = {layer_array(layer): patch for layer, patch in self.layers.items()}
        return {"cls": self.cls, "frame_cls": self.frame_cls, "patch": self.patch, **layers}


RealFrames = NDArray[np.integer[Any]]


def keep_tier(tokens: Tokens, tier: Tier, n_real: RealFrames | None = None, first: RealFrames | None = None) -> Kept:
    """Reduce tokens to what `tier` stores.

    Args:
        tokens: of a batch of B clips.
        tier: which.
        n_real: (B,) real frames of each clip; must be given where the encoder has one vector a frame.
        first: (B,) the first real frame of each clip; None for frame 0.

    `cls+mean` and `mean` have one mean token a frame (rows = cols = 1), `cls+grid7` and `grid7` the mean of each
    2 x 2 block of the patch grid, `full` the whole grid. Means are taken in float32. An encoder that gives one vector a
    frame has as `cls` their mean over the real frames, and `frame_cls` in every tier that keeps more than `cls`.

    Raises:
        UsageError: the patch grid has an odd side and cannot be pooled 2 x 2.
    """
    cls = _clip_cls(tokens, n_real, first) if tier == "full" or tier in WITHOUT_CLS else None
    frame_cls = tokens.frame_cls if tokens.has_frame_cls and tier in WITH_FRAME_CLS else None
    if tier in WITHOUT_PATCHES:
        return Kept(cls=cls, patch=None, frame_cls=frame_cls)
    return Kept(
        cls=cls,
        patch=_pool(tokens.patch, tier),
        layers={layer: _pool(patch, tier) for layer, patch in tokens.layers.items()},
        frame_cls=frame_cls,
    )


def _clip_cls(tokens: Tokens, n_real: RealFrames | None, first: RealFrames | None) -> Floats | None:
    """(B, dim) one vector a clip, or None where the encoder has none; repeats that pad a clip do not count."""
    if not tokens.has_frame_cls:
        return tokens.cls if tokens.has_cls else None
    assert n_real is not None, "a mean over frames needs to know which of them are real"
    begin = np.zeros_like(n_real) if first is None else first
    clips = zip(tokens.frame_cls, begin.tolist(), n_real.tolist(), strict=True)
    return np.stack([frames[at : at + real].mean(axis=0, dtype=np.float32) for frames, at, real in clips])


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
