"""Clips: the planned rows of a unit as encoder inputs, decoded once and in row order."""

import os
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.serve.container import decoder_version, file_sha256
from coldframe.serve.frames import read_frames
from coldframe.serve.preprocess import resize_crop
from coldframe.serve.pts_index import PtsIndex, build_index


@dataclass(frozen=True, kw_only=True)
class VideoClips:
    """The rows that one video contributes to a unit.

    Attributes:
        path: file to read.
        sha256: content that was planned; other content is an error, not a feature.
        rows: row numbers, increasing.
        frame_index: (n, T) presentation indices of each row's frames.
    """

    path: str
    sha256: str
    rows: NDArray[np.int64]
    frame_index: NDArray[np.int32]


Answer = tuple[int, NDArray[np.uint8] | VideoError]


class ClipReader(Protocol):
    """How a worker gets its clips; each way of decoding is one."""

    def begin(self, videos: Sequence[VideoClips]) -> None:
        """Say which videos are read next and in which order, so that the reader can work ahead."""

    def read(self, video: VideoClips) -> Generator[Answer]:
        """Yield every row of `video` once, in order: `(row, clip)`, or `(row, why there is none)`.

        A clip is (T, size, size, 3) uint8 RGB in [0, 255].
        """

    def provenance(self) -> dict[str, Any]:
        """Which decoder made the rows that were read since `begin`; JSON values."""

    def close(self) -> None:
        """Give back processes and files."""


class PyAVReader:
    """Reads clips with PyAV."""

    def __init__(self, *, image_size: int) -> None:
        self._image_size, self._cache = image_size, VideoCache()

    def begin(self, videos: Sequence[VideoClips]) -> None:
        pass

    def read(self, video: VideoClips) -> Generator[Answer]:
        return read_clips(video, self._cache, image_size=self._image_size, threads=1)

    def provenance(self) -> dict[str, Any]:
        return {"decoder": decoder_version()}

    def close(self) -> None:
        pass


class VideoCache:
    """PTS indices of the videos read last, so that a long video is hashed and indexed once and not once a unit."""

    def __init__(self, capacity: int = 8) -> None:
        self._capacity = capacity
        self._known: OrderedDict[tuple[str, int, int], tuple[str, PtsIndex]] = OrderedDict()

    def index(self, path: str, sha256: str) -> PtsIndex:
        """The file's PTS index.

        Raises:
            VideoError: reason `not_found` or `changed` if the file is not the one with digest `sha256`.
        """
        try:
            stat = os.stat(path)
        except OSError as error:
            raise VideoError("not_found", f"The file cannot be read any more: {error.strerror}.") from error
        key = (path, stat.st_size, stat.st_mtime_ns)
        if key not in self._known:
            found, _ = file_sha256(path)
            if found == sha256:
                self._known[key] = (found, build_index(path))
            else:
                raise VideoError("changed", f"The file's sha256 is {found[:12]}..., planned was {sha256[:12]}...")
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        found, index = self._known[key]
        if found != sha256:
            raise VideoError("changed", f"The file's sha256 is {found[:12]}..., planned was {sha256[:12]}...")
        return index


def read_clips(video: VideoClips, cache: VideoCache, *, image_size: int, threads: int) -> Generator[Answer]:
    """Yield every row of `video` once, in order, as `(row, clip)` or `(row, why there is none)`.

    A clip is (T, image_size, image_size, 3) uint8 RGB in [0, 255]. Each frame is decoded and resized once, however
    many clips share it, and dropped after the last clip that needs it.
    """
    answered = 0
    try:
        index = cache.index(video.path, video.sha256)
        wanted = np.unique(video.frame_index)
        for clip in assemble(video, read_squares(video.path, index, wanted, image_size=image_size, threads=threads)):
            yield int(video.rows[answered]), clip
            answered += 1
    except VideoError as error:
        for row in video.rows[answered:]:
            yield int(row), error


def read_squares(
    path: str, index: PtsIndex, wanted: NDArray[np.integer], *, image_size: int, threads: int
) -> Generator[Answer]:
    """`read_frames` with each picture brought to (image_size, image_size, 3)."""
    with closing(read_frames(path, index, wanted, threads=threads)) as answers:
        for number, frame in answers:
            yield number, frame if isinstance(frame, VideoError) else resize_crop(frame, image_size)


def assemble(video: VideoClips, squares: Generator[Answer]) -> Generator[NDArray[np.uint8] | VideoError]:
    """One clip, or the first reason why one of its frames is missing, for each row of `video`.

    `squares` answers every frame of `video.frame_index` once, in ascending order; it is closed at the end.
    """
    first_needed = video.frame_index.min(axis=1)
    held: OrderedDict[int, NDArray[np.uint8] | VideoError] = OrderedDict()
    with closing(squares):  # a consumer that stops early must not leave the file open
        for row, frames in enumerate(video.frame_index):
            while not held or next(reversed(held)) < frames.max():
                number, square = next(squares)
                held[number] = square
            yield _stack([held[int(number)] for number in frames])
            keep_from = first_needed[row + 1] if row + 1 < len(video.rows) else None
            while held and (keep_from is None or next(iter(held)) < keep_from):
                held.popitem(last=False)


def _stack(frames: list[NDArray[np.uint8] | VideoError]) -> NDArray[np.uint8] | VideoError:
    pictures = []
    for frame in frames:
        if isinstance(frame, VideoError):
            return frame
        pictures.append(frame)
    return np.stack(pictures)
