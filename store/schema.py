"""Words and numbers that the store's arrays are made of. `docs/FORMAT.md` specifies them for strangers."""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Literal, get_args

FORMAT_VERSION = 1

Tokens = Literal["cls", "cls+mean", "cls+grid7", "full"]
TOKEN_TIERS: tuple[Tokens, ...] = get_args(Tokens)
StorageDtype = Literal["float16", "float32"]


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


class Flag(IntFlag):
    """Conditions that a user may want to filter on; a flagged row is still right by the declared rules."""

    PADDED = 1  # n_real < frames: the last real frame is repeated
    UPSAMPLED = 2  # the source has fewer frames than the grid asks for, so real frames repeat
    COLOUR_UNTAGGED = 4  # read as BT.601 limited range
    PTS_SYNTHESISED = 8  # the file gives no usable timestamps; frame number / rate was used
    INTERLACED = 16
    SAR_NOT_SQUARE = 32  # sample aspect ratio is not 1:1; it is ignored
    # 64 and 128 are free: damage and changes of size show only in a full decode, and flags are written before it
    TRUNCATED = 256  # the container promises more than the file holds
    ROTATED = 512  # a display matrix was applied
    VARIABLE_RATE = 1024  # frame times are not evenly spaced


@dataclass(frozen=True, kw_only=True)
class TokenGeometry:
    """Shape of one row's tokens as stored.

    `patch` of one row is `(time, rows, cols, dim)`; `rows` and `cols` are 0 where the tier keeps no patches
    and 1 for one mean token a frame.
    """

    dim: int
    time: int
    rows: int
    cols: int

    @classmethod
    def for_tier(cls, tokens: Tokens, *, dim: int, time: int, rows: int, cols: int) -> "TokenGeometry":
        """What `tokens` keeps of an encoder whose patch tokens are `(time, rows, cols, dim)`."""
        if tokens == "cls":
            return cls(dim=dim, time=0, rows=0, cols=0)
        if tokens == "cls+mean":
            return cls(dim=dim, time=time, rows=1, cols=1)
        if tokens == "cls+grid7":
            return cls(dim=dim, time=time, rows=rows // 2, cols=cols // 2)
        return cls(dim=dim, time=time, rows=rows, cols=cols)

    def row_bytes(self, dtype: StorageDtype) -> int:
        """Bytes that one row's tokens take, before any overhead."""
        width = 2 if dtype == "float16" else 4
        return width * self.dim * (1 + self.time * self.rows * self.cols)
