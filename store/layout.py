"""Layout: which arrays a store has, and which object on disk holds which rows."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.store.plan import Column, Plan
from coldframe.store.schema import BASELINE_ARRAYS, StorageDtype, TokenGeometry, scale_array, vector_dtype

MAX_SHARD_BYTES = 256_000_000
MAX_UNIT_SHARE = 256  # a unit holds at most ceil(rows / 256) rows, ...
MIN_UNIT_ROWS = 16  # ... but small jobs are not cut finer than this
WHOLE_CHUNK_BYTES = 256 * 1024  # a row of at least this size is an inner chunk of its own
SMALL_CHUNK_ROWS = 16
PLAN_CHUNK_ROWS = 65536

VIDEO_FIELDS = (
    "path",
    "sha256",
    "source",
    "duplicates",
    "bytes",
    "codec",
    "width",
    "height",
    "rotation",
    "fps",
    "frames",
    "duration_s",
    "promised_s",
    "status",
    "reason",
    "error",
    "flags",
)


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One array of the store.

    Attributes:
        name: key of the array below the store's root.
        dims: dimension names, one an axis.
        shape: length of every axis.
        dtype: numpy type as stored, little-endian; `str` for text.
        chunk_rows: rows of an inner chunk, the smallest piece with a checksum of its own.
        object_rows: rows of one object on disk.
        sharded: whether an object holds several inner chunks and their index.
        fill: what reads back where nothing was written.
        may_be_zero: whether an ok row may be all zero; tokens never are, and a still clip has no motion.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    chunk_rows: int
    object_rows: int
    sharded: bool
    fill: float | str
    may_be_zero: bool = False

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of an inner chunk without its checksum."""
        return self.chunk_rows * prod(self.row_shape) * self.numpy_dtype.itemsize

    @property
    def chunks_per_object(self) -> int:
        return self.object_rows // self.chunk_rows

    def object_key(self, unit: int) -> str:
        """Key, relative to the store's root, of the object that holds the rows of `unit`."""
        return "/".join([self.name, "c", str(unit), *["0"] * len(self.row_shape)])


