"""H.264 headers: what the packets of a stream tell about their pictures (ITU-T H.264, 7.3 and 7.4)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from coldframe.serve.bits import HEAD_BYTES, Bits

TOP, BOTTOM, BOTH = 1, 2, 3
_SLICE, _SLICE_A, _IDR_SLICE, _SPS, _PPS = 1, 2, 5, 7, 8
# Profiles whose sequence parameter sets tell the chroma format (7.3.2.1.1).
_WITH_CHROMA_FORMAT = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
_PARAMETER_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What one packet holds.

    Attributes:
        fields: `TOP`, `BOTTOM` or `BOTH` of a frame's fields.
        frame_num: counts reference frames, modulo `frame_nums`; -1 if the packet cannot be read.
        frame_nums: 0 if the stream may leave out numbers.
        is_reference: others may refer to it.
    """

    fields: int = BOTH
    frame_num: int = -1
    frame_nums: int = 0
    is_idr: bool = False
    is_reference: bool = False


@dataclass(frozen=True, kw_only=True)
class _Sequence:
    frames_only: bool
    is_adaptive: bool
    frame_num_bits: int
    allows_gaps: bool
    has_colour_planes: bool


class PictureReader:
    """Reads packets of one stream in file order, parameter sets among them.

    Attributes:
        is_interlaced: a picture, or a part of one, may be coded as fields.
        may_have_fields: a sequence does not consist of frames alone, as far as they were read.
    """

    def __init__(self, extradata: bytes | None) -> None:
        self.is_interlaced, self.may_have_fields = False, False
        self._sequences: dict[int, _Sequence] = {}
        self._sequence_of: dict[int, int] = {}  # by picture parameter set
        self._length_bytes = 0  # in front of each unit; 0 where start codes separate them
        self.take_settings(extradata or b"")

    def read(self, data: bytes | memoryview) -> Picture:
        """The picture in a packet, by its first slice; of fields, which of them the packet holds."""
        fields, first = 0, None
        for unit in self._units(data):
            kind = unit[0] & 31
            if kind not in (_SLICE, _SLICE_A, _IDR_SLICE):
                self._read_parameters(unit)
                continue
            picture = self._read_slice(unit)
            fields |= picture.fields
            first = first or picture
            if fields == BOTH:
                break
        if first is None:
            return Picture()
        return first if first.fields == fields else replace(first, fields=fields)

    def take_settings(self, extradata: bytes) -> None:
        """Parameter sets outside packets: start codes and all, or an avcC box."""
        if extradata[:1] != b"\1" or len(extradata) < 7:
            self.read(extradata)
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

    def _units(self, data: bytes | memoryview) -> Iterator[bytes]:
        """The first bytes of each NAL unit, without emulation prevention."""
        at, mark = 0, b"\0\0\1"
        searched = b"" if self._length_bytes else bytes(data)
        while True:
            if self._length_bytes:
                length = int.from_bytes(data[at : at + self._length_bytes], "big")
                begin = at + self._length_bytes
                at = begin + length
            else:
                found = searched.find(mark, at)
                begin = at = len(data) if found < 0 else found + len(mark)
            if begin >= len(data):
                return
            length = _PARAMETER_BYTES if data[begin] & 31 in (_SPS, _PPS) else HEAD_BYTES
            yield bytes(data[begin : begin + length]).replace(b"\0\0\3", b"\0\0")

    def _read_parameters(self, unit: bytes) -> None:
        kind = unit[0] & 31 if unit else 0
        if kind == _SPS:
            number, sequence = _read_sequence(Bits(unit[1:], _PARAMETER_BYTES))
            self._sequences[number] = sequence
            self.may_have_fields |= not sequence.frames_only
        elif kind == _PPS:
            bits = Bits(unit[1:])
            number = bits.ue()
            self._sequence_of[number] = bits.ue()

    def _read_slice(self, unit: bytes) -> Picture:
        bits = Bits(unit[1:])
        bits.ue()  # first macroblock
        bits.ue()  # type
        sequence = self._sequences.get(self._sequence_of.get(bits.ue(), -1))
        if sequence is None:
            return Picture()
        if sequence.has_colour_planes:
            bits.read(2)
        frame_num = bits.read(sequence.frame_num_bits)
        fields = BOTH
        if not sequence.frames_only and bits.read(1):
            fields = BOTTOM if bits.read(1) else TOP
        self.is_interlaced |= fields != BOTH or sequence.is_adaptive
        return Picture(
            fields=fields,
            frame_num=frame_num,
            frame_nums=0 if sequence.allows_gaps else 1 << sequence.frame_num_bits,
            is_idr=unit[0] & 31 == _IDR_SLICE,
            is_reference=unit[0] & 0x60 > 0,
        )


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
    allows_gaps = bits.read(1) == 1
    bits.ue()  # width
    bits.ue()  # height
    frames_only = bits.read(1) == 1 or bits.is_over
    return number, _Sequence(
        frames_only=frames_only,
        is_adaptive=not frames_only and bits.read(1) == 1,
        frame_num_bits=min(frame_num_bits, 16),
        allows_gaps=allows_gaps,
        has_colour_planes=has_colour_planes,
    )


def _skip_scaling_list(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last
