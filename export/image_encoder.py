"""Image encoder in PyTorch: a model of `transformers` or `timm`, applied to every frame of a clip by itself.

The library's own forward is the reference; what is taken of its output, and how it is named, is decided here and in
`transformers_images` and `timm_images`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from coldframe.errors import UsageError
from coldframe.export.encoder import Encoder, TokenTensors
from coldframe.export.image_config import ImageEncoderConfig


class FrameFeatures(NamedTuple):
    """Tokens of N frames.

    Attributes:
        vector: `(N, D)`, or None where the encoder, or this export of it, has no vector a frame.
        patches: `(N, h * w, D)` in row order, registers and [CLS] taken off.
    """

    vector: torch.Tensor | None
    patches: torch.Tensor


class ImageEncoder(Encoder):
    """Frames in, patch tokens and one vector a frame out.

    Args:
        config: as released.
        module: the library's model, with its weights.
        encode: gives the tokens of `(N, 3, H, W)` normalised frames by `module`.
    """

    def __init__(
        self,
        config: ImageEncoderConfig,
        module: nn.Module,
        encode: Callable[[nn.Module, torch.Tensor], FrameFeatures],
    ) -> None:
        super().__init__()
        self.config = config
        self.module = module
        self.random_init: int | None = None
        self.pixel_mean = config.pixel_mean
        self.pixel_std = config.pixel_std
        self._encode = encode
        self.eval().requires_grad_(False)

    def tokens(self, pixel_values: torch.Tensor, *, layers: tuple[int, ...] = ()) -> TokenTensors:
        """Encode clips `(B, 3, T, H, W)`, normalised by `pixel_mean` and `pixel_std`; there are no `layers`."""
        if layers:
            raise UsageError(f"layers is {layers}; this encoder gives its output alone.")
        return self.frame_tokens(pixel_values.transpose(1, 2).flatten(0, 1), pixel_values.shape[2])

    def frame_tokens(self, frames: torch.Tensor, times: int) -> TokenTensors:
        """Encode normalised frames `(B * T, 3, H, W)`, `times` a clip."""
        stride, dim = self.config.stride, self.config.embed_dim
        rows, cols = frames.shape[2] // stride, frames.shape[3] // stride
        vector, patches = self._encode(self.module, frames)
        return TokenTensors(
            None,
            patches.reshape(-1, times, rows, cols, dim),
            {},
            None if vector is None else vector.reshape(-1, times, dim),
        )
