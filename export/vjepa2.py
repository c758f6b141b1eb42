"""V-JEPA 2 in PyTorch, encoder and predictor: the reference that every exported graph is measured against.

Written from published facts (facebookresearch/vjepa2 `c2963a4`, `VJEPA2Model` of transformers 5.24). Its blocks are
those of LeVJEPA; there is no [CLS] and no mask, and a token spans two frames. Keys follow Meta's checkpoint, below
`encoder.` and `predictor.`.
"""

import torch
from torch import nn

from coldframe.errors import UsageError
from coldframe.export.config import LAYER_NORM_EPS
from coldframe.export.encoder import Encoder, TokenTensors
from coldframe.export.levjepa import Block
from coldframe.export.rope import rope_angles
from coldframe.export.vjepa2_config import VJEPA2Config

# Released predictors were trained with mask token 0 and are evaluated with token 1, which stayed at its zero start.
MASK_INDEX = 1


class PatchEmbed(nn.Module):
    def __init__(self, config: VJEPA2Config) -> None:
        super().__init__()
        kernel = (config.tubelet_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(3, config.hidden_size, kernel, stride=kernel)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj(pixel_values)
        return out


class VJEPA2Encoder(nn.Module):
    def __init__(self, config: VJEPA2Config) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(config)
        self.blocks = nn.ModuleList(Block(config.encoder) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=LAYER_NORM_EPS)


class VJEPA2Predictor(nn.Module):
    """Predicts encoder tokens at positions that the encoder has not seen, such as those after the clip.

    Its output lives where its training targets lived, in parameter-free layer-normed encoder outputs: it is not
    normalised again, and it is not distributed as the encoder's tokens are.
    """

    def __init__(self, config: VJEPA2Config) -> None:
        super().__init__()
        inner = config.pred_hidden_size
        self.head_dim = config.predictor.head_dim
        self.predictor_embed = nn.Linear(config.hidden_size, inner)
        self.mask_tokens = nn.Parameter(torch.zeros(config.pred_num_mask_tokens, 1, 1, inner))
        self.predictor_blocks = nn.ModuleList(Block(config.predictor) for _ in range(config.pred_num_hidden_layers))
        self.predictor_norm = nn.LayerNorm(inner, eps=LAYER_NORM_EPS)
        self.predictor_proj = nn.Linear(inner, config.hidden_size)

    def forward(self, patch: torch.Tensor, target_ids: torch.Tensor, *, mask_index: int = MASK_INDEX) -> torch.Tensor:
        """Predict tokens.

        Args:
            patch: `(B, T, h, w, D)` the encoder's output for a clip; all of it is context, at ids 0 to T*h*w - 1.
            target_ids: `(B, M)` integer ids of the tokens wanted: `(t * h + y) * w + x`, t counted on past the clip.
            mask_index: which mask token stands for them.

        Returns:
            `(B, M, D)` in the order of `target_ids`.
        """
        batch, times, rows, cols, _ = patch.shape
        known, wanted = times * rows * cols, target_ids.shape[1]
        if int(target_ids.min()) < 0:
            raise UsageError(f"target id {int(target_ids.min())} is below 0.")
        context = torch.arange(known).expand(batch, -1)
        ids = torch.cat((context, target_ids), dim=1)
        cos, sin = self._rope(ids, rows, cols, patch)
        masks = self.mask_tokens[mask_index % len(self.mask_tokens)].expand(batch, wanted, -1)
        tokens = torch.cat((self.predictor_embed(patch.flatten(1, 3)), masks), dim=1)
        for block in self.predictor_blocks:
            tokens = block(tokens, cos, sin, None)
        predicted: torch.Tensor = self.predictor_proj(self.predictor_norm(tokens[:, known:]))
        return predicted

    def _rope(self, ids: torch.Tensor, rows: int, cols: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of each token's own position, `(B, 1, n, d)`."""
        times = int(ids.max()) // (rows * cols) + 1
        angles = torch.from_numpy(rope_angles(self.head_dim, frames=times, rows=rows, cols=cols))[ids][:, None]
        return angles.cos().to(like), angles.sin().to(like)


class VJEPA2(Encoder):
    """Encoder and predictor."""

    def __init__(self, config: VJEPA2Config) -> None:
        super().__init__()
        self.config = config
        self.random_init: int | None = None
        self.encoder = VJEPA2Encoder(config)
        self.predictor = VJEPA2Predictor(config)

    def tokens(self, pixel_values: torch.Tensor, *, layers: tuple[int, ...] = ()) -> TokenTensors:
        """Encode clips.

        Args:
            pixel_values: `(B, 3, T, H, W)` float RGB, ImageNet-normalised; T, H and W are multiples of tubelet and
                patch size. Positions come from the actual sizes.
            layers: blocks whose output is wanted too, through the final norm.

        Raises:
            UsageError: another layout or dtype.
        """
        self._check(pixel_values)
        encoder = self.encoder
        embedded = encoder.patch_embed(pixel_values)  # (B, D, T / tubelet, h, w)
        grid = (embedded.shape[2], embedded.shape[3], embedded.shape[4])
        angles = rope_angles(self.config.encoder.head_dim, frames=grid[0], rows=grid[1], cols=grid[2])
        turned = torch.from_numpy(angles)
        cos, sin = turned.cos().to(embedded), turned.sin().to(embedded)
        shape = (len(embedded), *grid, self.config.hidden_size)
        tokens = embedded.flatten(2).transpose(1, 2)
        kept = {}
        for number, block in enumerate(encoder.blocks):
            tokens = block(tokens, cos, sin, None)
            if number in layers:
                kept[number] = encoder.norm(tokens).reshape(shape)
        return TokenTensors(None, encoder.norm(tokens).reshape(shape), kept)

    def _check(self, pixel_values: torch.Tensor) -> None:
        shape, config = tuple(pixel_values.shape), self.config
        if not pixel_values.is_floating_point() or len(shape) != 5 or shape[1] != 3 or min(shape) < 1:
            raise UsageError(f"pixel_values is {pixel_values.dtype} of shape {shape}; wanted is float (B, 3, T, H, W).")
        steps = (config.tubelet_size, config.patch_size, config.patch_size)
        if any(size % step for size, step in zip(shape[2:], steps, strict=True)):
            raise UsageError(f"pixel_values has shape {shape}: T, H and W must be multiples of {steps}.")
