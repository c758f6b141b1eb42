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
from coldframe.serve.decode_process import STALL_SECONDS, DecodeProcess
from coldframe.serve.frames import read_frames
from coldframe.serve.preprocess import resize_crop, use_one_thread
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


Answer = tuple[int, NDArray[np.uint8] | VideoError]
Spans = tuple[NDArray[np.integer], NDArray[np.integer]]  # first and last frame, one of each a row

# Codecs whose entropy-coded data has no redundancy that FFmpeg would check (measured: docs/decoding-cases.md).
_LETS_DAMAGE_PASS = ("hevc", "vp8", "vp9", "av1")
_MOST_FRAMES_BEHIND = 256  # decoded behind a clip to see whether its group of pictures is whole; they are held


class ClipReader(Protocol):
    """How a worker gets its clips; each way of decoding is one."""

    def begin(self, videos: Sequence[VideoClips]) -> None:
        """Say which videos are read next and in which order, so that the reader can work ahead."""

    def read(self, video: VideoClips) -> Generator[Answer]:
        """Yield every row of `video` once, in order: `(row, clip)`, or `(row, why there is none)`.

        A clip is (T, height, width, 3) uint8 RGB in [0, 255].
        """

    def provenance(self) -> dict[str, Any]:
        """Which decoder made the rows that were read since `begin`; JSON values."""

    def close(self) -> None:
        """Give back processes and files."""


class PyAVReader:
    """Reads clips with PyAV in a process of its own (`DecodeProcess`), which a bad file may hang or crash.

    Such a file costs the rows of `read`'s video that were not answered yet, with reason `timeout`, `decode_error` or
    `limit`.
    """

    def __init__(self, *, image_size: ImageSize, stall_seconds: float = STALL_SECONDS) -> None:
        self._image_size = image_size
        self._process = DecodeProcess(stall_seconds=stall_seconds)

    def begin(self, videos: Sequence[VideoClips]) -> None:
        pass

    def read(self, video: VideoClips) -> Generator[Answer]:
        answered = 0
        try:
            for answer in self._process.run(read_in_child, video, self._image_size):
                yield answer
                answered += 1
        except VideoError as error:
            for row in video.rows[answered:]:
                yield int(row), error

    def provenance(self) -> dict[str, Any]:
        return {"decoder": decoder_version()}

    def close(self) -> None:
        self._process.close()


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


_cache = VideoCache()  # of a decode process


def read_in_child(video: VideoClips, image_size: ImageSize) -> Generator[Answer]:
    """`read_clips` as the job of a decode process, which keeps the indices of the videos it read last."""
    use_one_thread()
    return read_clips(video, _cache, image_size=image_size, threads=1)


def read_clips(video: VideoClips, cache: VideoCache, *, image_size: ImageSize, threads: int) -> Generator[Answer]:
    """Yield every row of `video` once, in order, as `(row, clip)` or `(row, why there is none)`.

    A clip is (T, height, width, 3) uint8 RGB in [0, 255]. Each frame is decoded and resized once, however
    many clips share it, and dropped after the last clip that needs it. A file that is written to meanwhile gives no
    more clips, but for those whose pictures were read before.
    """
    answered = 0
    try:
        index = cache.index(video.path, video.sha256)
        spans, given_up = _trust_spans(video.frame_index, index), list[int]()
        wanted = np.union1d(video.frame_index, spans[1])
        squares = read_squares(video.path, index, wanted, image_size=image_size, threads=threads, given_up=given_up)
        for clip in assemble(video, squares, spans=spans, given_up=given_up):
            cache.index(video.path, video.sha256)  # again: what was decoded since may be half old and half new
            yield int(video.rows[answered]), clip
            answered += 1
    except VideoError as error:
        for row in video.rows[answered:]:
            yield int(row), error


def read_squares(
    path: str,
    index: PtsIndex,
    wanted: NDArray[np.integer],
    *,
    image_size: ImageSize,
    threads: int,
    given_up: list[int] | None = None,
) -> Generator[Answer]:
    """`read_frames` with each picture brought to the encoder's size."""
    with closing(read_frames(path, index, wanted, threads=threads, given_up=given_up)) as answers:
        for number, frame in answers:
            yield number, frame if isinstance(frame, VideoError) else resize_crop(frame, image_size)


def assemble(
    video: VideoClips, squares: Generator[Answer], *, spans: Spans | None = None, given_up: Sequence[int] = ()
) -> Generator[NDArray[np.uint8] | VideoError]:
    """One clip, or the first reason why there is none, for each row of `video`.

    Args:
        video: the rows.
        squares: answers every frame of `video.frame_index`, and the last of each span, once and in ascending order; it
            is closed at the end.
        spans: first and last frame of the span that must be without damage for each clip; None for its own frames.
        given_up: frames that the decoder gave up, wanted or not; may grow while `squares` is read.
    """
    # of each row or any behind it: windows of annotations may begin a frame before that of an earlier row
    first_needed = np.minimum.accumulate(video.frame_index.min(axis=1)[::-1])[::-1]
    begin, end = spans or (video.frame_index.min(axis=1), video.frame_index.max(axis=1))
    held: OrderedDict[int, NDArray[np.uint8] | VideoError] = OrderedDict()
    with closing(squares):  # a consumer that stops early must not leave the file open
        for row, frames in enumerate(video.frame_index):
            while not held or next(reversed(held)) < end[row]:
                number, square = next(squares)
                held[number] = square
            clip = _stack([held[int(number)] for number in frames])
            if not isinstance(clip, VideoError) and any(begin[row] < place <= end[row] for place in given_up):
                clip = VideoError("decode_error", "The data is damaged between the clip's frames.")
            yield clip
            keep_from = first_needed[row + 1] if row + 1 < len(video.rows) else None
            while held and (keep_from is None or next(iter(held)) < keep_from):
                held.popitem(last=False)


def _trust_spans(frame_index: NDArray[np.int32], index: PtsIndex) -> Spans:
    """(n,) first and (n,) last frame of the span that must be without damage for each clip to be good.

    It is the clip's own span: frames may have been lost in it without a trace in the index. Where a decoder lets
    damage pass, it is whole groups of pictures, because a group with one reported error has more that are not.
    """
    begin, end = frame_index.min(axis=1).astype(np.int64), frame_index.max(axis=1).astype(np.int64)
    if index.codec not in _LETS_DAMAGE_PASS or index.synthesised or not len(index.key_pts):
        return begin, end
    keys = np.unique(np.searchsorted(index.pts, index.key_pts))  # numbers of the frames that begin a group
    before = np.searchsorted(keys, begin, side="right") - 1
    begin = np.where(before >= 0, keys[np.maximum(before, 0)], 0)
    after = np.append(keys, len(index))[np.searchsorted(keys, end, side="right")] - 1
    return begin, np.clip(after, end, np.minimum(end + _MOST_FRAMES_BEHIND, len(index) - 1))


def _stack(frames: list[NDArray[np.uint8] | VideoError]) -> NDArray[np.uint8] | VideoError:
    pictures = []
    for frame in frames:
        if isinstance(frame, VideoError):
            return frame
        pictures.append(frame)
    return np.stack(pictures)
