"""Files appear whole or not at all, and refusals are explained."""

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.errors import ColdframeError, StoreError, UsageError
from coldframe.store.files import disk_errors, sha256_file, write_bytes, write_json, write_pieces


def test_bytes_and_json_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_bytes(path, b"old")
    write_json(path, {"b": 1, "a": [1.5, "é"]})
    assert path.read_bytes() == b'{"a":[1.5,"\\u00e9"],"b":1}\n'
    assert os.listdir(tmp_path) == ["f.json"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_bytes(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_bytes(path, b"new")
    with pytest.raises(OSError, match="No space"):
        write_pieces(path, [np.zeros(3, np.uint8)])
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_pieces_are_joined_and_hashed(tmp_path: Path) -> None:
    pieces = [np.full(1000, i, np.uint8) for i in range(50)]
    body = b"".join(piece.tobytes() for piece in pieces)
    written = write_pieces(tmp_path / "deep" / "f", pieces)
    assert (tmp_path / "deep" / "f").read_bytes() == body
    assert (written.bytes, written.sha256) == (50_000, hashlib.sha256(body).hexdigest())
    assert sha256_file(tmp_path / "deep" / "f") == written


def test_a_disk_that_loses_bytes_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def lossy(descriptor: int, data: memoryview) -> int:
        body = bytearray(data)
        body[len(body) // 2] ^= 1
        return real(descriptor, body)

    monkeypatch.setattr(os, "write", lossy)
    with pytest.raises(StoreError, match="does not hold what was just written"):
        write_pieces(tmp_path / "f", [np.zeros(100, np.uint8)])
    assert os.listdir(tmp_path) == []


def test_a_disk_that_writes_nothing_and_says_it_did_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda descriptor, data: len(data))
    with pytest.raises(StoreError, match="does not hold what was just written"):
        write_pieces(tmp_path / "f", [np.ones(100, np.uint8)])


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    write_pieces(tmp_path / "f", [np.arange(100, dtype=np.uint8)])
    assert (tmp_path / "f").read_bytes() == bytes(range(100))


def test_an_error_while_pieces_are_made_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[NDArray[np.uint8]]:
        yield np.zeros(10, np.uint8)
        raise UsageError("stop")

    with pytest.raises(UsageError, match="stop"):
        write_pieces(tmp_path / "f", pieces())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "Free space"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permissions"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EIO, "Check that file system"),
    ],
)
def test_refusals_say_what_where_and_what_to_do(code: int, advice: str) -> None:
    message = rf"^Cannot write unit 3 to /data/s\.zarr: .*{advice}"
    with pytest.raises(ColdframeError, match=message), disk_errors("write unit 3 to", Path("/data/s.zarr")):
        raise OSError(code, os.strerror(code))
    assert ColdframeError.exit_code == 1


def test_our_own_errors_pass_through() -> None:
    with pytest.raises(UsageError, match=r"^mine$"), disk_errors("write", Path("/x")):
        raise UsageError("mine")
