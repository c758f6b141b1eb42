"""Field pairs: which packets of an H.264 stream hold the second field of a frame (ITU-T H.264, 7.4.1.2.4).

Interlaced video may be coded a field at a time, and then a packet may hold a frame, both fields of one, or one field:
FFmpeg splits transport streams that way and leaves the second field without a time, and copies them so into MP4 and
Matroska. Where one field of two is missing, FFmpeg's decoder fills its rows from the other one, without an error.
"""

from typing import TYPE_CHECKING, Any

from coldframe.serve.h264_headers import BOTH, Picture, PictureReader
from coldframe.serve.lost_references import LostReferences

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream


def field_pairs(stream: "VideoStream", *, checks: bool = False) -> "FieldPairs | None":
    """For an H.264 stream, None for others. `checks`: looks for lost references too, which costs microseconds."""
    codec = stream.codec_context
    return FieldPairs(codec.extradata, checks=checks) if codec.codec.canonical_name == "h264" else None


class FieldPairs:
    """Goes through the packets of one H.264 stream in file order.

    Attributes:
        seconds: numbers of the packets that hold the second field of the frame before, counted from 0.
    """

    def __init__(self, extradata: bytes | None, *, checks: bool = False) -> None:
        self.seconds: list[int] = []
        self._reader = PictureReader(extradata)
        self._references = LostReferences() if checks else None
        self._torn: list[int] = []
        self._count, self._run_start, self._run_is_torn = 0, 0, False
        self._awaited, self._last = 0, Picture()
        self._seconds_have_times: bool | None = None  # if not, then a field with a time begins a frame

    @property
    def awaits_second(self) -> bool:
        """True if the last packet began a frame and did not end it."""
        return self._awaited != 0

    @property
    def is_interlaced(self) -> bool:
        """True if a picture, or a part of one, may be coded as fields."""
        return self._reader.is_interlaced

    @property
    def damaged(self) -> list[int]:
        """Numbers of packets of frames of which a field, or what they refer to, is missing.

        A field may also have been taken from another frame.
        """
        last = range(self._run_start, self._count) if self._awaited or self._run_is_torn else ()
        return [*self._torn, *last, *(self._references.damaged if self._references else ())]

    def joins(self, packet: "Packet[Any]") -> bool:
        """True if the next packet in order, `packet`, belongs to the frame that the one before it began."""
        reads = self._references is not None or packet.is_keyframe or self._reader.may_have_fields
        if packet.is_keyframe and packet.has_sidedata("new_extradata"):
            self._reader.take_settings(bytes(packet.get_sidedata("new_extradata")))
        picture = self._reader.read(memoryview(packet)) if reads else Picture()
        number, before = self._count, self._last
        if self._references is not None:
            self._references.add(number, picture, is_key=packet.is_keyframe)
        self._count += 1
        self._last = picture
        if packet.is_keyframe:
            self._seconds_have_times = None
        has_time = packet.pts is not None
        is_same = picture.fields != BOTH and not picture.is_idr and picture.frame_num == before.frame_num
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
        self._awaited = BOTH - picture.fields
        return False
