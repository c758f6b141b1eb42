"""Files: whole or absent, hashed, and read back. Every write of the store goes through here.

A place is a local path or an `s3://` one. Locally, a file is written beside its name, read back, synced and renamed; on
an object store, a put is whole or absent by itself, and is read back too.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from coldframe.errors import ColdframeError, StoreError, UsageError
from coldframe.store.object_path import ObjectPath, ObjectReader
from coldframe.store.recipe import canonical_json
from coldframe.store.text import path_to_text

Place = Path | ObjectPath

TEMPORARY = ".partial"  # suffix of a file that is being written; a reader ignores it
_HASH_BLOCK = 1 << 22
_REQUESTS = 16  # to an object store at a time

Given = TypeVar("Given")
Made = TypeVar("Made")

_OTHER_PATH = "Part of that path is a file, or the path is too long: choose another one."
_ADVICE = {
    errno.ENOSPC: "Free space on that file system, then run the same command again.",
    errno.EDQUOT: "Free space in your quota, then run the same command again.",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f) or use another file system.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n), or use fewer --workers.",
    errno.EEXIST: _OTHER_PATH,
    errno.ENOTDIR: _OTHER_PATH,
    errno.ENAMETOOLONG: _OTHER_PATH,
    errno.ENOLCK: "That file system has no locks: mount NFS with them and Lustre with `flock`, or use another one.",
    errno.EROFS: "The file system is mounted read-only: choose a folder that can be written.",
    errno.EACCES: "This user may not write there: change the permissions or choose another folder.",
    errno.EPERM: "This user may not write there: change the permissions or choose another folder.",
}


@dataclass(frozen=True, kw_only=True)
class Written:
    """What an object on disk must look like: `bytes` long, with digest `sha256` in hexadecimal."""

    bytes: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "sha256": self.sha256}


def place_of(path: str | os.PathLike[str]) -> Place:
    """The absolute local path or the `s3://` path that `path` names.

    Raises:
        UsageError: it is empty, which would otherwise mean the current folder.
    """
    text = os.fspath(path)
    if not text:
        raise UsageError("The path of the store is empty. Name a folder, such as videos.zarr.")
    return ObjectPath.parse(text) or Path(os.path.abspath(text))


@contextmanager
def disk_errors(doing: str, path: Place) -> Iterator[None]:
    """Turn what the operating system refuses into one clear `ColdframeError`."""
    try:
        yield
    except ColdframeError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "Check that file system, then run the same command again.")
        reason = error.strerror or str(error)
        raise ColdframeError(f"Cannot {doing} {path_to_text(path)}: {reason}. {advice}") from error


def write_bytes(path: Place, data: bytes) -> None:
    """Replace `path` by `data`: after a crash it holds the old bytes or the new ones.

    Raises:
        StoreError: what was read back is not `data`.
    """
    if isinstance(path, ObjectPath):
        path.put(data)
        return
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)
    if not path.exists() or path.read_bytes() != data:
        raise _not_kept(path, f"{len(data)} bytes")


def _not_kept(path: Path, what: str) -> StoreError:
    return StoreError(
        f"{path_to_text(path)} does not hold what was just written to it ({what}). The disk or its driver is faulty; "
        "use another one."
    )


def write_json(path: Place, value: Any) -> None:
    write_bytes(path, canonical_json(value).encode() + b"\n")


def write_pieces(path: Place, pieces: Iterable[NDArray[np.uint8]]) -> Written:
    """Replace `path` by `pieces`, one after the other, and return what lies there now.

    Each piece is read back, compared by its crc32c and hashed in a second thread while the next ones are made
    and written, so the digest is that of bytes which came from the file. A piece may be reused by its maker
    as soon as the next one is asked for. For an object store the object is put together in memory first.

    Raises:
        StoreError: what was read back is not what was written.
    """
    if isinstance(path, ObjectPath):
        whole = np.concatenate([piece.copy() for piece in pieces])
        return Written(bytes=len(whole), sha256=path.put(whole))
    temporary = path.with_name(path.name + TEMPORARY)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # raw files, because a buffer would only add a copy
        with temporary.open("wb", buffering=0) as file, temporary.open("rb", buffering=0) as back:
            written = _write_and_check(file.fileno(), _ReadBack(back.fileno(), path), pieces)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return written


class _ReadBack:
    """Reads the pieces of an open file in order, compares their checksums and hashes them."""

    def __init__(self, file: int, path: Path) -> None:
        self.file = file
        self.path = path
        self.digest = hashlib.sha256()
        self.bytes = 0
        self._buffer = np.empty(0, np.uint8)  # kept: fresh memory costs more than reading into it

    def check(self, size: int, checksum: int) -> None:
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.uint8)
        found = self._buffer[:size]
        if _read_fully(self.file, found, self.bytes) != size or google_crc32c.value(found) != checksum:
            raise _not_kept(self.path, f"bytes {self.bytes} to {self.bytes + size}")
        self.digest.update(found.data)
        self.bytes += size


def _write_and_check(out: int, back: _ReadBack, pieces: Iterable[NDArray[np.uint8]]) -> Written:
    with ThreadPoolExecutor(max_workers=1) as checker, ThreadPoolExecutor(max_workers=1) as flusher:
        checks = []
        flush = flusher.submit(os.fdatasync, out)
        for piece in pieces:
            checksum = google_crc32c.value(piece)
            _write_fully(out, piece)
            checks.append(checker.submit(back.check, len(piece), checksum))
            if flush.done():  # keep the disk at work, instead of waiting for all of it at the end
                flush.result()  # the system tells each error once
                flush = flusher.submit(os.fdatasync, out)
        flush.result()
        os.fsync(out)
        for check in checks:
            check.result()
    return Written(bytes=back.bytes, sha256=back.digest.hexdigest())


def _write_fully(out: int, piece: NDArray[np.uint8]) -> None:
    view = piece.data
    while view:
        view = view[os.write(out, view) :]


def _read_fully(file: int, into: NDArray[np.uint8], offset: int) -> int:
    """Fill `into` from `offset` on and return how many bytes there were."""
    done = 0
    while done < len(into):
        count = os.preadv(file, [into.data[done:]], offset + done)
        if not count:
            break
        done += count
    return done


class FileReader:
    """Reads of one open local file."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = os.fstat(file).st_size

    def whole(self) -> NDArray[np.uint8]:
        return self.tail(self._size)

    def tail(self, count: int) -> NDArray[np.uint8]:
        """The last `count` bytes; fewer where the file has fewer."""
        count = min(count, self._size)
        return self._read(self._size - count, count)

    def spans(self, spans: Sequence[tuple[int, int]]) -> Iterator[NDArray[np.uint8]]:
        """Bytes of each (offset, length), in order; fewer where the file ends."""
        for offset, length in spans:
            yield self._read(offset, length)

    def fill(self, offset: int, room: NDArray[np.uint8]) -> bool:
        """Bytes from `offset` on into `room`; False where the file ends before it is full."""
        return _read_fully(self._file, room, offset) == len(room)

    def _read(self, offset: int, size: int) -> NDArray[np.uint8]:
        span = np.empty(size, np.uint8)
        return span[: _read_fully(self._file, span, offset)]


