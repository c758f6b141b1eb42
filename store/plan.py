"""Plan: the table of videos and clips made before any encoding. It fixes the rows and their order."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coldframe.store.recipe import Recipe, canonical_json

Column = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.bool_] | list[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Videos:
    """One entry a video, in row order. Lists hold text, arrays hold numbers; all have the same length.

    Attributes:
        path: absolute path as text (`coldframe.store.text.path_to_text`).
        sha256: digest of the file's bytes, in hexadecimal; empty where the file could not be read.
        source: the independent thing the video comes from; the file's digest unless a manifest says
            otherwise.
        duplicates: JSON list of further paths with the same bytes; they share this video's rows.
        bytes: file size.
        codec: FFmpeg's name of the video codec.
        width, height: coded picture size in pixels, before rotation.
        rotation: clockwise-positive degrees by which the picture is turned for display: 0, 90, 180 or 270.
        fps: mean frame rate of the PTS index in frames per second; NaN if unknown.
        frames: presentable frames.
        duration_s: from the first presentable frame to the end of the last one; NaN if there is none.
        promised_s: length that the file's header states, for comparison only; NaN if it states none.
        status, reason, error: `Status`, `Reason` and the first error text of a video that cannot be used.
        flags: `Flag` bits that hold for the whole video.
        columns: further manifest columns by name, `label` among them.
    """

    path: list[str]
    sha256: list[str]
    source: list[str]
    duplicates: list[str]
    bytes: NDArray[np.int64]
    codec: list[str]
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    rotation: NDArray[np.int32]
    fps: NDArray[np.float64]
    frames: NDArray[np.int32]
    duration_s: NDArray[np.float64]
    promised_s: NDArray[np.float64]
    status: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    error: list[str]
    flags: NDArray[np.uint32]
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.path)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clips:
    """One entry a row. `T` is the recipe's number of frames.

    A video that cannot be used has exactly one clip: `reason` set, times NaN, frame indices -1, `n_real` 0. Where clips
    are made by annotation it has one for each of them, and so has an annotation without a window in a good video.

    Attributes:
        video: (n,) index into the videos.
        start_s, end_s: (n,) window in seconds from the first presentable frame, half-open, on the sampling
            grid.
        frame_index: (n, T) presentation index of each frame, counted from 0; repeats where padded.
        frame_pts_s: (n, T) time of each frame in seconds from the first presentable frame.
        n_real: (n,) frames that are not padding.
        flags: (n,) `Flag` bits.
        reason: (n,) `Reason` known before decoding; 0 for clips that are to be extracted.
        annotations: (n,) columns of the annotations that made the clips: `id`, `start_s`, `stop_s` and any others;
            empty where the recipe's window is `grid`.
    """

    video: NDArray[np.int32]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    frame_index: NDArray[np.int32]
    frame_pts_s: NDArray[np.float64]
    n_real: NDArray[np.int16]
    flags: NDArray[np.uint32]
    reason: NDArray[np.uint8]
    annotations: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.video)


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Videos and clips under one recipe. Deterministic: the same files and recipe give the same plan."""

    recipe: Recipe
    videos: Videos
    clips: Clips

    @cached_property
    def plan_id(self) -> str:
        """sha256 over the recipe and every value of both tables, in hexadecimal."""
        digest = hashlib.sha256(self.recipe.recipe_id.encode())
        for table in (self.videos, self.clips):
            for item in fields(table):
                value = getattr(table, item.name)
                columns = value if isinstance(value, Mapping) else {item.name: value}
                for name in sorted(columns):
                    column = columns[name]
                    text = isinstance(column, list)
                    body = canonical_json(column).encode() if text else np.ascontiguousarray(column).tobytes()
                    digest.update(f"{name}:{len(body)}:".encode() + body)
        return digest.hexdigest()
