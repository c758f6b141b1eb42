"""Clips: the planned rows of a unit as encoder inputs, decoded once and in row order."""

import os
from collections import OrderedDict
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.serve.container import file_sha256
from coldframe.serve.frames import read_frames
from coldframe.serve.preprocess import resize_crop
from coldframe.serve.pts_index import PtsIndex, build_index
from coldframe.store.recipe import ImageSize


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


class VideoCache:
    """PTS indices of the videos read last, so that a long video is hashed and indexed once and not once a unit."""

    def __init__(self, capacity: int = 8) -> None:
        self._capacity = capacity
        self._known: OrderedDict[tuple[str, int, int, int], tuple[str, PtsIndex]] = OrderedDict()

    def index(self, path: str, sha256: str) -> PtsIndex:
        """The file's PTS index. Cheap if the file was not touched since the last call, else it is hashed again.

        Raises:
            VideoError: reason `not_found` or `changed` if the file is not the one with digest `sha256`.
        """
        try:
            stat = os.stat(path)
        except OSError as error:
            raise VideoError("not_found", f"The file cannot be read any more: {error.strerror}.") from error
        key = (path, stat.st_ino, stat.st_size, stat.st_ctime_ns)  # not mtime, which copying tools set back
        found, index = self._known.get(key) or (file_sha256(path)[0], None)
        if found != sha256:
            raise VideoError("changed", f"The file's sha256 is {found[:12]}..., planned was {sha256[:12]}...")
        if index is None:
            index = build_index(path)
            self._known[key] = (found, index)
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return index


def read_clips(
    video: VideoClips, cache: VideoCache, *, image_size: ImageSize, threads: int
) -> Generator[tuple[int, NDArray[np.uint8] | VideoError]]:
    """Yield every row of `video` once, in order, as `(row, clip)` or `(row, why there is none)`.

    A clip is (T, height, width, 3) uint8 RGB in [0, 255]. Each frame is decoded and resized once, however
    many clips share it, and dropped after the last clip that needs it. A file that is written to meanwhile gives no
    more clips, but for those whose pictures were read before.
    """
    answered = 0
    try:
        index = cache.index(video.path, video.sha256)
        for clip in _assemble(video, index, image_size, threads):
            cache.index(video.path, video.sha256)  # again: what was decoded since may be half old and half new
            yield int(video.rows[answered]), clip
            answered += 1
    except VideoError as error:
        for row in video.rows[answered:]:
            yield int(row), error


def _assemble(
    video: VideoClips, index: PtsIndex, image_size: ImageSize, threads: int
) -> Generator[NDArray[np.uint8] | VideoError]:
    """One clip, or the first reason why one of its frames is missing, for each row of `video`."""
    first_needed = video.frame_index.min(axis=1)
    answers = read_frames(video.path, index, np.unique(video.frame_index), threads=threads)
    held: OrderedDict[int, NDArray[np.uint8] | VideoError] = OrderedDict()
    with closing(answers):  # a consumer that stops early must not leave the file open
        for row, frames in enumerate(video.frame_index):
            while not held or next(reversed(held)) < frames.max():
                number, frame = next(answers)
                held[number] = frame if isinstance(frame, VideoError) else resize_crop(frame, image_size)
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
