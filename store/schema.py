"""Words and numbers that the store's arrays are made of. `docs/FORMAT.md` specifies them for strangers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum, IntFlag
from typing import Any, Literal, Self, get_args

from coldframe.errors import UsageError

FORMAT_VERSION = 1

Tokens = Literal["cls", "cls+mean", "cls+grid7", "full", "mean", "grid7", "frame_cls"]
TOKEN_TIERS: tuple[Tokens, ...] = get_args(Tokens)
StorageDtype = Literal["float16", "float32", "int8"]
STORAGE_DTYPES: tuple[StorageDtype, ...] = get_args(StorageDtype)
# what int8 is for: a grid of patch tokens; the few vectors that other tiers keep are not worth their loss
INT8_TIERS: tuple[Tokens, ...] = ("full", "cls+grid7", "grid7")

# what an encoder without [CLS] can give where a tier asks for one
WITHOUT_CLS: dict[Tokens, Tokens] = {"cls": "mean", "cls+mean": "mean", "cls+grid7": "grid7", "frame_cls": "mean"}
WITHOUT_PATCHES: tuple[Tokens, ...] = ("cls", "frame_cls")
# tiers that keep one vector a frame where the encoder has it
WITH_FRAME_CLS: tuple[Tokens, ...] = ("frame_cls", "cls+mean", "cls+grid7", "full")


# arrays of the baselines, by the field of the geometry that says how long a row's vector is
BASELINE_ARRAYS: Mapping[str, str] = {"baseline_colour": "colour_bin", "baseline_motion": "motion_value"}


def layer_array(layer: int) -> str:
    """Name of the array with the patch tokens of block `layer`, counted from 0."""
    return f"patch_l{layer}"


def scale_array(name: str) -> str:
    """Name of the array with the scales of the int8 tokens in `name`."""
    return f"{name}_scale"


def vector_dtype(dtype: StorageDtype) -> Literal["float16", "float32"]:
    """How vectors of clips and frames are stored where patch tokens are stored as `dtype`."""
    return "float32" if dtype == "float32" else "float16"


class Status(IntEnum):
    """What a row holds. Zero is what never-written bytes read as, so zero must mean absent."""

    ABSENT = 0
    OK = 1
    FAILED = 2


class Reason(IntEnum):
    """Why a row or video is not ok. Codes are part of the format: append, never renumber."""

    NONE = 0
    NOT_FOUND = 1  # the file is gone or cannot be read by this user
    EMPTY_FILE = 2
    UNREADABLE = 3  # no allowed container format, or a header that cannot be parsed
    NO_VIDEO = 4  # no video stream; cover pictures do not count
    NO_FRAMES = 5  # a video stream without one presentable frame
    CHANGED = 6  # the bytes are no longer those that were planned
    DECODE_ERROR = 7  # damaged data where the clip's frames should be
    FRAME_MISMATCH = 8  # the decoder gave another frame than the PTS index asked for
    NON_FINITE = 9  # the encoder, or storage in 16 bits, produced inf, nan or only zeros
    LIMIT = 10  # more pixels, frames or seconds than allowed
    TIMEOUT = 11
    NO_WINDOW = 12  # the annotation lies outside its video, or leaves no frame that its clip may show

    @property
    def is_transient(self) -> bool:
        """Whether the same file may well give a clip at another time."""
        return self in (Reason.NOT_FOUND, Reason.TIMEOUT)


class Flag(IntFlag):
    """Conditions that a user may want to filter on; a flagged row is still right by the declared rules."""

    PADDED = 1  # n_real < frames: the last real frame is repeated, or the first (PADDED_FRONT)
    UPSAMPLED = 2  # the source has fewer frames than the grid asks for, so real frames repeat
    COLOUR_UNTAGGED = 4  # read as BT.601 limited range
    PTS_SYNTHESISED = 8  # the file gives no usable timestamps; frame number / rate was used
    INTERLACED = 16
    SAR_NOT_SQUARE = 32  # sample aspect ratio is not 1:1; it is ignored
    # 64 and 128 are free: damage and changes of size show only in a full decode, and flags are written before it
    TRUNCATED = 256  # the container promises more than the file holds
    ROTATED = 512  # a display matrix was applied
    VARIABLE_RATE = 1024  # frame times are not evenly spaced
    PADDED_FRONT = 2048  # the window begins before the video: its first frame is repeated, the real ones come last


@dataclass(frozen=True, kw_only=True)
class TokenGeometry:
    """Shape of one row's tokens as stored.

    `patch` of one row is `(time, rows, cols, dim)`; `rows` and `cols` are 0 where the tier keeps no patches
    and 1 for one mean token a frame.

    Attributes:
        has_cls: whether a row has a [CLS] vector.
        layers: blocks, counted from 0, whose patch tokens are kept beside `patch`, in the same shape.
        baseline_colour, baseline_motion: length of a row's baselines; 0 where none are kept.
        has_frame_cls: whether a row has one vector a frame, `(time, dim)`.
    """

    dim: int
    time: int
    rows: int
    cols: int
    has_cls: bool = True
    layers: tuple[int, ...] = ()
    baseline_colour: int = 0
    baseline_motion: int = 0
    has_frame_cls: bool = False

    @classmethod
    def for_tier(
        cls,
        tokens: Tokens,
        *,
        dim: int,
        time: int,
        rows: int,
        cols: int,
        has_cls: bool = True,
        layers: tuple[int, ...] = (),
        has_frame_cls: bool = False,
    ) -> Self:
        """What `tokens` keeps of an encoder whose patch tokens are `(time, rows, cols, dim)`.

        Args:
            has_cls: whether the encoder has a [CLS] token, or one a frame.
            layers: blocks whose patch tokens the encoder gives as well; the tiers without patches keep none.
            has_frame_cls: whether the encoder has one [CLS], or pooled vector, a frame.

        Raises:
            UsageError: a tier with [CLS] of an encoder that has none, or one a frame of an encoder without.
        """
        if not has_cls and tokens in WITHOUT_CLS:
            raise UsageError(
                f"tokens is {tokens!r}, but this encoder has no [CLS] token, and no other token is one. "
                f"Use {WITHOUT_CLS[tokens]!r}; allowed are 'mean', 'grid7' and 'full'."
            )
        if tokens == "frame_cls" and not has_frame_cls:
            raise UsageError(
                "tokens is 'frame_cls', but this encoder has one [CLS] a clip, and none a frame. Use 'cls'."
            )
        if tokens == "cls":
            return cls(dim=dim, time=0, rows=0, cols=0)
        if tokens == "frame_cls":
            return cls(dim=dim, time=time, rows=0, cols=0, has_frame_cls=True)
        if tokens in ("cls+mean", "mean"):
            rows = cols = 1
        elif tokens in ("cls+grid7", "grid7"):
            rows, cols = rows // 2, cols // 2
        kept_cls = has_cls and tokens not in ("mean", "grid7")
        return cls(
            dim=dim,
            time=time,
            rows=rows,
            cols=cols,
            has_cls=kept_cls,
            layers=layers,
            has_frame_cls=has_frame_cls and tokens in WITH_FRAME_CLS,
        )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "layers": tuple(fields.get("layers", ()))})

    def to_dict(self) -> dict[str, Any]:
        """JSON values. Baselines and `has_frame_cls` are left out where there are none, as in older stores."""
        absent = [name for name in (*BASELINE_ARRAYS, "has_frame_cls") if not getattr(self, name)]
        fields = {**asdict(self), "layers": list(self.layers)}
        return {name: value for name, value in fields.items() if name not in absent}

    @property
    def keeps_patches(self) -> bool:
        return self.time * self.rows * self.cols > 0

    @property
    def patch_arrays(self) -> tuple[str, ...]:
        """Names of the arrays of patch tokens: `patch`, then one a layer."""
        return ("patch", *map(layer_array, self.layers)) if self.keeps_patches else ()

    def row_bytes(self, dtype: StorageDtype) -> int:
        """Bytes that one row's tokens and baselines take, before any overhead."""
        return sum(self.array_bytes(dtype).values())

    def array_bytes(self, dtype: StorageDtype) -> dict[str, int]:
        """Bytes of one row in each array of tokens, of their scales, and of baselines, by name."""
        tokens = self.time * self.rows * self.cols
        patch_width, width = ({"float32": 4, "float16": 2, "int8": 1}[kind] for kind in (dtype, vector_dtype(dtype)))
        sizes = dict.fromkeys(self.patch_arrays, tokens * self.dim * patch_width)
        if dtype == "int8":
            sizes |= {scale_array(name): 4 * tokens for name in self.patch_arrays}
        sizes |= {
            "frame_cls": self.has_frame_cls * self.time * self.dim * width,
            "cls": self.has_cls * self.dim * width,
        }
        sizes |= {name: 2 * getattr(self, name) for name in BASELINE_ARRAYS}
        return {name: size for name, size in sizes.items() if size}
