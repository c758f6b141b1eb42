"""Packets: what one demux pass tells about the video stream of a file, before anything is decoded."""

import math
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.serve.container import demuxed, open_container, pyav, require_pixels, video_streams
from coldframe.serve.edit_list import require_plain_edits
from coldframe.serve.field_pairs import FieldPairs, field_pairs
from coldframe.serve.integrity import find_damaged
from coldframe.serve.mp4_boxes import frames_in_fragments
from coldframe.serve.sample_descriptions import has_other_codec
from coldframe.serve.sample_times import require_sample_times
from coldframe.store.schema import Flag

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

MAX_FRAMES = 2_000_000  # 10 hours at 55 frames a second; each takes 120 bytes while the index is made
NO_PTS = -(2**63)
_COLUMNS = 7

# FFmpeg gives a duration for these too: its own estimate, from the last timestamps or the bit rate.
_STATES_NO_LENGTH = ("mpegts", "mpeg", "mpegvideo", "h264", "hevc", "ogg", "gif", "dv")


@dataclass(frozen=True, kw_only=True)
class StreamFacts:
    """What the header says about the chosen stream. Rates serve only where packets have no times.

    `promised_s` is the length that the header states, for comparison only; NaN if the format states none. `is_short`:
    the file's tables name frames that FFmpeg does not give.
    """

    index: int
    container_format: str
    time_base: Fraction
    codec: str
    reorders: bool
    rates: tuple[Fraction, ...]
    promised_s: float
    is_short: bool
    flags: Flag


@dataclass(frozen=True, kw_only=True, eq=False)
class Packets:
    """Packets of one stream in file order, empty ones left out, one a frame. All arrays are (packets,).

    `pos` is where each begins in the file, in bytes, -1 if unknown; `damaged` what the container's checks tell.
    """

    pts: NDArray[np.int64]
    dts: NDArray[np.int64]
    duration: NDArray[np.int64]
    bytes: NDArray[np.int64]
    key: NDArray[np.bool_]
    hidden: NDArray[np.bool_]
    pos: NDArray[np.int64]
    damaged: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.pts)

    def of_frames(self, pairs: FieldPairs) -> "Packets":
        """One packet a frame, the first one, where some hold a field each; what `pairs` finds damaged is so."""
        is_first, damaged = np.ones(len(self), np.bool_), self.damaged.copy()
        is_first[pairs.seconds], damaged[pairs.damaged] = False, True
        starts = np.flatnonzero(is_first)
        columns = {name: column[starts] for name, column in vars(self).items()}
        return Packets(**columns | {"damaged": np.logical_or.reduceat(damaged, starts)})

    @property
    def has_keys(self) -> bool:
        return bool(self.key.any())

    def damaged_names(self, *, by_number: bool) -> frozenset[int]:
        """What the damaged packets are called: by their pts or by their number."""
        at = np.flatnonzero(self.damaged)
        return frozenset((at if by_number else self.pts[at]).tolist())

    def key_names(self, *, by_number: bool) -> frozenset[int]:
        """What the key frames' packets are called."""
        at = np.flatnonzero(self.key)
        return frozenset((at if by_number else self.pts[at]).tolist())

    def first(self, count: int) -> "Packets":
        return Packets(**{name: column[:count] for name, column in vars(self).items()})

    def shown(self, leading_pts: Collection[int]) -> NDArray[np.int64]:
        """(n,) numbers of the packets, in file order, whose frames are shown.

        Not shown: what an edit list hides, what comes before the first key frame, and the first key frame's
        leading pictures unless their pts are in `leading_pts`: their references may not be in the file.
        """
        shown = ~self.hidden
        if self.has_keys:
            key = int(np.flatnonzero(self.key)[0])
            shown[:key] = False
            shown &= (self.pts >= self.pts[key]) | np.isin(self.pts, list(leading_pts))
        return np.flatnonzero(shown)


