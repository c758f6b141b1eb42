"""Shards: the bytes of one object. Zarr's `sharding_indexed` and `crc32c` codecs, written and read without
detours.

The same bytes come out as from zarr-python (a test compares them), but each inner chunk is handed on as soon
as it is encoded, so that a 200 MB shard is never in memory whole, and a missing or damaged chunk is an error
here, not fill values.
Layout of a sharded object: inner chunks in row order, each followed by its crc32c (4 bytes, little-endian);
then the index, a pair (offset, bytes) of uint64 a chunk with 2**64 - 1 twice for chunks past the last row;
then the index's crc32c. An object that is not sharded is one chunk followed by its crc32c.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError
from coldframe.store.files import FileReader, Place, open_file, open_reader
from coldframe.store.layout import ArraySpec
from coldframe.store.object_path import ObjectReader

CHECKSUM_BYTES = 4
_PART_BYTES = 1 << 19
_ABSENT = np.uint64(2**64 - 1)
_WRONG_SIZE = "a chunk is missing or has the wrong size"

Fill = Callable[[int, int, NDArray[Any]], None]


def encode_object(spec: ArraySpec, rows: int, fill: Fill) -> Iterator[NDArray[np.uint8]]:
    """Pieces of the object that holds the first `rows` rows of a unit, in file order.

    `fill(start, stop, out)` writes the unit's rows [start, stop) into `out`, shaped (stop - start, *row
    shape) and of the stored dtype. It is called once for each inner chunk, in order.

    A piece is overwritten when the next one is asked for: a buffer that stays in the cache is much cheaper
    than fresh memory for every chunk.
    """
    piece = np.empty(spec.chunk_bytes + CHECKSUM_BYTES, np.uint8)
    body = piece[:-CHECKSUM_BYTES].view(spec.numpy_dtype).reshape(spec.chunk_rows, *spec.row_shape)
    index = np.full((spec.chunks_per_object, 2), _ABSENT, dtype="<u8")
    offset = 0
    for number, start in enumerate(range(0, rows, spec.chunk_rows)):
        stop = min(start + spec.chunk_rows, rows)
        fill(start, stop, body[: stop - start])
        body[stop - start :] = spec.fill
        piece[-CHECKSUM_BYTES:] = _checksum(piece[:-CHECKSUM_BYTES])
        index[number] = offset, len(piece)
        offset += len(piece)
        yield piece
    if spec.sharded:
        flat = index.reshape(-1).view(np.uint8)
        yield np.concatenate([flat, _checksum(flat)])


def read_chunks(path: Place, spec: ArraySpec, numbers: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    """The inner chunks `numbers` of one object, each (chunk rows, *row shape) in the stored dtype.

    Raises:
        StoreError: the object or a chunk is missing, too short, or does not match its checksum.
    """
    try:
        with open_reader(path) as file:
            if not spec.sharded:
                yield from (_decode(spec, path, 0, file.whole()) for _ in numbers)
                return
            index = _index(file, spec, path)
            spans = [index[number] for number in numbers.tolist()]
            for span in spans:
                if span[1] != spec.chunk_bytes + CHECKSUM_BYTES:
                    raise _damaged(spec, path, _WRONG_SIZE)
            for (offset, _), raw in zip(spans, file.spans(spans), strict=True):
                yield _decode(spec, path, offset, raw)
    except OSError as error:
        raise _damaged(spec, path, error.strerror or str(error)) from error


def read_chunks_into(path: Path, spec: ArraySpec, numbers: NDArray[np.int64], rooms: Sequence[NDArray[Any]]) -> None:
    """`read_chunks` of a local file, straight into `rooms`: a contiguous array of the stored dtype for each chunk.

    Raises:
        StoreError: as `read_chunks`; what the rooms hold then is of no use.
    """
    try:
        with open_file(path) as file:
            index = _index(file, spec, path) if spec.sharded else [(0, spec.chunk_bytes + CHECKSUM_BYTES)]
            for number, room in zip(numbers.tolist(), rooms, strict=True):
                offset, length = index[number]
                if length != spec.chunk_bytes + CHECKSUM_BYTES:
                    raise _damaged(spec, path, _WRONG_SIZE)
                if not _read_checked(file, offset, room.reshape(-1).view(np.uint8)):
                    raise _damaged(spec, path, f"the chunk at byte {offset} does not match its checksum")
    except OSError as error:
        raise _damaged(spec, path, error.strerror or str(error)) from error


def _read_checked(file: FileReader, offset: int, room: NDArray[np.uint8]) -> bool:
    """Fill `room`, each part of it summed up while it is in a cache, and say whether the checksum behind fits."""
    found, stored = 0, np.empty(CHECKSUM_BYTES, np.uint8)
    for start in range(0, len(room), _PART_BYTES):
        part = room[start : start + _PART_BYTES]
        if not file.fill(offset + start, part):
            return False
        found = google_crc32c.extend(found, part)
    return file.fill(offset + len(room), stored) and int(stored.view("<u4")[0]) == found


def _index(file: FileReader | ObjectReader, spec: ArraySpec, path: Place) -> list[tuple[int, int]]:
    """(offset, bytes) of every inner chunk."""
    index_bytes = 16 * spec.chunks_per_object + CHECKSUM_BYTES
    raw = file.tail(index_bytes)
    if len(raw) < index_bytes:
        raise _damaged(spec, path, f"{len(raw)} bytes are less than its index takes")
    if not _intact(raw):
        raise _damaged(spec, path, "its index does not match its checksum")
    pairs = raw[:-CHECKSUM_BYTES].view("<u8").reshape(-1, 2).tolist()
    return [(offset, length) for offset, length in pairs]


def _decode(spec: ArraySpec, path: Place, offset: int, raw: NDArray[np.uint8]) -> NDArray[Any]:
    if len(raw) != spec.chunk_bytes + CHECKSUM_BYTES or not _intact(raw):
        raise _damaged(spec, path, f"the chunk at byte {offset} does not match its checksum")
    return raw[:-CHECKSUM_BYTES].view(spec.numpy_dtype).reshape(spec.chunk_rows, *spec.row_shape)


def _damaged(spec: ArraySpec, path: Place, why: str) -> StoreError:
    key = "/".join(path.parts[-len(spec.shape) - 2 :])  # name, "c" and one part an axis
    return StoreError(
        f"The object {key} is damaged: {why}. Run `coldframe repair` on the store, which extracts its unit again."
    )


def _checksum(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.array([google_crc32c.value(data)], dtype="<u4").view(np.uint8)


def _intact(raw: NDArray[np.uint8]) -> bool:
    return bool(np.array_equal(_checksum(raw[:-CHECKSUM_BYTES]), raw[-CHECKSUM_BYTES:]))
