"""PTS index: which frames a video file really has, and when each of them is shown.

Made from one demux pass and the first few decoded frames. Counts, durations and rates in headers are not
used: they are wrong in trimmed, cut, repaired and live-written files. Where the packets' timestamps cannot
be the pictures' (none at all, duplicates, a timeline that restarts, B-frames in a container without
presentation times), one full decoding pass numbers the frames instead.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.serve.completeness import is_cut_short
from coldframe.serve.decoded_order import TAIL_STEPS, frame_rate, lost_in_place, orders_pictures, without_torn_groups
from coldframe.serve.first_frames import FirstFrames, decode_first
from coldframe.serve.packets import MAX_FRAMES, NO_PTS, Packets, StreamFacts, read_packets
from coldframe.store.schema import Flag

MAX_SECONDS = 48 * 3600.0
MAX_SECONDS_PER_FRAME = 60.0  # on average: 3 frames over 10 hours would make 270,000 grid positions

_FIRST_FRAMES = 8  # decoded and compared with the packets; field pictures, for one, show in them
_SHORT_PACKETS = 32  # files up to this length are decoded whole
_REORDER_LIMIT = 32  # H.264 and HEVC reorder at most 16 frames, 32 fields

# Demuxers that guess the pts of some packets from those before them, so that a seek changes them.
_NEVER_SEEK = ("mpeg",)
_SEEKS_BY_DTS = ("mpegts",)
# Their timestamps have 33 bits. FFmpeg takes a restart at an earlier time for the wrap-around after 26.5 hours.
_WRAPS = ("mpegts", "mpeg")
_HALF_WRAP_TICKS = 2**32


@dataclass(frozen=True, kw_only=True, eq=False)
class PtsIndex:
    """Presentable frames of one video stream in presentation order.

    Attributes:
        stream_index: which stream of the file.
        time_base: seconds a tick.
        pts: (n,) int64 ticks, strictly increasing. Hidden lead-in of edit lists, frames before the first
            key frame and frames behind a hole at the cut end of a file are not in it.
        packet: (n,) int64 number of each frame's packet in file order, counted from 0 without empty
            packets.
        key_pts: (m,) int64 ticks of key frames in file order, hidden ones included.
        key_seek: (m,) int64 ticks to seek to in order to arrive there.
        key_bytes: (m,) int64 size of the key frames' packets, by which a landing is recognised.
        seekable: a seek can be trusted; otherwise the file is read from its start.
        waits_for_key: frames before the first key frame in the file are not in the index.
        frame_duration: typical distance of two frames in ticks; 0 if unknown.
        codec: FFmpeg's name of the codec.
        width, height: picture size in pixels before rotation.
        rotation: degrees clockwise by which the picture is turned for display: 0, 90, 180 or 270.
        mirrored: the picture is mirrored left to right before it is turned.
        fps: mean frames a second; NaN if unknown.
        promised_s: length in seconds that the file's header states, which may be wrong; NaN if it states none.
        flags: `Flag` bits that hold for the whole video.
        synthesised: pts are frame number / rate, because the file gives no usable ones.
        damaged: packets that the container's checks show to be damaged: their pts, or their numbers in file order
            where pts are synthesised.
    """

    stream_index: int
    time_base: Fraction
    pts: NDArray[np.int64] = field(repr=False)
    packet: NDArray[np.int64] = field(repr=False)
    key_pts: NDArray[np.int64] = field(repr=False)
    key_seek: NDArray[np.int64] = field(repr=False)
    key_bytes: NDArray[np.int64] = field(repr=False)
    seekable: bool
    waits_for_key: bool
    frame_duration: int
    codec: str
    width: int
    height: int
    rotation: int
    mirrored: bool
    fps: float
    promised_s: float
    flags: Flag
    synthesised: bool
    damaged: frozenset[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.pts)

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """(n,) time of each frame in seconds from the first one."""
        ticks = (self.pts - self.pts[0]).astype(np.float64)
        return np.asarray(ticks * self.time_base.numerator / self.time_base.denominator)

    @property
    def duration_s(self) -> float:
        """From the first frame to the end of the last one in seconds."""
        return float((int(self.pts[-1]) - int(self.pts[0]) + self.frame_duration) * self.time_base)


def build_index(path: str) -> PtsIndex:
    """Index the video stream of `path`.

    Raises:
        VideoError: reasons `not_found`, `empty_file`, `unreadable`, `no_video`, `no_frames` or `limit`.
        MissingDependency: PyAV is not installed.
    """
    stream, packets = read_packets(path)
    cut = is_cut_short(path, stream.container_format)
    if cut and len(packets) > 1:
        packets = packets.first(len(packets) - 1)  # may lack its end, which not every demuxer tells
    if not _needs_decoding(packets, stream):
        at_most = MAX_FRAMES if len(packets) <= _SHORT_PACKETS else _FIRST_FRAMES
        first = decode_first(path, stream, packets, at_most=at_most, by_number=False)
        shown = packets.shown(first.names)
        shown = shown[np.argsort(packets.pts[shown], kind="stable")]
        if first.agrees_with(packets.pts[shown]):
            return _index_by_packets(stream, packets, first, shown, cut)
    return _index_by_decoding(path, stream, packets, cut)


def _needs_decoding(packets: Packets, stream: StreamFacts) -> bool:
    """True if the packets' timestamps cannot be those of the pictures."""
    pts = packets.pts[packets.shown(())]
    if (packets.pts == NO_PTS).any() or len(np.unique(pts)) < len(pts):
        return True
    if len(pts) < 2:
        return len(pts) == 0
    dts = packets.dts[packets.dts != NO_PTS]
    if (np.diff(dts) < 0).any():  # the timeline restarts
        return True
    if _restarts(pts, stream):
        return True
    rank = np.argsort(np.argsort(pts))
    if np.abs(rank - np.arange(len(rank))).max() > _REORDER_LIMIT:
        return True
    if _invents_times(packets, stream):
        return True
    return stream.reorders and bool((np.diff(pts) > 0).all())  # an MP4 without ctts gives decoding times


