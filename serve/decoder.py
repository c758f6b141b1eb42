"""Decoder: one sequential run over a stream's packets that gives whole pictures and gives up damaged ones.

A decoder asked to be helpful hides damage: of 110 pictures that plain iteration gets out of an H.264 file
with 40 flipped bits, 79 are wrong and 12 are marked. Here `err_detect=explode` makes FFmpeg report what it
would conceal, and after the first report nothing is believed before the next key frame.

Codecs differ in how much of their data a decoder can check (measured: docs/decoding-cases.md). A single flipped bit
in HEVC, VP8 or VP9 is hardly ever noticed; what the container's checks show to be damaged is given up as well.
"""

from collections import deque
from collections.abc import Container, Generator, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from coldframe.serve.container import MAX_PIXELS, demuxed, pyav
from coldframe.serve.field_pairs import field_pairs
from coldframe.serve.packets import MAX_FRAMES

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    Parts = list[Packet[VideoStream]]

# `buffer` and `bitstream` are left out: they reject the last frame of many whole MPEG-1 and MPEG-2 files.
_DETECT = "crccheck+explode"
# In H.264 without CABAC, `aggressive` means that a slice has to end where its data does.
_DETECT_MORE = {"h264": "+aggressive"}

_BEFORE_ALL = -(2**63)
_NO_KIND, _I_PICTURE, _B_PICTURE = 0, 1, 3  # FFmpeg's AVPictureType

# Codecs whose bitstream marks pictures that no other picture refers to, and whose FFmpeg decoder skips
# exactly those.
_SKIPS_UNREFERENCED = ("h264", "hevc")

