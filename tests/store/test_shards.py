"""Objects hold the bytes that zarr-python writes; what is missing or damaged is never read as a value."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec

from coldframe.errors import StoreError
from coldframe.store import shards
from coldframe.store.layout import ArraySpec
from coldframe.store.shards import encode_object, read_chunks, read_chunks_into


def spec(chunk_rows: int, object_rows: int, rows: int, *, sharded: bool = True, dtype: str = "float16") -> ArraySpec:
    return ArraySpec(
        name="a",
        dims=("clip", "row", "dim"),
        shape=(rows, 2, 3),
        dtype=dtype,
        chunk_rows=chunk_rows,
        object_rows=object_rows,
        sharded=sharded,
        fill=float("nan") if dtype.startswith("float") else 0,
    )


def encoded(array: ArraySpec, values: np.ndarray[Any, Any]) -> bytes:
    pieces = encode_object(array, len(values), lambda start, stop, out: np.copyto(out, values[start:stop]))
    return b"".join(piece.tobytes() for piece in pieces)


@settings(max_examples=25, deadline=None)
@given(
    chunk_rows=st.sampled_from([1, 2, 8]),
    rows=st.integers(1, 16),
    sharded=st.booleans(),
    dtype=st.sampled_from(["float16", "float32", "uint8", "uint32"]),
)
def test_bytes_equal_those_of_zarr_python(chunk_rows: int, rows: int, sharded: bool, dtype: str) -> None:
    array = spec(chunk_rows if sharded else 16, 16, rows, sharded=sharded, dtype=dtype)
    values = np.random.default_rng(rows).integers(0, 200, (rows, 2, 3)).astype(dtype)
    store: dict[str, Any] = {}
    reference = zarr.create_array(
        zarr.storage.MemoryStore(store),
        shape=array.shape,
        dtype=dtype,
        chunks=(array.chunk_rows, 2, 3),
        shards=(16, 2, 3) if sharded else None,
        compressors=(Crc32cCodec(),),
        fill_value=array.fill,
        config={"write_empty_chunks": True},
    )
    reference[:] = values
    assert encoded(array, values) == store["c/0/0/0"].to_bytes()


def test_chunks_come_back_in_the_order_asked(tmp_path: Path) -> None:
    array = spec(2, 8, 7)
    values = np.arange(42, dtype=np.float16).reshape(7, 2, 3)
    (tmp_path / "o").write_bytes(encoded(array, values))
    third, first = read_chunks(tmp_path / "o", array, np.array([3, 0]))
    np.testing.assert_array_equal(first, values[:2])
    np.testing.assert_array_equal(third[0], values[6])
    assert np.isnan(third[1]).all()  # past the last row


def read_to_places(path: Path, array: ArraySpec, numbers: list[int]) -> NDArray[np.float16]:
    """Chunks in one block with a gap before each, which must stay as it is."""
    block = np.full((len(numbers), array.chunk_rows + 1, *array.row_shape), 7, np.float16)
    read_chunks_into(path, array, np.array(numbers), [room[1:] for room in block])
    assert (block[:, 0] == 7).all()
    return block[:, 1:]


@pytest.mark.parametrize("part_bytes", [1, 16, 1 << 19])
def test_chunks_are_read_to_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    monkeypatch.setattr(shards, "_PART_BYTES", part_bytes)
    array = spec(2, 8, 7)
    (tmp_path / "o").write_bytes(encoded(array, np.arange(42, dtype=np.float16).reshape(7, 2, 3)))
    expected = list(read_chunks(tmp_path / "o", array, np.array([3, 0, 3])))
    np.testing.assert_array_equal(read_to_places(tmp_path / "o", array, [3, 0, 3]), expected)


@pytest.mark.parametrize("sharded", [True, False])
def test_what_is_damaged_is_an_error_at_its_place_too(tmp_path: Path, sharded: bool) -> None:
    array = spec(4 if sharded else 8, 8, 8, sharded=sharded)
    good = encoded(array, np.ones((8, 2, 3), np.float16))
    numbers = list(range(array.chunks_per_object))
    for position in range(len(good)):
        body = bytearray(good)
        body[position] ^= 1 << position % 8
        (tmp_path / "o").write_bytes(body)
        with pytest.raises(StoreError, match="is damaged"):
            read_to_places(tmp_path / "o", array, numbers)
    for keep in (0, 3, 60):
        (tmp_path / "o").write_bytes(good[:keep])
        with pytest.raises(StoreError, match="is damaged"):
            read_to_places(tmp_path / "o", array, numbers)
    with pytest.raises(StoreError, match="No such file"):
        read_to_places(tmp_path / "none", array, numbers)


def test_a_chunk_that_was_not_written_is_an_error_at_its_place_too(tmp_path: Path) -> None:
    (tmp_path / "o").write_bytes(encoded(spec(4, 8, 8), np.ones((4, 2, 3), np.float16)))
    with pytest.raises(StoreError, match="a chunk is missing"):
        read_to_places(tmp_path / "o", spec(4, 8, 8), [1])


@pytest.mark.parametrize("sharded", [True, False])
def test_every_flipped_bit_is_an_error(tmp_path: Path, sharded: bool) -> None:
    array = spec(4 if sharded else 8, 8, 8, sharded=sharded)
    good = encoded(array, np.ones((8, 2, 3), np.float16))
    for position in range(len(good)):
        body = bytearray(good)
        body[position] ^= 1 << position % 8
        (tmp_path / "o").write_bytes(body)
        numbers = np.arange(array.chunks_per_object)
        with pytest.raises(StoreError, match="is damaged"):
            list(read_chunks(tmp_path / "o", array, numbers))


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("keep", [0, 3, 60])
def test_short_objects_are_errors_not_fill_values(tmp_path: Path, sharded: bool, keep: int) -> None:
    array = spec(4 if sharded else 8, 8, 8, sharded=sharded)
    (tmp_path / "o").write_bytes(encoded(array, np.ones((8, 2, 3), np.float16))[:keep])
    with pytest.raises(StoreError, match="is damaged"):
        list(read_chunks(tmp_path / "o", array, np.array([0])))


def test_a_missing_object_or_chunk_is_an_error(tmp_path: Path) -> None:
    array = spec(4, 8, 8)
    with pytest.raises(StoreError, match="No such file"):
        list(read_chunks(tmp_path / "none", array, np.array([0])))
    (tmp_path / "o").write_bytes(encoded(array, np.ones((4, 2, 3), np.float16)))
    with pytest.raises(StoreError, match="a chunk is missing"):
        list(read_chunks(tmp_path / "o", array, np.array([1])))