def _invents_times(packets: Packets, stream: StreamFacts) -> bool:
    """True if the demuxer made presentation times up: AVI has none, only an even row of chunks.

    Without B-frames these are times as well, unless FFmpeg thinks of a delay and takes the next chunk's for them.
    """
    if stream.container_format != "avi":
        return False
    return stream.reorders or len(np.unique(packets.pts - packets.dts)) > 1


def _restarts(pts: NDArray[np.int64], stream: StreamFacts) -> bool:
    return stream.container_format in _WRAPS and bool((np.diff(np.sort(pts)) > _HALF_WRAP_TICKS).any())


def _index_by_packets(
    stream: StreamFacts, packets: Packets, first: FirstFrames, shown: NDArray[np.int64], cut: bool | None
) -> PtsIndex:
    kept = _before_hole(packets, shown, stream.reorders, cut)
    # Frames can be missing at the start as well, where a recording began or the first key frame is damaged.
    is_short = cut or stream.is_short or len(kept) < np.count_nonzero(~packets.hidden)
    flags = Flag.TRUNCATED if is_short else Flag(0)
    return _finish(stream, packets, first, kept, packets.pts[kept], stream.time_base, flags)


def _index_by_decoding(path: str, stream: StreamFacts, packets: Packets, cut: bool | None) -> PtsIndex:
    """Index in the decoder's output order; the packets' times are kept if they increase in that order."""
    every = decode_first(path, stream, packets, at_most=MAX_FRAMES, by_number=True)
    names = np.array(every.names[: every.good] if cut else every.names, dtype=np.int64)
    order = names[names < len(packets)]
    flags = Flag.TRUNCATED if cut or stream.is_short else Flag(0)
    invented = _invents_times(packets, stream)
    if stream.reorders and (invented or not orders_pictures(packets, reorders=True)):
        lost = every.lost | ({len(packets) - 1} if cut else set())
        packets, order = without_torn_groups(packets, order, lost)
    elif every.lost and orders_pictures(packets, stream.reorders):
        order = lost_in_place(packets, order)
    pts = packets.pts[order]
    usable = len(pts) > 0 and pts.min() != NO_PTS and bool((np.diff(pts) > 0).all())
    if usable and not invented and not _restarts(pts, stream):
        order = _before_hole(packets, order, stream.reorders, cut)
        pts = packets.pts[order]
        return _finish(stream, packets, every, order, pts, stream.time_base, flags)
    if stream.is_short and not cut:
        raise VideoError(
            "unreadable",
            f"The file's tables name more frames than the {len(packets)} that can be read, and no times tell which are "
            "missing. Fragments must not overlap in time. Write the file anew with other tools, or copy it again.",
        )
    flags |= Flag.PTS_SYNTHESISED
    chunks = np.sort(packets.dts[order])
    if invented and len(order) and chunks[0] != NO_PTS and (np.diff(chunks) > 0).all():
        # Chunks come at an even rate, empty ones too: for those the picture before stays.
        return _finish(stream, packets, every, order, chunks, stream.time_base, flags)
    numbers = np.arange(len(order), dtype=np.int64)
    return _finish(stream, packets, every, order, numbers, 1 / frame_rate(packets, stream), flags)


