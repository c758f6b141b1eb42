"""AVI index: where an AVI file says that its chunks are, against where they are found.

AVI gives frames no times: the third chunk is the third frame. A chunk that is missing, or there twice, therefore
shifts every frame behind it, and nothing but the index (idx1, at the end of the file) tells.
"""

import os
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

_ENTRY = np.dtype([("name", "S4"), ("flags", "<u4"), ("offset", "<u4"), ("bytes", "<u4")])
_HAS_INDEX = 0x10
_HEAD_BYTES = 1 << 16
_MOST_BYTES = 64 << 20  # of the file's end in which the index is looked for: 4 million chunks


def trusted_chunks(file: BinaryIO, stream_index: int, pos: NDArray[np.int64]) -> int:
    """How many of a stream's packets are where the index has them; all of them if the header promises no index.

    Args:
        file: an AVI file.
        stream_index: number of the stream.
        pos: (n,) where its packets begin in the file, in file order.
    """
    if not len(pos):
        return 0
    offset = _offsets(file, stream_index)
    if offset is None:
        # An end that was lost with the index may begin in the last chunk that is left.
        return len(pos) - _promises_index(file)
    if not len(offset):
        return len(pos)
    both = min(len(pos), len(offset))
    shift = pos[:both] - offset[:both]
    # One wrong entry between right ones is damage of the index itself.
    moved = shift != shift[0]
    breaks = np.flatnonzero(moved & np.append(moved[1:], True))
    end = int(breaks[0]) if len(breaks) else both
    if end == both and (len(pos) <= both or _has_further_parts(file)):
        return len(pos)
    return max(0, end - 1)  # the chunk before the break may have swallowed what follows it


def _offsets(file: BinaryIO, stream_index: int) -> NDArray[np.int64] | None:
    """(n,) of the stream's chunks that are not empty, as the index has them; None if there is no index."""
    size = os.fstat(file.fileno()).st_size
    tail_at = max(0, size - _MOST_BYTES)
    file.seek(tail_at)
    tail = file.read(_MOST_BYTES)
    at = tail.rfind(b"idx1")
    if at < 0:
        return None
    length = int.from_bytes(tail[at + 4 : at + 8], "little")
    body = tail[at + 8 : at + 8 + length]
    entries = np.frombuffer(body[: len(body) - len(body) % _ENTRY.itemsize], _ENTRY)
    kinds = [b"%02d%s" % (stream_index, kind) for kind in (b"dc", b"db")]  # compressed or plain pictures
    mine = entries[np.isin(entries["name"], kinds) & (entries["bytes"] > 0)]
    return mine["offset"].astype(np.int64)


def _promises_index(file: BinaryIO) -> bool:
    """The main header's AVIF_HASINDEX, in files that have no index of OpenDML, which would be elsewhere."""
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    at = head.find(b"avih")
    flags = int.from_bytes(head[at + 20 : at + 24], "little") if at >= 0 else 0
    return bool(flags & _HAS_INDEX) and b"indx" not in head and not _has_further_parts(file)


def _has_further_parts(file: BinaryIO) -> bool:
    """OpenDML: the file goes on in further RIFF lists behind its first gigabyte, and this index does not."""
    file.seek(0)
    end = 8 + int.from_bytes(file.read(8)[4:], "little")
    file.seek(end)
    return file.read(12)[8:] == b"AVIX"
