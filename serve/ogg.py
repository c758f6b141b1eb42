"""Ogg: the pages of a file, as far as they tell that they or others are damaged (RFC 3533)."""

import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from coldframe.serve.damage import Damage
from coldframe.serve.heartbeat import beat

_MARK = b"OggS"
_HEAD_BYTES = 27
_CHUNK_BYTES = 1 << 20
_REVERSED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


def page_damage(file: BinaryIO, first_pos: int) -> Iterator[Damage]:
    """Pages whose CRC does not fit, and places where pages are missing, of the stream whose page is at `first_pos`.

    Pages that are surely another stream's are left out.
    """
    file.seek(first_pos)
    serial = file.read(_HEAD_BYTES)[14:18]
    size = os.fstat(file.fileno()).st_size
    others: set[bytes] = set()
    at, last_end, number = 0, 0, -1
    while at < size:
        beat()
        page = _read_page(file, at)
        if page is None or len(page) < _HEAD_BYTES or not _crc_fits(page):
            is_other = page is not None and page[14:18] in others
            end = _next_page(file, at + 1, size)
            if not is_other and end < size:
                yield Damage(start=at, end=end, reaches_back=True)
            at = end
            continue
        at += len(page)
        if page[14:18] != serial:
            others.add(page[14:18])
            continue
        found = int.from_bytes(page[18:22], "little")
        if number >= 0 and found != number + 1:
            yield Damage(start=last_end, end=at - len(page), reaches_back=True)
        number, last_end = found, at


def _read_page(file: BinaryIO, at: int) -> bytes | None:
    file.seek(at)
    head = file.read(_HEAD_BYTES)
    if head[:4] != _MARK or len(head) < _HEAD_BYTES:
        return None
    table = file.read(head[26])
    return head + table + file.read(sum(table))


def _next_page(file: BinaryIO, at: int, size: int) -> int:
    while at < size:
        beat()
        file.seek(at)
        found = file.read(_CHUNK_BYTES).find(_MARK)
        if found >= 0:
            return at + found
        at += _CHUNK_BYTES - len(_MARK) + 1
    return size


def _crc_fits(page: bytes) -> bool:
    """Ogg's CRC is that of zlib on mirrored bits, but for its start and end (0 instead of all ones)."""
    blank = page[:22] + bytes(4) + page[26:]
    mirrored = zlib.crc32(blank.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return mirrored == int.from_bytes(page[22:26].translate(_REVERSED), "big")
