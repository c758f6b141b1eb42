"""V-JEPA 2's configuration, with the field names of the released Hugging Face `config.json`. Needs nothing heavy.

Source: `VJEPA2Config` of transformers 5.24 and the released configs. A value that this implementation does not
reproduce is refused.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from coldframe.errors import UsageError
from coldframe.export.config import LAYER_NORM_EPS
from coldframe.export.geometry import Geometry, check_input, check_layers

# The only value of each that is implemented; a key may be missing.
_FIXED: dict[str, Any] = {
    "model_type": "vjepa2",
    "in_chans": 3,
    "qkv_bias": True,
    "hidden_act": "gelu",
    "layer_norm_eps": LAYER_NORM_EPS,
    "use_SiLU": False,
}
# These say nothing about the encoder and predictor at inference.
_HARMLESS = {
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "chunk_size_feed_forward",
    "drop_path_rate",
    "dtype",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "num_pooler_layers",
    "output_attentions",
    "output_hidden_states",
    "pred_zero_init_mask_tokens",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "wide_SiLU",
}
_WHOLE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "pred_hidden_size",
    "pred_num_hidden_layers",
    "pred_num_attention_heads",
    "pred_num_mask_tokens",
    "patch_size",
    "crop_size",
    "frames_per_clip",
    "tubelet_size",
)


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """Sizes of a row of transformer blocks."""

    embed_dim: int
    num_heads: int
    mlp_dim: int
    depth: int

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @property
    def parameters(self) -> int:
        """Parameters of all blocks, without what comes before and after them."""
        dim, hidden = self.embed_dim, self.mlp_dim
        return self.depth * (4 * dim * dim + 4 * dim + 2 * dim * hidden + hidden + dim + 4 * dim)


@dataclass(frozen=True, kw_only=True)
class VJEPA2Config:
    """Shape of one V-JEPA 2 encoder and its predictor.

    Attributes:
        crop_size, frames_per_clip: released input; others extrapolate the rotary positions.
        patch_size, tubelet_size: pixels and frames that a token spans.
        hidden_size, num_hidden_layers, num_attention_heads, mlp_ratio: the encoder.
        pred_hidden_size, pred_num_hidden_layers, pred_num_attention_heads, pred_mlp_ratio: the predictor.
        pred_num_mask_tokens: learnt tokens that stand for what is to be predicted.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    model_type: str = "vjepa2"
    mlp_ratio: float = 4.0
    patch_size: int = 16
    crop_size: int = 256
    frames_per_clip: int = 64
    tubelet_size: int = 2
    pred_hidden_size: int = 384
    pred_num_hidden_layers: int = 12
    pred_num_attention_heads: int = 12
    pred_num_mask_tokens: int = 10
    pred_mlp_ratio: float = 4.0

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(f"config {name} is {value!r}; allowed is a whole number from 1.")
        for name, ratio in (("mlp_ratio", self.mlp_ratio), ("pred_mlp_ratio", self.pred_mlp_ratio)):
            if type(ratio) not in (int, float) or not ratio > 0:
                raise UsageError(f"config {name} is {ratio!r}; allowed is a number above 0.")
        for blocks in (self.encoder, self.predictor):
            if blocks.embed_dim % blocks.num_heads or blocks.head_dim % 2 or blocks.head_dim < 6:
                raise UsageError(
                    f"config gives {blocks.num_heads} heads in {blocks.embed_dim} dims; rotary positions need heads of "
                    "an even number of dims from 6."
                )

    @property
    def encoder(self) -> BlockSizes:
        return BlockSizes(
            embed_dim=self.hidden_size,
            num_heads=self.num_attention_heads,
            mlp_dim=int(self.hidden_size * self.mlp_ratio),
            depth=self.num_hidden_layers,
        )

    @property
    def predictor(self) -> BlockSizes:
        return BlockSizes(
            embed_dim=self.pred_hidden_size,
            num_heads=self.pred_num_attention_heads,
            mlp_dim=int(self.pred_hidden_size * self.pred_mlp_ratio),
            depth=self.pred_num_hidden_layers,
        )

    @property
    def parameters(self) -> int:
        """Parameters of encoder and predictor."""
        dim, inner = self.hidden_size, self.pred_hidden_size
        embed = dim * 3 * self.tubelet_size * self.patch_size**2 + dim
        around = inner * dim + inner + self.pred_num_mask_tokens * inner + 2 * inner + dim * inner + dim
        return embed + self.encoder.parameters + 2 * dim + self.predictor.parameters + around

    @property
    def name(self) -> str:
        """`vjepa2-<size>`, or the numbers where they are no named size."""
        for name, size in VJEPA2_SIZES.items():
            if replace(self, crop_size=size.crop_size, frames_per_clip=size.frames_per_clip) == size:
                return name
        return f"vjepa2-{self.hidden_size}x{self.num_hidden_layers}x{self.num_attention_heads}p{self.patch_size}"

    def geometry(
        self, *, frames: int | None = None, image_size: tuple[int, int] | None = None, layers: tuple[int, ...] = ()
    ) -> Geometry:
        """Shapes of an export; `frames` a multiple of the tubelet, `layers` blocks of the encoder."""
        frames = self.frames_per_clip if frames is None else frames
        height, width = image_size or (self.crop_size, self.crop_size)
        check_input(frames, (height, width), patch_size=self.patch_size, tubelet=self.tubelet_size)
        check_layers(layers, self.num_hidden_layers)
        return Geometry(
            frames=frames,
            height=height,
            width=width,
            times=frames // self.tubelet_size,
            rows=height // self.patch_size,
            cols=width // self.patch_size,
            dim=self.hidden_size,
            has_cls=False,
            attention="full",
            layers=layers,
        )

    def to_dict(self) -> dict[str, Any]:
        """The released form: what is fixed is said as well."""
        return {**_FIXED, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read a released `config.json`. Sizes of the encoder must be there, others default as in transformers.

        Raises:
            UsageError: a field is missing, has a value that is not implemented, or a key is unknown.
        """
        known = {field.name for field in fields(cls)}
        missing = [key for key in ("hidden_size", "num_hidden_layers", "num_attention_heads") if key not in values]
        if missing:
            raise UsageError(f"config.json lacks {', '.join(missing)}. Use the config.json released with the weights.")
        for key, allowed in _FIXED.items():
            if values.get(key, allowed) != allowed:
                raise UsageError(f"config {key} is {values[key]!r}; only {allowed!r} is implemented.")
        config = cls(**{key: value for key, value in values.items() if key in known})
        for key in sorted(values.keys() - known - _FIXED.keys() - _HARMLESS):
            if (key, values[key]) != ("image_size", config.crop_size):
                raise UsageError(
                    f"config.json has the key {key!r} ({values[key]!r}), which is unknown or contradicts the others "
                    "and may change the numbers. Remove it if you know that it does not."
                )
        return config


# `nano` is ours, for demonstrations and tests; the others are the published family.
VJEPA2_SIZES: dict[str, VJEPA2Config] = {
    "vjepa2-nano": VJEPA2Config(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        crop_size=224,
        frames_per_clip=16,
        pred_hidden_size=96,
        pred_num_hidden_layers=4,
        pred_num_attention_heads=3,
    ),
    "vjepa2-large": VJEPA2Config(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16),
    "vjepa2-huge": VJEPA2Config(hidden_size=1280, num_hidden_layers=32, num_attention_heads=16),
    "vjepa2-giant": VJEPA2Config(
        hidden_size=1408, num_hidden_layers=40, num_attention_heads=22, mlp_ratio=4.363636363636363
    ),
}