@contextmanager
def open_reader(path: Place) -> Iterator[FileReader | ObjectReader]:
    """Reads of one file or object. FileNotFoundError, now or at the first read, if there is none."""
    if isinstance(path, ObjectPath):
        yield ObjectReader(path)
        return
    with open_file(path) as file:
        yield file


@contextmanager
def open_file(path: Path) -> Iterator[FileReader]:
    """Reads of one local file. FileNotFoundError if there is none."""
    file = os.open(path, os.O_RDONLY)
    try:
        yield FileReader(file)
    finally:
        os.close(file)


def sha256_file(path: Place) -> Written:
    """Size and digest of a file, read in blocks."""
    if isinstance(path, ObjectPath):
        count, sha256 = path.digest()
        return Written(bytes=count, sha256=sha256)
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK):
            digest.update(block)
            size += len(block)
    return Written(bytes=size, sha256=digest.hexdigest())


def file_bytes(path: Place) -> int | None:
    """Size of a regular file, or None if there is none."""
    if isinstance(path, ObjectPath):
        return path.size()
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def map_places(call: Callable[[Given], Made], given: Sequence[Given], root: Place) -> list[Made]:
    """`call` of each, in order: several at once where every answer is a round trip to an object store."""
    if isinstance(root, ObjectPath):
        with ThreadPoolExecutor(max_workers=_REQUESTS) as pool:
            return list(pool.map(call, given))
    return [call(item) for item in given]


def sizes_below(folder: Place) -> dict[str, int]:
    """Bytes of every file or object below `folder`, by key relative to it."""
    if isinstance(folder, ObjectPath):
        return folder.sizes()
    root = os.fspath(folder)
    sizes = {}
    for parent, _, names in os.walk(root):  # without a path object for each of 200,000 files
        for path in (os.path.join(parent, name) for name in names):
            with suppress(FileNotFoundError):  # a temporary file of a run in progress
                found = os.stat(path)
                if stat.S_ISREG(found.st_mode):
                    sizes[path[len(root) + 1 :].replace(os.sep, "/")] = found.st_size
    return sizes


def fsync_path(path: Place) -> None:
    """Make a file's bytes, or the renames and removals inside a folder, survive a power cut.

    An object store has nothing to sync: what it acknowledged is kept.
    """
    if isinstance(path, ObjectPath):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
