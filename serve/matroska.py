"""Matroska: the structure of a file, as far as it tells where the file is cut or damaged (RFC 8794, RFC 9559)."""

import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from coldframe.serve.damage import Damage
from coldframe.serve.heartbeat import beat

_HEADER, _SEGMENT, _CLUSTER, _CRC_32 = 0x1A45DFA3, 0x18538067, 0x1F43B675, 0xBF
# RFC 9559, 5.1: SeekHead, Info, Tracks, Cluster, Cues, Attachments, Chapters, Tags; RFC 8794, 11.3: CRC-32, Void.
_IN_SEGMENT = frozenset(
    (0x114D9B74, 0x1549A966, 0x1654AE6B, _CLUSTER, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367, _CRC_32, 0xEC)
)
_LONGEST_HEAD_BYTES = 12
_CRC_ELEMENT_BYTES = 6
_CHUNK_BYTES = 1 << 20


def segment_end(file: BinaryIO) -> int | None:
    """Where the segment says that it ends, in bytes from the file's start; None if it does not say."""
    return _open_segment(file)[1]


def cluster_damage(file: BinaryIO) -> Iterator[Damage]:
    """Clusters whose CRC-32 does not fit, and places where the chain of elements is broken.

    FFmpeg's muxer writes a CRC-32 into every cluster of .mkv files, and none into .webm files. Behind an element of
    unknown size, which is written live, nothing is checked.
    """
    at, end = _open_segment(file)
    size = os.fstat(file.fileno()).st_size
    # A head that is cut off is no damage, and neither is what follows a segment that ends where it says.
    while at is not None and at != end and at + _LONGEST_HEAD_BYTES <= size:
        beat()
        file.seek(at)
        name, length = _read_id(file), _read_size(file)
        begin = file.tell()
        if length is None and name in _IN_SEGMENT:
            return
        after = begin + (length or 0)
        if name not in _IN_SEGMENT or not (after == end or _is_element_at(file, after, size)):
            resumed = _next_cluster(file, at + 1, size)
            yield Damage(start=at, end=size if resumed is None else resumed)
            at = resumed
            continue
        assert length is not None
        if name == _CLUSTER and begin + length <= size and not _crc_fits(file, begin, length):
            yield Damage(start=at, end=begin + length)
        at = begin + length


def _open_segment(file: BinaryIO) -> tuple[int | None, int | None]:
    """Where the segment's content begins, and where it ends; None if that is not told."""
    file.seek(0)
    if _read_id(file) != _HEADER:
        return None, None
    length = _read_size(file)
    if length is None:
        return None, None
    file.seek(length, os.SEEK_CUR)
    if _read_id(file) != _SEGMENT:
        return None, None
    length = _read_size(file)
    return file.tell(), None if length is None else file.tell() + length


def _read_id(file: BinaryIO) -> int | None:
    """An element's id with its length marker; None if there is none."""
    first = file.read(1)
    if not first or first[0] < 0x10:
        return None
    return int.from_bytes(first + file.read(8 - first[0].bit_length()), "big")


def _read_size(file: BinaryIO) -> int | None:
    """Bytes of an element's content; None if they are not stated."""
    first = file.read(1)
    if not first or first[0] == 0:
        return None
    extra = 8 - first[0].bit_length()
    value = int.from_bytes(bytes([first[0] & ((0x80 >> extra) - 1)]) + file.read(extra), "big")
    unknown = (1 << 7 * (extra + 1)) - 1
    return None if value == unknown else value


def _is_element_at(file: BinaryIO, at: int, size: int) -> bool:
    """True at and beyond the file's end, too: a cut is not damage."""
    file.seek(at)
    return at >= size or _read_id(file) in _IN_SEGMENT or at >= size - 3


def _next_cluster(file: BinaryIO, at: int, size: int) -> int | None:
    """Where a cluster begins at or behind `at`: its id, and another element where it ends."""
    mark = _CLUSTER.to_bytes(4, "big")
    while at < size:
        beat()
        file.seek(at)
        found = file.read(_CHUNK_BYTES).find(mark)
        if found < 0:
            at += _CHUNK_BYTES - len(mark) + 1
            continue
        at += found
        file.seek(at + len(mark))
        length = _read_size(file)
        if length is None or _is_element_at(file, file.tell() + length, size):
            return at
        at += 1
    return None


def _crc_fits(file: BinaryIO, begin: int, length: int) -> bool:
    """True as well for an element without a CRC-32, which would be its first child."""
    file.seek(begin)
    if length < _CRC_ELEMENT_BYTES or _read_id(file) != _CRC_32 or _read_size(file) != 4:
        return True
    stated, left, found = int.from_bytes(file.read(4), "little"), length - _CRC_ELEMENT_BYTES, 0
    while left:
        beat()
        chunk = file.read(min(left, _CHUNK_BYTES))
        if not chunk:
            return False
        found, left = zlib.crc32(chunk, found), left - len(chunk)
    return found == stated
