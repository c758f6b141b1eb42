"""Image encoders' configuration: what a per-frame encoder takes and gives. Needs nothing heavy."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, get_args

from coldframe.errors import UsageError
from coldframe.export.geometry import Geometry, check_input

Vector = Literal["cls", "pooled", "none"]
VECTORS: tuple[Vector, ...] = get_args(Vector)
IMAGE_ENCODER = "image_encoder"  # `model_type` of a bundle's config.json
DEFAULT_FRAMES = 16


@dataclass(frozen=True, kw_only=True)
class ImageEncoderConfig:
    """An image encoder of `transformers` or `timm` over frames, one by one.

    Attributes:
        family: `model_type` of the vision model in `transformers`, or `timm`.
        settings: everything of the library's own configuration that decides shapes or numbers.
        height, width: released input in pixels.
        stride: pixels a side that one patch, or one place of a convolutional map, stands for.
        embed_dim: width of a token.
        any_size: whether other input sizes are allowed, with positions resampled as the library does.
        prefix: tokens before the patches: [CLS] and registers. Registers are dropped.
        vector: what the one vector a frame is: `cls`, the [CLS] token through the final norm; `pooled`, what the
            library's own pooling gives; `none`.
        vectors: which of these the encoder has.
        pixel_mean, pixel_std: normalisation of RGB in [0, 1], as released.
        released_pixels: in words, how the release resizes and crops.
        parameters: numbers in the weights.
        left_out: tensors of the released checkpoint that this encoder has no use for, by name, and how many.
        num_frames: frames a clip unless an export says otherwise; frames do not see each other.
    """

    model_type: str = IMAGE_ENCODER
    family: str
    settings: Mapping[str, Any]
    height: int
    width: int
    stride: int
    embed_dim: int
    any_size: bool
    prefix: int
    vector: Vector
    vectors: tuple[Vector, ...]
    pixel_mean: tuple[float, float, float]
    pixel_std: tuple[float, float, float]
    released_pixels: str
    parameters: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    num_frames: int = DEFAULT_FRAMES

    def __post_init__(self) -> None:
        if self.vector not in self.vectors:
            raise UsageError(
                f"frame vector is {self.vector!r}, which {self.family} does not have; allowed are "
                f"{', '.join(self.vectors)}. The mean of a frame's patches needs none: --tokens mean."
            )
        for name, least in (("pixel_mean", -math.inf), ("pixel_std", 0.0)):
            values = getattr(self, name)
            if len(values) != 3 or not all(math.isfinite(value) and value > least for value in values):
                above = " above 0" if least == 0 else ""
                raise UsageError(f"{name} is {list(values)}; allowed are three finite numbers{above}, one a colour.")
        check_input(self.num_frames, (self.height, self.width), patch_size=self.stride, tubelet=1)

    @property
    def name(self) -> str:
        """Family, sizes, the vector if it is no [CLS], and a digest of all that decides numbers besides the weights.

        Two exports of equal weights with another activation, normalisation or vector must never share a store.
        """
        settings = self.settings
        decisive = [self.family, settings, self.pixel_mean, self.pixel_std, self.vector]
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]
        pooled = "-pooled" if self.vector == "pooled" else ""
        if self.family == "timm":
            return f"timm-{settings['architecture']}{pooled}-{digest}"
        sizes = f"{settings['hidden_size']}x{settings['num_hidden_layers']}p{settings['patch_size']}"
        return f"{self.family.removesuffix('_vision_model')}-{sizes}{pooled}-{digest}"

    @property
    def other_vector(self) -> str:
        """What to do for a vector a frame where this export has none; empty if there is nothing to do."""
        others = [vector for vector in self.vectors if vector != "none"]
        if self.vector != "none" or not others:
            return ""
        return f" For one vector a frame, export the encoder again with --frame-vector {' or '.join(others)}."

    def geometry(
        self, *, frames: int | None = None, image_size: tuple[int, int] | None = None, layers: tuple[int, ...] = ()
    ) -> Geometry:
        """Shapes of an export; `layers` are refused."""
        frames = self.num_frames if frames is None else frames
        height, width = image_size or (self.height, self.width)
        check_input(frames, (height, width), patch_size=self.stride, tubelet=1)
        if not self.any_size and (height, width) != (self.height, self.width):
            raise UsageError(
                f"image size is {height}x{width}; {self.name} takes {self.height}x{self.width} only, as released."
            )
        if layers:
            raise UsageError(f"layers is {layers}; image encoders give their output alone. Leave it out.")
        return Geometry(
            frames=frames,
            height=height,
            width=width,
            times=frames,
            rows=height // self.stride,
            cols=width // self.stride,
            dim=self.embed_dim,
            has_cls=False,
            attention="per_frame",
            has_frame_cls=self.vector != "none",
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        pairs = asdict(self).items()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in pairs}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        try:
            tuples = {name: tuple(values[name]) for name in ("vectors", "pixel_mean", "pixel_std")}
            return cls(**{**values, **tuples})
        except (TypeError, KeyError) as error:
            raise UsageError(f"config.json of an image encoder has other keys than wanted: {error}.") from error
