"""Recipe: everything that decides the numbers of a row. Where and how fast they were made is provenance."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from coldframe.errors import RecipeMismatch, UsageError
from coldframe.store.schema import INT8_TIERS, STORAGE_DTYPES, TOKEN_TIERS, WITHOUT_PATCHES, StorageDtype, Tokens

Sampling = Literal["grid", "stride"]
Window = Literal["grid", "before_start", "before_stop", "inside"]
ImageSize = int | tuple[int, int]


def height_width(size: ImageSize) -> tuple[int, int]:
    """Height and width in pixels; one number stands for a square."""
    return (size, size) if isinstance(size, int) else size


MIN_FPS, MAX_FPS = 0.001, 240.0
MAX_HOP_FRAMES = 1_000_000  # far more than any video has; keeps row positions within 64 bits
MAX_ANTICIPATION_S = 3600.0
ClipCls = Literal["token", "frame_mean"]
Control = Literal["none", "static", "reversed", "shuffled"]
CONTROLS: tuple[Control, ...] = get_args(Control)
Baselines = Literal["none", "colour+motion"]
BASELINES: tuple[Baselines, ...] = get_args(Baselines)


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What must be equal for two rows to be comparable.

    Attributes:
        encoder: name of the encoder, such as `levjepa-large`.
        weights_sha256: digest over every weight tensor; tells two random initialisations apart.
        attention: attention mode inside the encoder.
        frames: frames a clip, the encoder's input length.
        fps: clip frame rate in frames per second.
        hop_frames: distance between the starts of two clips, in clip frames (1 / fps seconds each).
        sampling: `grid` (nearest PTS to t0 + k / fps) or `stride` (the reference notebook's integer step).
        image_size: side of the square encoder input in pixels, or its height and width.
        resize, interpolation, crop, untagged_colour: pixel rules by name.
        precision: arithmetic of the encoder.
        layer: which block's output is stored, through the final norm; `last` is the encoder's output.
        layers: further blocks, counted from 0, whose patch tokens are stored, each through the final norm.
        tokens: token tier.
        dtype: storage type of the tokens; `int8` of patch tokens alone, whose vectors are then in float16.
        control: order of a clip's frames; `none` is theirs, all others make a negative control.
        baselines: colour and motion of the same frames, kept beside the tokens; says nothing about the tokens.
        clip_cls: what `cls` of a clip is: a `token` of the encoder, or, for encoders that have one vector a frame, the
            `frame_mean`, the mean of those of its real frames.
        window: what makes the clips: `grid` cuts all of a video; else each annotation of an action makes one, which
            ends before the action starts (`before_start`), before it stops (`before_stop`, as in V-JEPA 2's released
            code, which shows the action), or lies `inside` it. Each position takes the frame that is on display then.
        anticipation_s: seconds from the end of a window `before_start` or `before_stop` to that moment.
    """

    encoder: str
    weights_sha256: str
    attention: str
    frames: int
    fps: float = 7.5
    hop_frames: int = 16
    sampling: Sampling = "grid"
    image_size: ImageSize = 224
    resize: str = "short_side"
    interpolation: str = "bicubic_antialias_uint8"
    crop: str = "centre"
    untagged_colour: str = "bt601_limited"
    precision: str = "fp32"
    layer: str = "last"
    layers: tuple[int, ...] = ()
    tokens: Tokens = "cls"
    dtype: StorageDtype = "float16"
    control: Control = "none"
    baselines: Baselines = "none"
    clip_cls: ClipCls = "token"
    window: Window = "grid"
    anticipation_s: float = 0.0

    def __post_init__(self) -> None:
        if not MIN_FPS <= self.fps <= MAX_FPS:
            raise UsageError(f"fps is {self.fps:g}; allowed is {MIN_FPS:g} to {MAX_FPS:g} frames a second.")
        if not 1 <= self.frames <= 1024:
            raise UsageError(f"frames is {self.frames}; allowed is 1 to 1024.")
        if not 1 <= self.hop_frames <= MAX_HOP_FRAMES:
            raise UsageError(f"hop is {self.hop_frames} frames; allowed is 1 to {MAX_HOP_FRAMES}.")
        if self.sampling not in ("grid", "stride"):
            raise UsageError(f"sampling is {self.sampling!r}; allowed are 'grid' and 'stride'.")
        if self.tokens not in TOKEN_TIERS:
            raise UsageError(f"tokens is {self.tokens!r}; allowed are {', '.join(TOKEN_TIERS)}.")
        if self.dtype not in STORAGE_DTYPES:
            raise UsageError(f"dtype is {self.dtype!r}; allowed are {', '.join(STORAGE_DTYPES)}.")
        if self.dtype == "int8" and self.tokens not in INT8_TIERS:
            raise UsageError(
                f"dtype is 'int8', which is for grids of patch tokens, and the token tier {self.tokens!r} keeps none. "
                f"Use float16, or one of the tiers {', '.join(INT8_TIERS)}."
            )
        if min(height_width(self.image_size)) < 1:
            raise UsageError(f"image_size is {self.image_size!r}; allowed are whole numbers of pixels from 1.")
        if self.layers and self.tokens in WITHOUT_PATCHES:
            raise UsageError(
                f"layers is {self.layers}, but the token tier {self.tokens!r} keeps no patch tokens of any layer."
            )
        if self.control not in CONTROLS:
            raise UsageError(f"control is {self.control!r}; allowed are {', '.join(CONTROLS)}.")
        if self.baselines not in BASELINES:
            raise UsageError(f"baselines is {self.baselines!r}; allowed are {', '.join(BASELINES)}.")
        if self.clip_cls not in get_args(ClipCls):
            raise UsageError(f"clip_cls is {self.clip_cls!r}; allowed are {', '.join(get_args(ClipCls))}.")
        self._check_window()

    def _check_window(self) -> None:
        if self.window not in get_args(Window):
            raise UsageError(f"window is {self.window!r}; allowed are {', '.join(get_args(Window))}.")
        if not 0 <= self.anticipation_s <= MAX_ANTICIPATION_S:
            raise UsageError(
                f"anticipation is {self.anticipation_s:g} s; allowed is 0 to {MAX_ANTICIPATION_S:g} seconds."
            )
        if self.anticipation_s and self.window not in ("before_start", "before_stop"):
            raise UsageError(f"anticipation is {self.anticipation_s:g} s, but a window {self.window!r} has none.")
        if self.window != "grid" and (self.sampling != "grid" or self.hop_frames != self.frames):
            raise UsageError(
                f"sampling is {self.sampling!r} and hop {self.hop_frames} frames, but each annotation makes one clip, "
                "on a grid of its own. Leave both options out."
            )

    @property
    def recipe_id(self) -> str:
        """sha256 of the canonical JSON of all fields, in hexadecimal."""
        return hashlib.sha256(canonical_json(self.to_dict()).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """JSON values, without `baselines`, `clip_cls` and the window where they are what older recipes mean."""
        pairs = asdict(self).items()
        fields = {key: list(value) if isinstance(value, tuple) else value for key, value in pairs}
        if self.baselines == "none":
            del fields["baselines"]
        if self.clip_cls == "token":
            del fields["clip_cls"]
        if self.window == "grid":
            del fields["window"]
        if self.window in ("grid", "inside"):
            del fields["anticipation_s"]
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        size = fields.get("image_size", 224)
        pair = size if isinstance(size, int) else tuple(size)
        return cls(**{**fields, "image_size": pair, "layers": tuple(fields.get("layers", ()))})

    def require_equal(self, other: "Recipe", what: str) -> None:
        """Raise `RecipeMismatch`, which shows all differences, unless `other` (of `what`) is equal."""
        if self != other:
            raise RecipeMismatch(what, self.to_dict(), other.to_dict())