def read_packets(path: str) -> tuple[StreamFacts, Packets]:
    """The video stream of `path` and all its packets.

    Raises:
        VideoError: `no_video`, `no_frames`, `limit`, and what `open_container`, `require_sample_times`,
            `require_plain_edits` and `has_other_codec` raise.
    """
    with open_container(path) as container:
        streams = video_streams(container)
        pairs = {stream.index: field_pairs(stream, checks=True) for stream in streams}
        found, has_failed = _demux(container, streams, pairs)
        stream = max(streams, key=lambda candidate: _preference(candidate, found[candidate.index]))
        packets = found[stream.index]
        if not len(packets):
            raise VideoError("no_frames", "The video stream holds no frame.")
        codec = stream.codec_context
        require_pixels(codec.width, codec.height)
        fields = pairs[stream.index]
        flags = Flag.INTERLACED if fields is not None and fields.is_interlaced else Flag(0)
        flags |= Flag(0) if stream.sample_aspect_ratio in (None, 0, 1) else Flag.SAR_NOT_SQUARE
        assert stream.time_base is not None
        rates = (codec.framerate, stream.average_rate, stream.guessed_rate)
        about = StreamFacts(
            index=stream.index,
            container_format=container.format.name,
            time_base=stream.time_base,
            codec=codec.codec.canonical_name,
            reorders=bool(codec.has_b_frames),
            rates=tuple(rate for rate in rates if rate),
            promised_s=_promised_seconds(container, stream),
            is_short=has_failed or _goes_on_elsewhere(stream, streams, found),
            flags=flags,
        )
        stream_id = stream.id
    if "mov" in about.container_format.split(","):
        require_plain_edits(path, stream_id)
        require_sample_times(path, stream_id)
        lacks_some = has_other_codec(path, stream_id, about.codec)
        lacks_some |= frames_in_fragments(path, stream_id) > int(np.sum(~packets.hidden))
        about = replace(about, is_short=about.is_short or lacks_some)
    damaged = find_damaged(path, about.container_format, stream_index=about.index, stream_id=stream_id, pos=packets.pos)
    packets = replace(packets, damaged=damaged)
    return about, packets if fields is None else packets.of_frames(fields)


def _preference(stream: "VideoStream", packets: Packets) -> tuple[bool, bool, int, int]:
    """Moving pictures before stills, then the default track, then the largest picture, then the first."""
    codec = stream.codec_context
    default = bool(stream.disposition & pyav().stream.Disposition.default)
    return len(packets) > 1, default, codec.width * codec.height, -stream.index


def _goes_on_elsewhere(chosen: "VideoStream", streams: list["VideoStream"], found: Mapping[int, Packets]) -> bool:
    """True if another stream of pictures begins about where the chosen one ends, or the other way round."""
    spans = {}
    for stream in streams:
        times = found[stream.index].dts[found[stream.index].dts != NO_PTS]
        if len(times) > 1 and stream.time_base:
            spans[stream.index] = (int(times.min()) * stream.time_base, int(times.max()) * stream.time_base)
    if chosen.index not in spans:
        return False
    begin, end = spans.pop(chosen.index)
    return any(
        10 * (min(end, last) - max(begin, first)) <= min(end - begin, last - first) for first, last in spans.values()
    )


def _promised_seconds(container: "InputContainer", stream: "VideoStream") -> float:
    if container.format.name in _STATES_NO_LENGTH:
        return math.nan
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / 1e6 if container.duration else math.nan  # in AV_TIME_BASE, microseconds


def _demux(
    container: "InputContainer", streams: list["VideoStream"], pairs: Mapping[int, FieldPairs | None]
) -> tuple[dict[int, Packets], bool]:
    """Packets by stream, and whether the demuxer gave up with an error."""
    ffmpeg_error = pyav().FFmpegError
    rows = {stream.index: array("q") for stream in streams}
    hides = {stream.index: stream.codec_context.codec.canonical_name == "vp8" for stream in streams}
    packets, has_failed = demuxed(container, streams), False
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            break
        except ffmpeg_error:
            has_failed = True
            break
        fields = pairs[packet.stream_index]
        if fields is not None:
            fields.joins(packet)
        row, pts, dts = rows[packet.stream_index], packet.pts, packet.dts
        # The frame tag's bit 4 is show_frame (RFC 6386, 9.1); VP8 in WebM stores hidden
        # reference frames as packets of their own.
        hidden = packet.is_discard or (hides[packet.stream_index] and not memoryview(packet)[0] & 0x10)
        row.extend(
            (
                NO_PTS if pts is None else pts,
                NO_PTS if dts is None else dts,
                packet.duration or 0,
                packet.size,
                packet.is_keyframe,
                hidden,
                -1 if packet.pos is None else packet.pos,
            )
        )
        if len(row) > _COLUMNS * MAX_FRAMES:
            raise VideoError("limit", f"The video has more than {MAX_FRAMES} frames, which is the limit.")
    return {index: _as_columns(row) for index, row in rows.items()}, has_failed


def _as_columns(row: "array[int]") -> Packets:
    table = np.array(row, dtype=np.int64).reshape(-1, _COLUMNS)
    pts, dts, duration, size, key, hidden, pos = (np.ascontiguousarray(column) for column in table.T)
    return Packets(
        pts=pts,
        dts=dts,
        duration=duration,
        bytes=size,
        key=key > 0,
        hidden=hidden > 0,
        pos=pos,
        damaged=np.zeros(len(pos), np.bool_),
    )
