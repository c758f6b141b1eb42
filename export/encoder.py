"""Encoder: what every PyTorch reference model offers, whatever family it is of."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from coldframe.export.geometry import Geometry
from coldframe.export.pixels import IMAGENET_MEAN, IMAGENET_STD


class TokenTensors(NamedTuple):
    """Tokens of a batch, after the final norm.

    Attributes:
        cls: `(B, D)`, or None where the encoder has no [CLS].
        patch: `(B, T, h, w, D)`.
        layers: the same of each block that was asked for, by its number.
        frame_cls: `(B, T, D)`, or None where the encoder has no vector a frame.
    """

    cls: torch.Tensor | None
    patch: torch.Tensor
    layers: dict[int, torch.Tensor]
    frame_cls: torch.Tensor | None = None


class EncoderConfig(Protocol):
    """Shape of an encoder as released."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> int: ...
    def to_dict(self) -> dict[str, Any]: ...
    def geometry(
        self, *, frames: int | None = None, image_size: tuple[int, int] | None = None, layers: tuple[int, ...] = ()
    ) -> Geometry:
        """Shapes at the released sizes, or at others; refuses what the family cannot do."""
        ...


class Encoder(nn.Module):
    """Base of the reference models.

    Attributes:
        config: shape as released.
        random_init: seed of random weights; None for weights that were read from a checkpoint.
        pixel_mean, pixel_std: normalisation of RGB in [0, 1].
    """

    pixel_mean: tuple[float, float, float] = IMAGENET_MEAN
    pixel_std: tuple[float, float, float] = IMAGENET_STD
    random_init: int | None
    config: Any

    def tokens(self, pixel_values: torch.Tensor, *, layers: tuple[int, ...] = ()) -> TokenTensors:
        """Encode normalised float clips `(B, 3, T, H, W)`."""
        raise NotImplementedError
