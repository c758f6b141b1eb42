"""LeVJEPA in PyTorch with one attention a frame over growing keys: the same numbers without a mask.

A query of frame t reads the keys of frames 0..t, and [CLS] those of all frames and its own. With patches first
and [CLS] last both are prefixes of one key array, so every attention is an unmasked one: half of the score
matrix is never computed, and PyTorch may pick a kernel that takes no mask (flash attention on a GPU).

What is computed in which type, for `dtype` float32, bfloat16 or float16:

* in `dtype`: the linear layers, GELU, and the products inside attention;
* in float32: pixels, LayerNorm, rotary positions, the sums from block to block, and both outputs. Softmax is
  inside `scaled_dot_product_attention`, whose kernels keep it in float32.
"""

import torch
from torch import nn
from torch.nn import functional

from coldframe.errors import UsageError
from coldframe.export.config import LAYER_NORM_EPS
from coldframe.export.levjepa import Block, LeVJEPA
from coldframe.export.pixels import IMAGENET_MEAN, IMAGENET_STD
from coldframe.export.rope import rope_angles, rotate

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Turns = tuple[torch.Tensor, torch.Tensor]
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class PerFrameBlock:
    """One block's weights on a device, and the two halves of its work around attention."""

    def __init__(self, block: Block, device: torch.device, dtype: torch.dtype) -> None:
        self._num_heads = block.attn.num_heads
        self._dtype = dtype
        self._norm1, self._norm2 = (_place(norm, device, torch.float32) for norm in (block.norm1, block.norm2))
        self._qkv, self._proj = (_place(layer, device, dtype) for layer in (block.attn.qkv, block.attn.proj))
        self._fc1, self._fc2 = (_place(layer, device, dtype) for layer in (block.mlp.fc1, block.mlp.fc2))

    def project(self, tokens: torch.Tensor, turns: Turns) -> Heads:
        """Queries and keys with their positions, and values, `(B, heads, n, d)`, of `(B, n, D)` float32 tokens."""
        batch, count, dim = tokens.shape
        packed = functional.linear(_norm(tokens, self._norm1).to(self._dtype), *self._qkv)
        packed = packed.view(batch, count, 3, self._num_heads, dim // self._num_heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        return rotate(query, *turns).to(self._dtype), rotate(key, *turns).to(self._dtype), value

    def finish(self, tokens: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """`(B, n, D)` float32 tokens after this block, from what attention read, `(B, heads, n, d)`."""
        tokens = tokens + functional.linear(read.transpose(1, 2).flatten(2), *self._proj).float()
        hidden = functional.linear(_norm(tokens, self._norm2).to(self._dtype), *self._fc1)
        return tokens + functional.linear(functional.gelu(hidden), *self._fc2).float()


class PerFrameEncoder:
    """The encoder, placed on a device in one arithmetic.

    Args:
        model: the reference whose weights are taken; it is left as it is.
        device: where to compute.
        dtype: arithmetic of the heavy part; see the module.
    """

    def __init__(
        self, model: LeVJEPA, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.config = model.config
        self.device = torch.device(device)
        self.dtype = dtype
        self.frame_patches = self.config.grid**2
        encoder = model.encoder
        self.blocks = [PerFrameBlock(block, self.device, dtype) for block in encoder.blocks if isinstance(block, Block)]
        kernel, bias = encoder.patch_embed.proj.weight, encoder.patch_embed.proj.bias
        assert bias is not None
        kernel = kernel[:, :, 0].permute(0, 2, 3, 1).flatten(1)  # (D, side * side * 3), as `embed` cuts patches
        self._embedding = (narrow(kernel, self.device, dtype), narrow(bias, self.device, dtype))
        self._cls = encoder.cls_token.to(self.device, torch.float32)
        self._norm = _place(encoder.norm, self.device, torch.float32)
        self._mean = torch.tensor(IMAGENET_MEAN, device=self.device)
        self._std = torch.tensor(IMAGENET_STD, device=self.device)
        self._turns = self._all_turns()

    def _all_turns(self) -> Turns:
        config = self.config
        angles = rope_angles(config.head_dim, frames=config.num_frames, rows=config.grid, cols=config.grid)
        turned = functional.pad(torch.from_numpy(angles), (0, 0, 0, 1))  # [CLS], the last row, is not turned
        return turned.cos().float().to(self.device), turned.sin().float().to(self.device)

    def turns(self, first: int, end: int) -> Turns:
        """Cosine and sine, `(n, d)` float32, for the patches of frames `first` to `end`, and for [CLS] after them."""
        cos, sin = self._turns
        if first == 0 and end == self.config.num_frames:
            return cos, sin
        span = slice(first * self.frame_patches, end * self.frame_patches)
        return torch.cat((cos[span], cos[-1:])), torch.cat((sin[span], sin[-1:]))

    def embed(self, frames: torch.Tensor) -> torch.Tensor:
        """uint8 `(B, t, H, W, 3)` to `(B, t * h * w + 1, D)` float32: embedded patches and then [CLS]."""
        batch, count = frames.shape[:2]
        grid, side = self.config.grid, self.config.patch_size
        pixels = (frames.float() / 255 - self._mean) / self._std
        cut = pixels.view(batch, count, grid, side, grid, side, 3).permute(0, 1, 2, 4, 3, 5, 6)
        flat = cut.reshape(batch, count * self.frame_patches, side * side * 3)
        return self.with_cls(functional.linear(flat.to(self.dtype), *self._embedding).float())

    def with_cls(self, patches: torch.Tensor) -> torch.Tensor:
        """Embedded patches, `(B, n, D)`, with the [CLS] embedding after them."""
        return torch.cat((patches, self._cls.expand(len(patches), -1, -1)), dim=1)

    def norm(self, tokens: torch.Tensor) -> torch.Tensor:
        """The final norm."""
        return _norm(tokens, self._norm)

    def __call__(self, clips: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode uint8 `(B, T, H, W, 3)` on the encoder's device.

        Returns:
            `cls` `(B, D)` and `patch` `(B, T, h, w, D)`, float32, on the same device.
        """
        config = self.config
        tokens = self.embed(clips)
        turns = self.turns(0, config.num_frames)
        for block in self.blocks:
            tokens = block.finish(tokens, self._read(*block.project(tokens, turns)))
        tokens = self.norm(tokens)
        grid = (len(clips), config.num_frames, config.grid, config.grid, config.embed_dim)
        return tokens[:, -1].contiguous(), tokens[:, :-1].reshape(grid)

    def _read(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Every frame's queries over the keys up to its end, and [CLS] over all: `(B, heads, n, d)`."""
        reads = []
        for frame in range(self.config.num_frames):
            start, end = frame * self.frame_patches, (frame + 1) * self.frame_patches
            reads.append(attend(query[:, :, start:end], key[:, :, :end], value[:, :, :end]))
        reads.append(attend(query[:, :, -1:], key, value))
        return torch.cat(reads, dim=2)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention without a mask: every query reads every key given."""
    return functional.scaled_dot_product_attention(query, key, value)


def _place(layer: nn.Module, device: torch.device, dtype: torch.dtype) -> Turns:
    """Weight and bias of a layer on a device."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, torch.Tensor)
    assert isinstance(bias, torch.Tensor)
    return narrow(weight, device, dtype), narrow(bias, device, dtype)


def narrow(values: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """`values` on `device` as `dtype`; refused where the type cannot hold them."""
    narrowed = values.to(device, dtype)
    if not torch.isfinite(narrowed).all():
        raise UsageError(
            f"a weight reaches {values.abs().max():g}, past the largest number of {dtype}. "
            "Use bf16, which has the range of float32."
        )
    return narrowed


def _norm(tokens: torch.Tensor, scale_and_shift: Turns) -> torch.Tensor:
    return functional.layer_norm(tokens, tokens.shape[-1:], *scale_and_shift, LAYER_NORM_EPS)
