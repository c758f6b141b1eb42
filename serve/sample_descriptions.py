"""Sample descriptions: MP4 and MOV tracks that change the codec or its settings (ISO/IEC 14496-12, 8.5.2)."""

from coldframe.errors import VideoError
from coldframe.serve.mp4_boxes import track_table

_FOURCC = slice(0, 4)
_ENTRY_BYTES = 86  # of every description of pictures, before the boxes in it
# Codecs that state all that decoding needs in their pictures, or whose FFmpeg decoders take new settings in mid-stream.
_MAY_CHANGE = ("h264", "hevc", "av1", "vp8", "vp9", "mjpeg", "prores", "dnxhd", "jpeg2000", "png", "mpeg2video")


def has_other_codec(path: str, track: int, codec: str) -> bool:
    """True if a part of the track is in another format than the first one, which FFmpeg leaves out.

    Raises:
        VideoError: `unreadable` if its settings change, and FFmpeg would decode on with the first ones.
    """
    with open(path, "rb") as file:
        table = track_table(file, track, b"mdia", b"minf", b"stbl", b"stsd")
    entries, at = set(), 8
    for _ in range(int.from_bytes(table[4:8], "big")):
        length = int.from_bytes(table[at : at + 4], "big")
        if length < 8 or at + length > len(table):
            break
        entries.add(_settings(table[at : at + length]))
        at += length
    if len(entries) > 1 and codec not in _MAY_CHANGE:
        raise VideoError(
            "unreadable",
            f"The track has {len(entries)} descriptions of its {codec} pictures, and FFmpeg reads all by the first. "
            "Split the file where they change, or write it anew with one.",
        )
    return len({entry[_FOURCC] for entry in entries}) > 1


def _settings(entry: bytes) -> bytes:
    """A description without its length, and of an `esds` box what the decoder gets, not the bit rates."""
    _, found, box = entry.partition(b"esds")
    if not found:
        return entry[4:]
    at = _behind_length(box, 4) + 3  # descriptor 3: number and flags of the stream (ISO/IEC 14496-1, 7.2.6.5)
    at = _behind_length(box, at) + 13  # descriptor 4: kind, buffer size and bit rates
    begin = _behind_length(box, at)
    return entry[4:_ENTRY_BYTES] + box[begin : begin + box[begin - 1]] if begin <= len(box) else entry[4:]


def _behind_length(box: bytes, at: int) -> int:
    """Where the content of the descriptor at `at` begins: behind its tag and a length of up to 4 bytes."""
    at += 1
    while at < len(box) and box[at] & 0x80:
        at += 1
    return at + 1
