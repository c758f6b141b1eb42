"""Completeness: whether a file is shorter than its own container structure says.

FFmpeg reads a cut file to its last byte and ends without an error, so an early end looks like the end.
Only sizes that the format itself requires are used; promised durations and frame counts are often wrong in
whole files.
"""

import os
from typing import BinaryIO

from coldframe.serve import transport_stream
from coldframe.serve.matroska import segment_end

_ASF_FILE_PROPERTIES = bytes.fromhex("A1DCAB8C47A9CF118EE400C00C205365")
_ASF_HEAD_BYTES = 1 << 16


def is_cut_short(path: str, container_format: str) -> bool | None:
    """True if `path` ends before its outermost structure does, False if not, None if the format promises
    no size.

    `container_format` is FFmpeg's name of the demuxer. MPEG program streams, Ogg, raw streams and Matroska
    files written to a pipe promise nothing, and neither does a transport stream of whole packets.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        names = container_format.split(",")
        if "mov" in names:
            return _last_box_end(file, size) > size
        if "matroska" in names:
            end = segment_end(file)
            return None if end is None else end > size
        if "avi" in names:
            return _riff_end(file) > size + 1  # the last chunk's padding byte is often left out
        if "mpegts" in names:
            return True if _has_partial_packet(file, size) else None
        if "asf" in names:
            return _asf_end(file, size) > size
        if "flv" in names:
            return not _ends_with_tag_size(file, size)
    return None


def _last_box_end(file: BinaryIO, size: int) -> int:
    """Where the last top-level box says that it ends (ISO/IEC 14496-12, 4.2)."""
    offset = 0
    while offset + 8 <= size:
        file.seek(offset)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length == 0:  # up to the end of the file
            return size
        if length < 8:  # not a box; FFmpeg ignores what follows the last one too
            return offset
        offset += length
    return offset


def _riff_end(file: BinaryIO) -> int:
    head = file.read(8)
    return int.from_bytes(head[4:8], "little") + 8


def _asf_end(file: BinaryIO, size: int) -> int:
    """The file's size by its file properties (Advanced Systems Format, 3.2); `size` for a recording that goes on."""
    head = file.read(_ASF_HEAD_BYTES)
    at = head.find(_ASF_FILE_PROPERTIES)
    if at < 0 or len(head) < at + 89 or head[at + 88] & 1:
        return size
    return int.from_bytes(head[at + 40 : at + 48], "little")


def _has_partial_packet(file: BinaryIO, size: int) -> bool:
    step, _ = transport_stream.layout(file)
    return step > 0 and size % step != 0


def _ends_with_tag_size(file: BinaryIO, size: int) -> bool:
    """An FLV file ends with the size of its last tag, which repeats what that tag's own header says."""
    if size < 13 + 15:
        return False
    file.seek(size - 4)
    tag = int.from_bytes(file.read(4), "big")
    if not 11 <= tag <= size - 4 - 13:
        return False
    file.seek(size - 4 - tag)
    head = file.read(4)
    return int.from_bytes(head[1:4], "big") + 11 == tag