def _before_hole(packets: Packets, order: NDArray[np.int64], reorders: bool, cut: bool | None) -> NDArray[np.int64]:
    """`order` up to where frames are missing because the file was cut between a frame and its B-frames.

    In a video of even rate that is the first gap near the end. Where the format does not tell whether the
    file is cut, one single gap is taken for it: at worst, a few last frames are not used.
    """
    pts = packets.pts[order]
    if not reorders or cut is False or len(pts) < 4:
        return order
    steps = np.diff(pts)
    from_end = len(steps) - np.flatnonzero(steps > 1.5 * np.median(steps))  # (gaps,) 1 for the last step
    late = from_end[from_end <= TAIL_STEPS]
    uneven = len(from_end[from_end <= 4 * TAIL_STEPS]) > len(late)
    if not len(late):
        return order
    if not uneven and (cut or len(late) == 1):
        return order[: len(order) - late[0]]
    if cut and packets.dts[-1] != NO_PTS:
        # Uneven times: a gap proves nothing. What is missing is decoded, hence shown, after the last dts.
        return order[np.flatnonzero(pts <= packets.dts[-1])]
    return order


def _finish(
    stream: StreamFacts,
    packets: Packets,
    first: FirstFrames,
    order: NDArray[np.int64],
    pts: NDArray[np.int64],
    time_base: Fraction,
    flags: Flag,
) -> PtsIndex:
    if not len(pts):
        raise VideoError("no_frames", f"None of {len(packets)} packets of video gives a presentable frame.")
    steps = np.diff(pts)
    duration = int(np.median(steps)) if len(steps) else int(packets.duration[order[0]])
    span = int(pts[-1]) - int(pts[0])
    _require_length(len(pts), float((span + duration) * time_base))
    mean_step = Fraction(span, len(steps)) if len(steps) else Fraction(duration)
    synthesised = Flag.PTS_SYNTHESISED in flags
    keys = np.flatnonzero(packets.key & (packets.pts != NO_PTS))
    by_dts = stream.container_format in _SEEKS_BY_DTS
    return PtsIndex(
        stream_index=stream.index,
        time_base=time_base,
        pts=pts,
        packet=order,
        key_pts=packets.pts[keys],
        key_seek=packets.dts[keys] if by_dts else packets.pts[keys],
        key_bytes=packets.bytes[keys],
        seekable=not synthesised and first.has_sure_keys and stream.container_format not in _NEVER_SEEK,
        waits_for_key=packets.has_keys,
        frame_duration=duration,
        codec=stream.codec,
        width=first.width,
        height=first.height,
        rotation=first.rotation,
        mirrored=first.mirrored,
        fps=float(1 / (mean_step * time_base)) if mean_step else float("nan"),
        promised_s=stream.promised_s,
        flags=flags | first.flags | stream.flags | _evenness(steps, duration),
        synthesised=synthesised,
        damaged=packets.damaged_names(by_number=synthesised),
    )


def _evenness(steps: NDArray[np.int64], duration: int) -> Flag:
    """`VARIABLE_RATE` unless steps are equal up to a tenth of a frame, or rounding both ends to ticks."""
    tolerance = max(min(2, duration // 2), duration // 10)
    uneven = len(steps) > 0 and np.abs(steps - duration).max() > tolerance
    return Flag.VARIABLE_RATE if uneven else Flag(0)


def _require_length(frames: int, seconds: float) -> None:
    if seconds > min(MAX_SECONDS, MAX_SECONDS_PER_FRAME * frames):
        raise VideoError(
            "limit",
            f"{frames} frames span {seconds:.0f} s; allowed are {MAX_SECONDS:.0f} s "
            f"and {MAX_SECONDS_PER_FRAME:.0f} s a frame on average.",
        )
