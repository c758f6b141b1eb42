"""Field pairs: which packets of an H.264 stream hold the second field of a frame (ITU-T H.264, 7.3 and 7.4.1.2.4).

Interlaced video may be coded a field at a time, and then a packet may hold a frame, both fields of one, or one field:
FFmpeg splits transport streams that way and leaves the second field without a time, and copies them so into MP4 and
Matroska. Where one field of two is missing, FFmpeg's decoder fills its rows from the other one, without an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coldframe.serve.bits import Bits

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

_TOP, _BOTTOM, _BOTH = 1, 2, 3
_SLICE, _SLICE_A, _IDR_SLICE, _SPS, _PPS = 1, 2, 5, 7, 8
# Profiles whose sequence parameter sets tell the chroma format (7.3.2.1.1).
_WITH_CHROMA_FORMAT = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
_PARAMETER_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class _Sequence:
    frames_only: bool
    is_adaptive: bool
    frame_num_bits: int
    has_colour_planes: bool


@dataclass(frozen=True, kw_only=True)
class _Picture:
    """What one packet holds: which of a frame's fields, and of which frame."""

    fields: int = _BOTH
    frame_num: int = -1
    is_idr: bool = False


def field_pairs(stream: "VideoStream") -> "FieldPairs | None":
    """For an H.264 stream, None for others."""
    codec = stream.codec_context
    return FieldPairs(codec.extradata) if codec.codec.canonical_name == "h264" else None


