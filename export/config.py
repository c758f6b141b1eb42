"""LeVJEPA's configuration, with the field names of the released `config.json`. Needs nothing heavy.

Source: galilai-group/LeVJEPA-VideoMix-Large, `config.json`. A value that this implementation does not
reproduce is refused: reading past it would change the numbers and raise nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from coldframe.errors import UsageError
from coldframe.export.geometry import Geometry, check_input, check_layers

LAYER_NORM_EPS = 1e-6

# The only value of each that is implemented.
_FIXED: dict[str, Any] = {
    "model_type": "levjepa",
    "tubelet_size": 1,
    "in_chans": 3,
    "qkv_bias": True,
    "attn_mode": "block_causal",
}
_SIZES_IN_UNITS = ("img_size", "patch_size", "num_frames", "embed_dim", "depth", "num_heads")
_HARMLESS = {"architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", "_name_or_path"}


@dataclass(frozen=True, kw_only=True)
class LeVJEPAConfig:
    """Shape of one LeVJEPA encoder.

    Attributes:
        img_size: height and width of the input in pixels; a multiple of `patch_size`.
        patch_size: height and width of a patch in pixels.
        num_frames: frames a clip.
        tubelet_size: frames a token; 1 is the only one implemented.
        embed_dim, depth, num_heads: width, blocks, attention heads a block.
        mlp_ratio: hidden width of the MLP over `embed_dim`.
        attn_mode: `block_causal` is the only one implemented. `full` would load and run, with worse features.
        token_drop_rate: share of tokens dropped in training; unused here, carried along.
    """

    embed_dim: int
    depth: int
    num_heads: int
    model_type: str = "levjepa"
    img_size: int = 224
    patch_size: int = 16
    num_frames: int = 16
    tubelet_size: int = 1
    in_chans: int = 3
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    attn_mode: str = "block_causal"
    token_drop_rate: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in _FIXED.items():
            value = getattr(self, name)
            if value != allowed or type(value) is not type(allowed):
                raise UsageError(
                    f"config {name} is {value!r}; only {allowed!r} is implemented, others give other numbers."
                )
        for name in _SIZES_IN_UNITS:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(f"config {name} is {value!r}; allowed is a whole number from 1.")
        if self.img_size % self.patch_size:
            raise UsageError(
                f"config img_size is {self.img_size}; allowed is a multiple of patch_size {self.patch_size}."
            )
        if self.embed_dim % self.num_heads:
            raise UsageError(
                f"config embed_dim is {self.embed_dim}; allowed is a multiple of num_heads {self.num_heads}."
            )
        if self.head_dim % 2 or self.head_dim < 6:
            raise UsageError(
                f"config gives heads of {self.head_dim} dims; rotary positions need an even number from 6."
            )
        self._check_rates()

    def _check_rates(self) -> None:
        for name in ("mlp_ratio", "token_drop_rate"):
            value = getattr(self, name)
            if type(value) not in (int, float):
                raise UsageError(f"config {name} is {value!r}; allowed is a number.")
        hidden = self.embed_dim * self.mlp_ratio
        if not (hidden >= 1 and hidden == int(hidden)):
            raise UsageError(
                f"config mlp_ratio is {self.mlp_ratio!r}; {self.embed_dim} times it must be a whole number."
            )
        if not 0 <= self.token_drop_rate < 1:
            raise UsageError(
                f"config token_drop_rate is {self.token_drop_rate!r}; allowed is 0 up to, not including, 1."
            )

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @property
    def mlp_dim(self) -> int:
        return int(self.embed_dim * self.mlp_ratio)

    @property
    def grid(self) -> int:
        """Patches along one side of the picture."""
        return self.img_size // self.patch_size

    def geometry(
        self, *, frames: int | None = None, image_size: tuple[int, int] | None = None, layers: tuple[int, ...] = ()
    ) -> Geometry:
        """Shapes of an export. Rotary positions are grid indices, so other sizes than the released ones extrapolate.

        Args:
            frames: frames a clip, 1 (pictures) to 64.
            image_size: height and width in pixels, multiples of the patch size.
            layers: blocks whose patch tokens are wanted as well.
        """
        frames = self.num_frames if frames is None else frames
        height, width = image_size or (self.img_size, self.img_size)
        check_input(frames, (height, width), patch_size=self.patch_size, tubelet=self.tubelet_size)
        check_layers(layers, self.depth)
        return Geometry(
            frames=frames,
            height=height,
            width=width,
            times=frames,
            rows=height // self.patch_size,
            cols=width // self.patch_size,
            dim=self.embed_dim,
            has_cls=True,
            attention="block_causal",
            layers=layers,
        )

    @property
    def parameters(self) -> int:
        """Parameters of the encoder."""
        dim, hidden = self.embed_dim, self.mlp_dim
        embed = dim * self.in_chans * self.patch_size**2 + dim + dim  # projection, its bias, [CLS]
        attention = 4 * dim * dim + 4 * dim
        mlp = 2 * dim * hidden + hidden + dim
        return embed + self.depth * (attention + mlp + 4 * dim) + 2 * dim

    @property
    def name(self) -> str:
        """`levjepa-<size>`, or the numbers where they are no named size."""
        for name, size in SIZES.items():
            same = replace(
                self, img_size=size.img_size, num_frames=size.num_frames, token_drop_rate=size.token_drop_rate
            )
            if same == size:
                return name
        return f"levjepa-{self.embed_dim}x{self.depth}x{self.num_heads}p{self.patch_size}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read a released `config.json`.

        Every field must be there (`token_drop_rate` may be missing, it has no effect at inference). Further
        keys are allowed where they only describe the file, or say in other words what the fields say.

        Raises:
            UsageError: a field is missing, has a value that is not implemented, or a key is unknown.
        """
        known = {field.name for field in fields(cls)}
        missing = sorted(known - {"token_drop_rate"} - values.keys())
        if missing:
            raise UsageError(f"config.json lacks {', '.join(missing)}. Use the config.json released with the weights.")
        config = cls(**{name: value for name, value in values.items() if name in known})
        for key in sorted(values.keys() - known - _HARMLESS):
            config._check_alias(key, values[key])
        return config

    def _check_alias(self, key: str, value: Any) -> None:
        """Accept another name for something implemented if it says the same."""
        aliases = {
            "hidden_size": self.embed_dim,
            "num_hidden_layers": self.depth,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.mlp_dim,
            "image_size": self.img_size,
            "num_channels": self.in_chans,
            "layer_norm_eps": LAYER_NORM_EPS,
            "hidden_act": "gelu",
            "use_rope": True,
        }
        if key not in aliases:
            raise UsageError(
                f"config.json has the unknown key {key!r} ({value!r}), which may change the numbers. "
                "Remove it if you know that it does not."
            )
        if value != aliases[key]:
            raise UsageError(
                f"config.json says {key} is {value!r}; by its other fields, or by what is implemented, "
                f"it must be {aliases[key]!r}."
            )


# `nano` is ours, for demonstrations and tests; the others are the published family.
SIZES: dict[str, LeVJEPAConfig] = {
    "levjepa-nano": LeVJEPAConfig(embed_dim=192, depth=6, num_heads=3),
    "levjepa-tiny": LeVJEPAConfig(embed_dim=192, depth=12, num_heads=3),
    "levjepa-small": LeVJEPAConfig(embed_dim=384, depth=12, num_heads=6),
    "levjepa-base": LeVJEPAConfig(embed_dim=768, depth=12, num_heads=12),
    "levjepa-large": LeVJEPAConfig(embed_dim=1024, depth=24, num_heads=16),
}