# Their FFmpeg decoders make up a grey picture where a reference is missing, and hand it out as one of no kind.
_STARTS_FROM_GREY = (
    "mpeg1video", "mpeg2video", "mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2", "wmv3", "vc1",
    "h261", "h263", "h263i", "h263p", "flv1", "rv10", "rv20", "rv30", "rv40",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Landing:
    """Where a seek must have arrived: on a key frame that the index knows, not later than `latest_pts`.

    A key frame is known by its pts and its size in bytes. Some demuxers give a packet another pts after a
    seek than in sequential reading, and pictures would then answer to each other's names.
    """

    latest_pts: int
    key_bytes: dict[int, int]

    def accepts(self, packet: "Packet[VideoStream]") -> bool:
        pts = packet.pts
        return pts is not None and pts <= self.latest_pts and self.key_bytes.get(pts) == packet.size


def refers_to_others(frame: "VideoFrame") -> bool:
    """True if `frame` is no key frame; False as well where the decoder does not tell."""
    return not frame.key_frame and frame.pict_type not in (_NO_KIND, _I_PICTURE)


def tells_kind(frame: "VideoFrame") -> bool:
    """False for decoders that do not say whether a frame refers to others; all of them are old."""
    return frame.key_frame or frame.pict_type != _NO_KIND


class Decoder:
    """Decodes one video stream of an open container from where the container stands.

    Args:
        threads: decoder threads. With more than 1, FFmpeg decodes that many frames at once, and an error
            report is late by as many, so that as many more frames are given up.
        by_number: name frames by the number of their packet in file order, not by pts. Only for runs that
            start at the beginning of the file.
        wanted: names of the frames whose pictures are needed; None for all. Others may be left out.
        damaged: names of packets that the container shows to be damaged; the decoder never sees them.
    """

    def __init__(
        self,
        container: "InputContainer",
        stream: "VideoStream",
        *,
        threads: int = 1,
        by_number: bool = False,
        wanted: Container[int] | None = None,
        damaged: Container[int] = (),
    ) -> None:
        self._error = pyav().FFmpegError
        self._container, self._stream, self._codec = container, stream, stream.codec_context
        self._threads, self._by_number, self._damaged = threads, by_number, damaged
        self._key: int | None = None  # the packet that a run started from, until its frame is out
        self._may_lead = False
        self._wanted = wanted if self._codec.codec.canonical_name in _SKIPS_UNREFERENCED else None
        detect = _DETECT + _DETECT_MORE.get(self._codec.codec.canonical_name, "")
        self._codec.options = {"err_detect": detect, "max_pixels": str(MAX_PIXELS)}
        # Otherwise FFmpeg crops the left edge to a multiple of its alignment only, and columns that are no part of the
        # picture stay in it.
        self._codec.flags |= pyav().codec.context.Flags.unaligned
        self._codec.thread_count = threads
        self._codec.thread_type = "FRAME" if threads > 1 else "SLICE"

    def frames(
        self, *, wait_for_key: bool = True, leading: bool = False, landing: Landing | None = None
    ) -> Generator[tuple[int, "VideoFrame | None"], None, None]:
        """Yield `(name, frame)` in output order, or `(name, None)` for a packet that was given up.

        `wait_for_key` gives up what comes before the first key frame. `leading` tries that key frame's
        leading pictures as well; behind damage they are always given up. The run ends at once, with nothing,
        if the first key frame is not where `landing` wants it, or refers to others: containers may call every frame a
        key frame, and many decoders then start from a grey picture.
        """
        skipping, first_pts = wait_for_key, _BEFORE_ALL
        has_landed, since_key = False, list[int]()
        self._key = None
        in_flight: deque[int] = deque(maxlen=self._threads)
        for name, parts in self._named():
            if skipping and not parts[0].is_keyframe:
                yield name, None
                continue
            if skipping:
                if landing is not None and not landing.accepts(parts[0]):
                    return
                skipping, has_landed, landing = False, landing is not None, None
                first_pts = _BEFORE_ALL if self._by_number or leading else name
                self._key = None if parts[0].is_discard else name  # what an edit list hides does not come out
                self._may_lead = first_pts == _BEFORE_ALL
                since_key = []
                leading = False
                in_flight.clear()
            in_flight.append(name)
            if self._key is not None:
                since_key.append(name)
            decoded, is_damaged = self._decode(name, parts)
            if name < first_pts:
                # A leading picture of an open GOP: shown before the key frame, needs frames before it. The
                # decoder sees it, because H.264 counts frames, but its error is no damage.
                yield name, None
                is_damaged = is_damaged and self._threads > 1
            decoded = [frame for frame in decoded if frame.pts is not None and frame.pts >= first_pts]
            if self._has_false_key(decoded):
                if has_landed:
                    return
                self._drain()
                yield from ((lost, None) for lost in since_key)
                skipping = True
                continue
            good = list(takewhile(lambda frame: not frame.is_corrupt, decoded))
            yield from ((frame.pts, frame) for frame in good if frame.pts is not None)
            if is_damaged or len(good) < len(decoded):
                yield from self._give_up(set(in_flight), first_pts, pending_is_good=is_damaged)
                skipping = True
        yield from self._give_up(set(), first_pts, pending_is_good=True)

    def _named(self) -> Iterator[tuple[int, "Parts"]]:
        """The packets of each frame, with its name."""
        for number, parts in enumerate(self._frames_of_packets()):
            if number >= MAX_FRAMES:  # the index has no more: a demuxer that goes round in circles
                return
            name = number if self._by_number else parts[0].pts
            if name is not None:
                yield name, parts

    def _frames_of_packets(self) -> Iterator["Parts"]:
        """One packet, or one for each field."""
        pairs = field_pairs(self._stream)
        if pairs is None:
            yield from ([packet] for packet in self._packets())
            return
        held: Parts = []
        for packet in self._packets():
            if not pairs.joins(packet) and held:
                yield held
                held = []
            held.append(packet)
            if not pairs.awaits_second:
                yield held
                held = []
        if held:
            yield held

    def _packets(self) -> Iterator["Packet[VideoStream]"]:
        # Empty packets are left out: they would tell the decoder that the stream has ended.
        packets = demuxed(self._container, [self._stream])
        while True:
            try:
                packet = next(packets)
            except (StopIteration, self._error):  # a demuxer that cannot go on: the stream ends here
                return
            yield packet

    def _decode(self, name: int, parts: "Parts") -> tuple[list["VideoFrame"], bool]:
        """Frames that came out, and whether damage was reported."""
        if name in self._damaged or any(packet.is_corrupt for packet in parts):
            return [], True
        if self._wanted is not None:
            self._codec.skip_frame = "DEFAULT" if name in self._wanted else "NONREF"
        frames: list[VideoFrame] = []
        try:
            for packet in parts:
                packet.pts = name
                frames += self._codec.decode(packet)
        except self._error:
            return frames, True
        return frames, False

    def _has_false_key(self, frames: list["VideoFrame"]) -> bool:
        """True if the first frame out since the last key packet shows that this is none.

        Then it refers to others, or is another one, because the decoder dropped what it could not decode. Decoders
        that do not tell what kind of picture one is are believed, and so are H.264's points of recovery.
        """
        if self._key is None or not frames:
            return False
        first, key, codec = frames[0], self._key, self._codec.codec.canonical_name
        if self._may_lead and first.pts != key and first.pict_type == _B_PICTURE:
            return False
        self._key = None
        if not refers_to_others(first):
            return codec in _STARTS_FROM_GREY and first.pict_type == _NO_KIND
        return first.pts == key or codec not in _SKIPS_UNREFERENCED

    def _give_up(
        self, lost: set[int], first_pts: int, *, pending_is_good: bool
    ) -> Iterator[tuple[int, "VideoFrame | None"]]:
        """Empty the decoder. What was decoded before a report is good; behind a marked frame nothing is."""
        frames = self._drain()
        pending_is_good = pending_is_good and not self._has_false_key(frames)
        for frame in frames:
            if frame.pts is not None and frame.pts >= first_pts and frame.pts not in lost:
                yield frame.pts, frame if pending_is_good and not frame.is_corrupt else None
        yield from ((name, None) for name in sorted(lost))

    def _drain(self) -> list["VideoFrame"]:
        try:
            frames = self._codec.decode(None)
        except self._error:
            frames = []
        self._codec.flush_buffers()
        return frames