class FieldPairs:
    """Goes through the packets of one H.264 stream in file order.

    Attributes:
        seconds: numbers of the packets that hold the second field of the frame before, counted from 0.
        is_interlaced: a picture, or a part of one, may be coded as fields.
    """

    def __init__(self, extradata: bytes | None) -> None:
        self.seconds: list[int] = []
        self.is_interlaced = False
        self._sequences: dict[int, _Sequence] = {}
        self._sequence_of: dict[int, int] = {}  # by picture parameter set
        self._length_bytes = 0  # in front of each unit; 0 where start codes separate them
        self._torn: list[int] = []
        self._count, self._run_start, self._run_is_torn = 0, 0, False
        self._awaited, self._last = 0, _Picture()
        self._seconds_have_times: bool | None = None  # if not, then a field with a time begins a frame
        self._open(extradata or b"")

    @property
    def awaits_second(self) -> bool:
        """True if the last packet began a frame and did not end it."""
        return self._awaited != 0

    @property
    def torn(self) -> list[int]:
        """Numbers of packets of frames of which a field is missing, or may have been taken from another frame."""
        return self._torn + (list(range(self._run_start, self._count)) if self._awaited or self._run_is_torn else [])

    def joins(self, packet: "Packet[Any]") -> bool:
        """True if the next packet in order, `packet`, belongs to the frame that the one before it began."""
        if packet.is_keyframe or not all(sequence.frames_only for sequence in self._sequences.values()):
            picture = self._read(bytes(packet))
        else:
            picture = _Picture()
        number, before = self._count, self._last
        self._count += 1
        self._last = picture
        if packet.is_keyframe:
            self._seconds_have_times = None
        has_time = packet.pts is not None
        is_same = picture.fields != _BOTH and not picture.is_idr and picture.frame_num == before.frame_num
        if is_same and picture.fields == self._awaited and self._seconds_have_times in (None, has_time):
            self._seconds_have_times = has_time
            self.seconds.append(number)
            self._awaited = 0
            return True
        # Consecutive B-frames bear one number, so that fields of two of them would pair if the ones between were lost.
        self._run_is_torn |= self._awaited != 0
        if not is_same:
            if self._run_is_torn:
                self._torn += range(self._run_start, number)
            self._run_start, self._run_is_torn = number, False
        self._awaited = _BOTH - picture.fields
        return False

    def _open(self, extradata: bytes) -> None:
        if extradata[:1] != b"\1" or len(extradata) < 7:
            self._read(extradata)
            return
        self._length_bytes = (extradata[4] & 3) + 1  # ISO/IEC 14496-15, 5.3.3.1
        at, sets_left = 6, extradata[5] & 31
        for _ in range(2):
            for _ in range(sets_left):
                length = int.from_bytes(extradata[at : at + 2], "big")
                self._read_parameters(extradata[at + 2 : at + 2 + length])
                at += 2 + length
            sets_left = extradata[at] if at < len(extradata) else 0
            at += 1

    def _read(self, data: bytes) -> _Picture:
        fields, first = 0, None
        for unit in self._units(data):
            kind = unit[0] & 31
            self._read_parameters(unit)
            if kind not in (_SLICE, _SLICE_A, _IDR_SLICE):
                continue
            picture = self._read_slice(unit)
            fields |= picture.fields
            first = first or picture
        return _Picture(fields=fields, frame_num=first.frame_num, is_idr=first.is_idr) if first else _Picture()

    def _units(self, data: bytes) -> Iterator[bytes]:
        """The first bytes of each NAL unit, without emulation prevention."""
        at, mark = 0, b"\0\0\1"
        while True:
            if self._length_bytes:
                length = int.from_bytes(data[at : at + self._length_bytes], "big")
                begin = at + self._length_bytes
                at = begin + length
            else:
                found = data.find(mark, at)
                begin = at = len(data) if found < 0 else found + len(mark)
            if begin >= len(data):
                return
            yield data[begin : begin + _PARAMETER_BYTES].replace(b"\0\0\3", b"\0\0")

    def _read_parameters(self, unit: bytes) -> None:
        kind = unit[0] & 31 if unit else 0
        bits = Bits(unit[1:], _PARAMETER_BYTES)
        if kind == _SPS:
            number, sequence = _read_sequence(bits)
            self._sequences[number] = sequence
        elif kind == _PPS:
            number = bits.ue()
            self._sequence_of[number] = bits.ue()

    def _read_slice(self, unit: bytes) -> _Picture:
        bits = Bits(unit[1:])
        bits.ue()  # first macroblock
        bits.ue()  # type
        sequence = self._sequences.get(self._sequence_of.get(bits.ue(), -1))
        if sequence is None or sequence.frames_only:
            return _Picture()
        if sequence.has_colour_planes:
            bits.read(2)
        frame_num = bits.read(sequence.frame_num_bits)
        fields = (_BOTTOM if bits.read(1) else _TOP) if bits.read(1) else _BOTH
        self.is_interlaced |= fields != _BOTH or sequence.is_adaptive
        return _Picture(fields=fields, frame_num=frame_num, is_idr=unit[0] & 31 == _IDR_SLICE)


def _read_sequence(bits: Bits) -> tuple[int, _Sequence]:
    """Number and content of a sequence parameter set (7.3.2.1.1)."""
    profile = bits.read(8)
    bits.read(16)
    number, has_colour_planes = bits.ue(), False
    if profile in _WITH_CHROMA_FORMAT:
        chroma = bits.ue()
        has_colour_planes = chroma == 3 and bits.read(1) == 1
        bits.ue()
        bits.ue()
        bits.read(1)
        if bits.read(1):
            for at in range(12 if chroma == 3 else 8):
                if bits.read(1):
                    _skip_scaling_list(bits, 16 if at < 6 else 64)
    frame_num_bits = bits.ue() + 4
    order = bits.ue()
    if order == 0:
        bits.ue()
    elif order == 1:
        bits.read(1)
        bits.se()
        bits.se()
        for _ in range(min(bits.ue(), 255)):
            bits.se()
    bits.ue()  # reference frames
    bits.read(1)
    bits.ue()  # width
    bits.ue()  # height
    frames_only = bits.read(1) == 1 or bits.is_over
    return number, _Sequence(
        frames_only=frames_only,
        is_adaptive=not frames_only and bits.read(1) == 1,
        frame_num_bits=min(frame_num_bits, 16),
        has_colour_planes=has_colour_planes,
    )


def _skip_scaling_list(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last
