"""LeVJEPA in PyTorch: the reference that every exported graph is measured against.

Written from the published facts (shapes, checkpoint keys, mask rule) of MLO-lab/LeVJEPA and
galilai-group/LeVJEPA-VideoMix-Large. It is kept literal, one masked attention a block, rather than fast.
"""

from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.nn import functional

from coldframe.errors import UsageError
from coldframe.export.config import LAYER_NORM_EPS, SIZES, LeVJEPAConfig
from coldframe.export.encoder import Encoder as ReferenceEncoder
from coldframe.export.encoder import TokenTensors
from coldframe.export.rope import rope_angles, rotate

__all__ = ["SIZES", "EncoderOutput", "LeVJEPA", "LeVJEPAConfig", "block_causal_mask"]


class EncoderOutput(NamedTuple):
    """What the encoder gives.

    Attributes:
        last_hidden_state: `(B, 1 + T*h*w, D)` [CLS] and then the patch tokens in (time, row, col) order,
            after the final norm.
        pooler_output: `(B, D)` the [CLS] token after the final norm.
    """

    last_hidden_state: torch.Tensor
    pooler_output: torch.Tensor


def block_causal_mask(frames: int, patches: int) -> torch.Tensor:
    """Which token may read which.

    A token of frame t reads frames 0..t. [CLS] behaves like a frame after the last one: it reads itself and
    everything, and no patch reads it.

    Returns:
        `(n, n)` bool with `n = 1 + frames * patches`; `[q, k]` is True where query q reads key k, [CLS] at 0.
    """
    frame = torch.cat((torch.tensor([frames]), torch.arange(frames).repeat_interleave(patches)))
    return frame[None, :] <= frame[:, None]


class BlockShape(Protocol):
    """What a block needs to know."""

    @property
    def embed_dim(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def mlp_dim(self) -> int: ...


class Attention(nn.Module):
    def __init__(self, config: BlockShape) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.embed_dim, 3 * config.embed_dim)
        self.proj = nn.Linear(config.embed_dim, config.embed_dim)

    def forward(
        self, tokens: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        batch, count, dim = tokens.shape
        packed = self.qkv(tokens).view(batch, count, 3, self.num_heads, dim // self.num_heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)  # each (B, heads, n, d)
        read = functional.scaled_dot_product_attention(
            rotate(query, cos, sin), rotate(key, cos, sin), value, attn_mask=mask
        )
        mixed: torch.Tensor = self.proj(read.transpose(1, 2).reshape(batch, count, dim))
        return mixed


class Mlp(nn.Module):
    def __init__(self, config: BlockShape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.embed_dim, config.mlp_dim)
        self.fc2 = nn.Linear(config.mlp_dim, config.embed_dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(functional.gelu(self.fc1(tokens)))
        return out


class Block(nn.Module):
    """Pre-norm attention and MLP, shared with V-JEPA 2. `mask` None lets every token read every other."""

    def __init__(self, config: BlockShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.embed_dim, eps=LAYER_NORM_EPS)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.embed_dim, eps=LAYER_NORM_EPS)
        self.mlp = Mlp(config)

    def forward(
        self, tokens: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        tokens = tokens + self.attn(self.norm1(tokens), cos, sin, mask)
        out: torch.Tensor = tokens + self.mlp(self.norm2(tokens))
        return out


class PatchEmbed(nn.Module):
    def __init__(self, config: LeVJEPAConfig) -> None:
        super().__init__()
        kernel = (config.tubelet_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(config.in_chans, config.embed_dim, kernel, stride=kernel)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj(pixel_values).flatten(2).transpose(1, 2)
        return out


class Encoder(nn.Module):
    def __init__(self, config: LeVJEPAConfig) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim))
        self.patch_embed = PatchEmbed(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.embed_dim, eps=LAYER_NORM_EPS)


class LeVJEPA(ReferenceEncoder):
    """The encoder, with the state-dict keys of the released checkpoint.

    Attributes:
        config: its shape.
        random_init: seed of random weights; None for weights that were read from a checkpoint.
    """

    def __init__(self, config: LeVJEPAConfig) -> None:
        super().__init__()
        self.config = config
        self.random_init: int | None = None
        self.encoder = Encoder(config)

    def forward(self, *, pixel_values: torch.Tensor) -> EncoderOutput:
        """Encode clips.

        Args:
            pixel_values: `(B, 3, T, H, W)` float RGB, ImageNet-normalised. H and W are multiples of the patch
                size; T, H and W may differ from the configuration, and positions then extrapolate.

        Raises:
            UsageError: another layout or dtype.
        """
        tokens, _ = self._encode(pixel_values, ())
        return EncoderOutput(tokens, tokens[:, 0])

    def tokens(self, pixel_values: torch.Tensor, *, layers: tuple[int, ...] = ()) -> TokenTensors:
        """[CLS] and patch tokens of clips as `forward` takes them, and patch tokens of further blocks."""
        grid = self._grid(pixel_values)
        tokens, kept = self._encode(pixel_values, layers)
        shape = (len(tokens), *grid, self.config.embed_dim)
        patches = {layer: values[:, 1:].reshape(shape) for layer, values in kept.items()}
        return TokenTensors(tokens[:, 0], tokens[:, 1:].reshape(shape), patches)

    def _encode(
        self, pixel_values: torch.Tensor, layers: tuple[int, ...]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """All tokens of the last block and of each of `layers`, through the final norm."""
        frames, rows, cols = self._grid(pixel_values)
        cos, sin = self._rope(frames, rows, cols, pixel_values)
        mask = block_causal_mask(frames, rows * cols).to(pixel_values.device)
        encoder = self.encoder
        patches = encoder.patch_embed(pixel_values)
        tokens = torch.cat((encoder.cls_token.expand(len(patches), -1, -1), patches), dim=1)
        kept = {}
        for number, block in enumerate(encoder.blocks):
            tokens = block(tokens, cos, sin, mask)
            if number in layers:
                kept[number] = encoder.norm(tokens)
        return encoder.norm(tokens), kept

    def _rope(self, frames: int, rows: int, cols: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, `(1 + patches, d)`; [CLS] is not turned."""
        angles = torch.from_numpy(rope_angles(self.config.head_dim, frames=frames, rows=rows, cols=cols))
        angles = functional.pad(angles, (0, 0, 1, 0))
        return angles.cos().to(like), angles.sin().to(like)

    def _grid(self, pixel_values: torch.Tensor) -> tuple[int, int, int]:
        """Frames, rows and columns of patches; refuses what is not `(B, 3, T, H, W)`."""
        shape, patch = tuple(pixel_values.shape), self.config.patch_size
        what = f"pixel_values is {pixel_values.dtype} of shape {shape}; wanted is float (B, 3, T, H, W)"
        if not pixel_values.is_floating_point():
            raise UsageError(f"{what}. Divide by 255 and normalise first, or use a runtime, which takes uint8.")
        if len(shape) != 5:
            raise UsageError(f"{what}, five axes.")
        if shape[1] != 3:
            raise UsageError(f"{what}: axis 1 must be the 3 colour channels, it has {shape[1]}.")
        if shape[0] < 1 or shape[2] < 1:
            raise UsageError(f"{what} with at least one clip and one frame.")
        if not all(size >= patch and size % patch == 0 for size in shape[3:]):
            raise UsageError(f"{what}: H and W must be multiples of the patch size {patch}.")
        return shape[2], shape[3] // patch, shape[4] // patch