def unit_rows(rows: int, row_bytes: int) -> int:
    """Rows of one unit, for a job of `rows` rows whose largest array takes `row_bytes` bytes a row.

    A unit is a contiguous range of rows that one worker writes whole, and exactly one object (shard) of every
    array that units write. So no two workers ever touch the same object, and an object is never rewritten in
    part.

    The unit is as large as two bounds allow: its largest shard stays within `MAX_SHARD_BYTES` (few large
    objects are what disks and object storage like), and it holds at most `ceil(rows / 256)` rows, but not
    less than 16: a killed worker loses at most 1/256 of the job or 16 clips. From 16 rows on it is rounded
    down to a multiple of 16, so that inner chunks of 16 rows divide it. Where even 16 rows exceed
    `MAX_SHARD_BYTES` it holds fewer, and never less than one.
    """
    fitting = max(1, MAX_SHARD_BYTES // row_bytes)
    share = max(MIN_UNIT_ROWS, -(-rows // MAX_UNIT_SHARE))
    count = min(fitting, share)
    return count - count % SMALL_CHUNK_ROWS if count >= SMALL_CHUNK_ROWS else count


def rows_per_unit(rows: int, geometry: TokenGeometry, dtype: StorageDtype) -> int:
    """`unit_rows` for the largest array of this token geometry."""
    return unit_rows(rows, max(geometry.array_bytes(dtype).values()))


@dataclass(frozen=True, kw_only=True)
class TokenArray:
    """How tokens, or baselines, are stored.

    Attributes:
        values: the array of their numbers.
        scale: the array of what int8 numbers are multiplied by, one for each token; None where numbers are themselves.
    """

    values: ArraySpec
    scale: ArraySpec | None = None

    @property
    def parts(self) -> tuple[ArraySpec, ...]:
        return (self.values,) if self.scale is None else (self.values, self.scale)


def token_arrays(rows: int, per_unit: int, geometry: TokenGeometry, dtype: StorageDtype) -> dict[str, TokenArray]:
    """How everything that a reader asks for by name is stored: `patch` and `patch_l<i>` (where the tier keeps patches),
    `frame_cls` (where the encoder has one a frame), `cls` (where it has one), baselines (where they are kept).

    Inner chunks hold 1 row where that row takes at least `WHOLE_CHUNK_BYTES`, else 16 rows: one clip of the
    `full` tier is read alone, while short vectors are not cut into crumbs. Scales are chunked as their tokens.
    """
    arrays: dict[str, TokenArray] = {}
    shape = (geometry.time, geometry.rows, geometry.cols, geometry.dim)
    for name in geometry.patch_arrays:
        values = _tokens(name, ("time", "row", "col", "dim"), (rows, *shape), per_unit, dtype)
        arrays[name] = TokenArray(values=values, scale=_scale(values) if dtype == "int8" else None)
    vectors = vector_dtype(dtype)
    if geometry.has_frame_cls:
        frames = _tokens("frame_cls", ("time", "dim"), (rows, geometry.time, geometry.dim), per_unit, vectors)
        arrays["frame_cls"] = TokenArray(values=frames)
    if geometry.has_cls:
        arrays["cls"] = TokenArray(values=_tokens("cls", ("dim",), (rows, geometry.dim), per_unit, vectors))
    for name, axis in BASELINE_ARRAYS.items():
        if length := getattr(geometry, name):
            spec = _tokens(name, (axis,), (rows, length), per_unit, "float16")
            arrays[name] = TokenArray(values=replace(spec, may_be_zero=name == "baseline_motion"))
    return arrays


def unit_arrays(rows: int, per_unit: int, geometry: TokenGeometry, dtype: StorageDtype) -> dict[str, ArraySpec]:
    """Arrays that units write, by name: the parts of `token_arrays`, then `status` and `reason`.

    These two take a byte a row and are always read whole, so a unit of them is a single plain chunk.
    """
    stored = token_arrays(rows, per_unit, geometry, dtype).values()
    arrays = [spec for array in stored for spec in array.parts]
    arrays += [_plain(name, ("clip",), (rows,), "uint8", per_unit) for name in ("status", "reason")]
    return {spec.name: spec for spec in arrays}


def plan_arrays(plan: Plan) -> list[tuple[ArraySpec, NDArray[Any]]]:
    """Arrays that are written once, when the store is created, each with its values."""
    clips = plan.clips
    columns: list[tuple[str, tuple[str, ...], Column | NDArray[Any]]] = [
        ("video", ("clip",), clips.video),
        ("clip_start_s", ("clip",), clips.start_s),
        ("clip_end_s", ("clip",), clips.end_s),
        ("frame_index", ("clip", "frame"), clips.frame_index),
        ("frame_pts_s", ("clip", "frame"), clips.frame_pts_s),
        ("n_real", ("clip",), clips.n_real),
        ("flags", ("clip",), clips.flags),
    ]
    for name in plan.videos.columns:
        require_column_name(name)
    for name in clips.annotations:
        require_array_name(name)
    columns += [(f"annotation_{name}", ("clip",), values) for name, values in clips.annotations.items()]
    named = {name: getattr(plan.videos, name) for name in VIDEO_FIELDS} | dict(plan.videos.columns)
    columns += [(f"video_{name}", ("video",), values) for name, values in named.items()]
    return [_planned(name, dims, values, plan) for name, dims, values in columns]


def require_column_name(name: str) -> None:
    """Raise UsageError if a manifest column called `name` cannot be stored as `video_<name>`."""
    if name in VIDEO_FIELDS:
        raise UsageError(
            f"The manifest column {name!r} has the name of a built-in column. Rename it; built in are: "
            f"{', '.join(VIDEO_FIELDS)}."
        )
    require_array_name(name)


def require_array_name(name: str) -> None:
    """Raise UsageError if `name`, of a column that a user gave, cannot be part of an array's name."""
    if not name or "/" in name or not name.isprintable() or len(name.encode()) > 200:
        raise UsageError(f"The column {name!r} cannot name an array. Use 1 to 200 bytes of printable text without '/'.")


def _planned(
    name: str, dims: tuple[str, ...], values: Column | NDArray[Any], plan: Plan
) -> tuple[ArraySpec, NDArray[Any]]:
    table = plan.clips if dims[0] == "clip" else plan.videos
    if len(values) != len(table):
        raise UsageError(f"The column {name!r} has {len(values)} values for {len(table)} {dims[0]}s. Give one each.")
    if isinstance(values, list):
        array = _text(name, values)
        spec = _plain(name, dims, array.shape, "str", min(len(values), PLAN_CHUNK_ROWS))
    else:
        array = values
        spec = _plain(name, dims, array.shape, array.dtype.name, min(len(values), PLAN_CHUNK_ROWS))
    return spec, array


def _text(name: str, values: list[str]) -> NDArray[Any]:
    for position, value in enumerate(values):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{name}[{position}] is {value!r}, which is not valid Unicode text ({error.reason}). Correct "
                "the manifest."
            ) from error
    return np.array(values, dtype=object)


def _tokens(name: str, dims: tuple[str, ...], shape: tuple[int, ...], per_unit: int, dtype: StorageDtype) -> ArraySpec:
    row_bytes = prod(shape[1:]) * np.dtype(dtype).itemsize
    return ArraySpec(
        name=name,
        dims=("clip", *dims),
        shape=shape,
        dtype=dtype,
        chunk_rows=1 if row_bytes >= WHOLE_CHUNK_BYTES else min(SMALL_CHUNK_ROWS, per_unit),
        object_rows=per_unit,
        sharded=True,
        fill=0 if dtype == "int8" else float("nan"),
    )


def _scale(tokens: ArraySpec) -> ArraySpec:
    """The array of scales of int8 `tokens`. It alone can say that a token is absent: there is no int8 NaN."""
    return replace(
        tokens,
        name=scale_array(tokens.name),
        dims=tokens.dims[:-1],
        shape=tokens.shape[:-1],
        dtype="float32",
        fill=float("nan"),
    )


def _plain(name: str, dims: tuple[str, ...], shape: tuple[int, ...], dtype: str, rows: int) -> ArraySpec:
    fill: float | str = "" if dtype == "str" else float("nan") if dtype.startswith("float") else 0
    return ArraySpec(
        name=name,
        dims=dims,
        shape=shape,
        dtype=dtype,
        chunk_rows=rows,
        object_rows=rows,
        sharded=False,
        fill=fill,
    )
