"""Frames: the pictures that were asked for, or why not.

Every frame is recognised by its pts (by its packet's number where pts are synthesised), never by counting.
Each index that was asked for is answered exactly once.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError, VideoError
from coldframe.serve.container import open_container, pyav, require_pixels
from coldframe.serve.decoder import Decoder, Landing
from coldframe.serve.orientation import orientation, upright
from coldframe.serve.pts_index import PtsIndex

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# A seek throws away what the decoder holds and demuxes anew: measured, it costs as much as decoding 10 to
# 20 frames. So it is worth it if a key frame lies further ahead than that.
SEEK_GAIN_FRAMES = 24

_END = 2**62  # beyond every frame number

Answer = tuple[int, NDArray[np.uint8] | VideoError]


def read_frames(
    path: str,
    index: PtsIndex,
    wanted: Sequence[int] | NDArray[np.integer],
    *,
    threads: int = 1,
    given_up: list[int] | None = None,
) -> Generator[Answer, None, None]:
    """Yield `(number, picture)` or `(number, why there is none)` for each wanted frame, in ascending order.

    A picture is upright (H, W, 3) uint8 RGB in [0, 255], contiguous and the receiver's own. Its size may
    change within a video. Tagged colour is read as tagged, untagged as BT.601 limited range. The file is
    open from the first answer until the generator is finished or closed.

    Args:
        path: the file that `index` was made of.
        index: from `build_index`.
        wanted: strictly increasing presentation indices, 0 <= number < len(index).
        threads: decoder threads. 1 is the fastest use of a machine that decodes several videos at once,
            and keeps the number of frames given up behind damage smallest; more shorten one video's
            decoding.
        given_up: receives the places of frames that were passed over because of damage, wanted or not, before the
            next wanted frame is answered. Place p lies behind frame p - 1, and at or before frame p.

    Errors that are answered: `decode_error` (damage at or before the frame, or the decoder gave nothing),
    `frame_mismatch` (the decoder's order contradicts the index, here or since the last key frame), `limit`, and
    those of opening the file.

    Raises:
        UsageError: `wanted` is not increasing or out of range.
    """
    numbers = np.asarray(wanted, dtype=np.int64)
    if numbers.ndim != 1 or (np.diff(numbers) <= 0).any():
        raise UsageError("Wanted frames are not strictly increasing. Sort them and remove duplicates.")
    if len(numbers) and (numbers[0] < 0 or numbers[-1] >= len(index)):
        raise UsageError(f"Wanted frames are {numbers[0]} to {numbers[-1]}; the video has 0 to {len(index) - 1}.")
    return _answers(path, index, numbers, threads, [] if given_up is None else given_up)


def _answers(
    path: str, index: PtsIndex, numbers: NDArray[np.int64], threads: int, given_up: list[int]
) -> Generator[Answer, None, None]:
    with ExitStack() as stack:
        reader = _Reader(path, index, numbers, threads, given_up, stack)
        try:
            yield from reader.answers()
        except VideoError as error:
            for number in numbers[reader.answered :].tolist():
                yield number, error


class _OutOfOrder(VideoError):
    """Pictures come out in another order than their times; they may bear each other's names."""


class _Reader:
    """Passes over the wanted frames in runs: decoding from the file's start, or from a key frame onwards."""

    def __init__(
        self,
        path: str,
        index: PtsIndex,
        numbers: NDArray[np.int64],
        threads: int,
        given_up: list[int],
        stack: ExitStack,
    ) -> None:
        self._path, self._index, self._threads, self._stack = path, index, threads, stack
        self._given_up = given_up
        self._error = pyav().FFmpegError
        self._reformatter = pyav().video.reformatter.VideoReformatter()  # keeps its tables from frame to frame
        # By PyAV's angle: its side data and its frame refer to each other, so that each frame whose display
        # matrix was read stays in memory until the garbage collector runs (measured: 12 % of decoding time).
        self._orientations: dict[int, tuple[int, bool]] = {}
        self._numbers: list[int] = numbers.tolist()
        self.answered = 0
        self._names = index.packet if index.synthesised else index.pts
        self._by_packet = {name: at for at, name in enumerate(index.packet.tolist())} if index.synthesised else {}
        self._wanted = None if index.synthesised else frozenset(index.pts[numbers].tolist())
        self._keys = np.argsort(index.key_pts, kind="stable")
        self._key_bytes = dict(zip(index.key_pts.tolist(), index.key_bytes.tolist(), strict=True))
        self._run: Generator[tuple[int, VideoFrame | None], None, None] | None = None
        self._container: InputContainer | None = None
        self._key, self._seen, self._back, self._is_second_try = -1, -1, 1, False
        self._held: tuple[int, VideoFrame | None] | None = None

    def answers(self) -> Iterator[Answer]:
        """Answer every wanted frame."""
        self._start_from_file()
        mismatch, trusted_from = None, 0
        for wanted in self._numbers:
            picture: NDArray[np.uint8] | VideoError
            if mismatch is None or wanted >= trusted_from:
                try:
                    frame = self._find(wanted)
                    picture = self._gave_nothing(wanted) if frame is None else self._picture(frame)
                    frame = None
                except _OutOfOrder as error:
                    mismatch, picture = error, error
                    trusted_from = self._next_key_number()
                    self._reset(-1)
            else:
                picture = mismatch
            self.answered += 1
            yield wanted, picture
            del picture  # two pictures alive at once would cost a page fault for every 4 KB of each

    def _find(self, wanted: int) -> "VideoFrame | None":
        key = self._key_before(wanted)
        if key >= 0 and (self._run is None or self._first_number_of(key) - self._latest > SEEK_GAIN_FRAMES):
            self._start_from_key(key, wanted)
        frame = self._advance(wanted)
        while frame is None and self._key >= 0 and (self._seen < 0 or not self._is_second_try):
            # The key frame was not where it should be, or the decoder needs more than this key frame.
            # In a run from an earlier one, only damage keeps a frame from coming out.
            self._start_earlier(wanted)
            frame = self._advance(wanted)
        return frame

    def _next_key_number(self) -> int:
        """Number of the first key frame behind what came out; `_END` if there is none, or no seek."""
        if not self._index.seekable:
            return _END
        latest = min(max(self._seen, self._latest), len(self._index) - 1)
        behind = int(np.searchsorted(self._index.key_pts[self._keys], self._index.pts[latest], side="right"))
        return self._first_number_of(behind) if behind < len(self._keys) else _END

    @property
    def _latest(self) -> int:
        """Number of the last frame that came out of the run, `_END` if the run is over, -1 at its start."""
        return self._seen if self._held is None else self._held[0]

    def _advance(self, wanted: int) -> "VideoFrame | None":
        """The frame `wanted`, or None if the run went past it.

        Raises:
            _OutOfOrder: frames come out in another order than the index has them.
        """
        while self._latest < wanted:
            self._seen = self._latest
            self._held = self._next()
            if self._held[0] <= self._seen:
                raise _OutOfOrder(
                    "frame_mismatch",
                    f"The decoder gave frame {self._held[0]} after frame {self._seen}: "
                    "the file's timestamps contradict its pictures.",
                )
        return self._held[1] if self._held is not None and self._held[0] == wanted else None

    def _next(self) -> tuple[int, "VideoFrame | None"]:
        """Number and picture of the next good frame that is in the index; `_END` and None at the end."""
        if self._run is not None:
            for name, frame in self._run:
                number = self._number(name)
                if frame is not None and number is not None:
                    return number, frame
                if frame is None and self._latest >= 0:  # before a run's first frame, pictures lead a key frame
                    self._given_up.append(self._place(name) if number is None else number)
        return _END, None

    def _place(self, name: int) -> int:
        """Number of the first frame behind the lost packet `name`, which is not in the index."""
        return _END if self._by_packet else int(np.searchsorted(self._names, name))

    def _number(self, name: int) -> int | None:
        if self._by_packet:
            return self._by_packet.get(name)
        at = int(np.searchsorted(self._names, name))
        return at if at < len(self._names) and self._names[at] == name else None

    def _key_before(self, wanted: int) -> int:
        """Place in `_keys` of the last key frame shown at or before `wanted`; -1 for the file's start."""
        if not self._index.seekable:
            return -1
        key_pts = self._index.key_pts[self._keys]
        return int(np.searchsorted(key_pts, self._index.pts[wanted], side="right")) - 1

    def _first_number_of(self, key: int) -> int:
        return int(np.searchsorted(self._index.pts, self._index.key_pts[self._keys[key]]))

    def _reset(self, key: int) -> None:
        if self._run is not None:
            self._run.close()
        self._key, self._run = key, None
        self._seen, self._held = -1, None

    def _start_from_file(self) -> None:
        self._reset(-1)
        self._back = 1
        self._stack.close()
        self._container = self._stack.enter_context(open_container(self._path))
        streams = self._container.streams
        if self._index.stream_index >= len(streams):
            raise VideoError("changed", f"The file has no stream {self._index.stream_index} any more.")
        self._stream: VideoStream = streams[self._index.stream_index]  # type: ignore[assignment]
        self._decoder = Decoder(
            self._container,
            self._stream,
            threads=self._threads,
            by_number=self._index.synthesised,
            wanted=self._wanted,
            damaged=self._index.damaged,
        )
        leading = len(self._keys) > 0 and bool(self._index.pts[0] < self._index.key_pts[0])
        self._run = self._decoder.frames(wait_for_key=self._index.waits_for_key, leading=leading)

    def _start_from_key(self, key: int, wanted: int) -> None:
        assert self._container is not None
        self._reset(key)
        self._back, self._is_second_try = 1, False
        self._seek(wanted)

    def _seek(self, wanted: int) -> None:
        assert self._container is not None
        target = int(self._index.key_seek[self._keys[self._key]])
        try:
            self._container.seek(target, stream=self._stream)
        except self._error:
            return  # an empty run, which makes the reader start earlier
        landing = Landing(latest_pts=int(self._index.pts[wanted]), key_bytes=self._key_bytes)
        self._run = self._decoder.frames(landing=landing)

    def _start_earlier(self, wanted: int) -> None:
        key, back = self._key - self._back, 2 * self._back
        if key < 0:
            self._start_from_file()
        else:
            self._reset(key)
            self._seek(wanted)
        self._back, self._is_second_try = back, True

    def _picture(self, frame: "VideoFrame") -> NDArray[np.uint8] | VideoError:
        try:
            require_pixels(frame.width, frame.height)
            # Untagged colour is BT.601 limited by swscale's default; one thread, as workers run side by
            # side.
            rgb = self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
        except VideoError as error:
            return error
        except (self._error, ValueError) as error:
            return VideoError("decode_error", f"The picture cannot be converted to RGB: {error}.")
        if frame.rotation not in self._orientations:
            self._orientations[frame.rotation] = orientation(frame)
        return upright(cast(NDArray[np.uint8], rgb), *self._orientations[frame.rotation])

    def _gave_nothing(self, wanted: int) -> VideoError:
        seconds = self._index.seconds[wanted]
        return VideoError("decode_error", f"Frame {wanted} at {seconds:.3f} s cannot be decoded: the data is damaged.")
