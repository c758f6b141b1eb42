"""Object paths: places in an S3-compatible object store, with what a token store asks of a path.

Addressing and credentials are those of the AWS tools, from the environment: `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL` (or `AWS_ENDPOINT_URL_S3`) for anything
but Amazon, and `AWS_SKIP_SIGNATURE=true` for public buckets. `obstore` retries what a server refuses with 5xx, and
broken connections.
"""

import errno
import hashlib
import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import ColdframeError, MissingDependency, StoreError, UsageError

_LOG = logging.getLogger(__name__)
_URL = re.compile(r"s3:/{1,2}([^/]+)(?:/(.*))?", re.DOTALL)  # pathlib folds the two slashes into one
_PUTS = 4  # of an object that reads back as something else, before its store is given up on
_PART_BYTES = 16 << 20
_READ_BYTES = 32 << 20  # held at once of the spans that one reader was asked for
_CONNECT_SECONDS = 3.0
_INSTANCE_METADATA = ("169.254.169.254", 80)  # where Amazon's machines find the credentials of their role
_ROLE_VARIABLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


@dataclass(frozen=True)
class ObjectPath(os.PathLike[str]):
    """`s3://bucket/key`: an object, or everything whose key begins with `key/`.

    A put is whole or absent on such stores, so there is nothing to rename and nothing to sync. What was put is read
    back and compared; a store that loses it is asked again a few times.
    """

    bucket: str
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> "ObjectPath | None":
        """The path that an `s3://` URL names, or None for anything else.

        Raises:
            UsageError: the URL names no place below a bucket.
        """
        if not text.startswith("s3:/"):
            return None
        match = _URL.fullmatch(text)
        parts = [part for part in (match[2] or "").split("/") if part] if match else []
        if match is None or not parts or {".", ".."} & set(parts):
            raise UsageError(f"{text!r} names no place for a store. Write s3://bucket/prefix.")
        return cls(match[1], "/".join(parts))

    def __fspath__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    __str__ = __fspath__

    def __truediv__(self, part: str) -> "ObjectPath":
        return ObjectPath(self.bucket, f"{self.key}/{part}")

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.bucket, *self.key.split("/"))

    def exists(self) -> bool:
        """Whether there is an object, or any below."""
        return self.size() is not None or self.is_dir()

    def is_dir(self) -> bool:
        with self._errors("list"):
            return any(self._client().list(f"{self.key}/", chunk_size=1))

    def iterdir(self) -> "Iterator[ObjectPath]":
        """Objects and prefixes directly below."""
        with self._errors("list"):
            found = self._client().list_with_delimiter(f"{self.key}/")
            keys = [*(entry["path"] for entry in found["objects"]), *found["common_prefixes"]]
        yield from (ObjectPath(self.bucket, key.rstrip("/")) for key in keys)

    def sizes(self) -> dict[str, int]:
        """Bytes of every object below, by key relative to this path: one request a thousand objects."""
        lead = len(self.key) + 1
        with self._errors("list"):
            pages = self._client().list(f"{self.key}/")
            return {entry["path"][lead:]: entry["size"] for page in pages for entry in page}

    def tags(self) -> dict[str, str]:
        """Entity tag of every object below, by key relative to this path; it changes with the object's bytes."""
        lead = len(self.key) + 1
        with self._errors("list"):
            pages = self._client().list(f"{self.key}/")
            return {entry["path"][lead:]: str(entry["e_tag"]) for page in pages for entry in page}

    def size(self) -> int | None:
        """Bytes of the object, or None if there is none."""
        try:
            with self._errors("look up"):
                return int(self._client().head(self.key)["size"])
        except FileNotFoundError:
            return None

    def read_bytes(self) -> bytes:
        """Raises FileNotFoundError if there is no such object."""
        return self.tagged()[0]

    def tagged(self) -> tuple[bytes, str]:
        """The object's bytes and its entity tag, which `replace` compares."""
        with self._errors("read"):
            answer = self._client().get(self.key)
            return bytes(answer.bytes()), str(answer.meta["e_tag"])

    def digest(self) -> tuple[int, str]:
        """(bytes, sha256 in hexadecimal) of the object, streamed."""
        sha256, size = hashlib.sha256(), 0
        with self._errors("read"):
            for block in self._client().get(self.key).stream(min_chunk_size=_PART_BYTES):
                sha256.update(block)
                size += len(block)
        return size, sha256.hexdigest()

    def put(self, data: bytes | NDArray[np.uint8]) -> str:
        """Replace the object by `data`, read it back and compare; its sha256 in hexadecimal is returned.

        Raises:
            StoreError: it still reads back as something else after several attempts.
        """
        view = memoryview(data if isinstance(data, bytes) else data.data)
        sha256 = hashlib.sha256(view).hexdigest()
        for attempt in range(_PUTS):
            with self._errors("write"):
                self._client().put(self.key, view, chunk_size=_PART_BYTES)
            try:
                if self.digest() == (len(view), sha256):
                    return sha256
            except FileNotFoundError:
                pass  # acknowledged and not there
            _LOG.warning("%s does not hold what was just written to it; writing it again", self)
            time.sleep(0.05 * 2**attempt)
        raise StoreError(
            f"{self} does not hold what was just written to it, after {_PUTS} attempts. The object store is faulty; "
            "use another one."
        )

    def create(self, data: bytes) -> str | None:
        """Put `data` only if there is no such object; its entity tag, or None if there is one."""
        return self._put_if(data, "create")

    def replace(self, data: bytes, tag: str) -> str | None:
        """Put `data` only if the object's entity tag is `tag`; the new one, or None if it is not."""
        return self._put_if(data, {"e_tag": tag})

    def _put_if(self, data: bytes, mode: "str | dict[str, str]") -> str | None:
        refused = _exceptions()
        try:
            with self._errors("write"):
                return str(self._client().put(self.key, data, mode=mode, use_multipart=False)["e_tag"])
        except (refused.AlreadyExistsError, refused.PreconditionError, FileNotFoundError):
            return None

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object. An object store does not say whether there was one."""
        with self._errors("remove"):
            self._client().delete(self.key)

    def zarr_store(self) -> Any:
        """Read-only `zarr.abc.store.Store` of everything below."""
        from zarr.storage import ObjectStore

        return ObjectStore(_connect(self.bucket, self.key), read_only=True)

    def _client(self) -> Any:
        return _connect(self.bucket, "")

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Say on one line what the object store refuses. What is missing is a FileNotFoundError, as for files."""
        refused = _exceptions()
        try:
            yield
        except (refused.AlreadyExistsError, refused.PreconditionError):
            raise
        except (FileNotFoundError, refused.BaseError) as error:
            raise self._explained(doing, error) from error

    def _explained(self, doing: str, error: Exception) -> Exception:
        refused = _exceptions()
        if "NoSuchBucket" in str(error):
            return UsageError(
                f"There is no bucket {self.bucket!r} at {_endpoint() or 'Amazon S3'}. Create it, or correct the name "
                "or AWS_ENDPOINT_URL."
            )
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, "no such object", str(self))
        if isinstance(error, (refused.PermissionDeniedError, refused.UnauthenticatedError)):
            return ColdframeError(
                f"Cannot {doing} {self}: the object store refuses these credentials ({_first_line(error)}). Check "
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they may do with the bucket."
            )
        return ColdframeError(
            f"Cannot {doing} {self}: {_first_line(error)}. Check the object store and the network, then run the same "
            "command again; finished units are kept."
        )


class ObjectReader:
    """Reads of one object. Nothing is asked before the first one."""

    def __init__(self, path: ObjectPath) -> None:
        self._path = path

    def whole(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._path.read_bytes(), np.uint8)

    def tail(self, count: int) -> NDArray[np.uint8]:
        """The last `count` bytes; fewer where the object has fewer."""
        size = self._path.size()
        if size is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(self._path))
        return next(self.spans([(max(0, size - count), min(size, count))])) if size else np.empty(0, np.uint8)

    def spans(self, spans: Sequence[tuple[int, int]]) -> Iterator[NDArray[np.uint8]]:
        """Bytes of each (offset, length), in order. Neighbours share requests; `_READ_BYTES` are held at once."""
        held: list[tuple[int, int]] = []
        for position, span in enumerate(spans):
            held.append(span)
            last = position + 1 == len(spans)
            if last or sum(length for _, length in held) + spans[position + 1][1] > _READ_BYTES:
                with self._path._errors("read"):
                    raw = self._path._client().get_ranges(
                        self._path.key,
                        starts=[offset for offset, _ in held],
                        lengths=[length for _, length in held],
                    )
                yield from (np.frombuffer(block, np.uint8) for block in raw)
                held = []


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0].partition("<?xml")[0]
    return line.rstrip(": ")


def _exceptions() -> Any:
    try:
        from obstore import exceptions
    except ImportError as error:
        raise MissingDependency("obstore (for s3:// stores)", "s3") from error
    return exceptions


def _endpoint() -> str | None:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _connect(bucket: str, prefix: str) -> Any:
    """A client. Settings are part of the key, so that a changed environment is not answered by an old client."""
    settings = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    return _client(bucket, prefix, _endpoint(), settings, os.getpid())


@lru_cache(maxsize=64)
def _client(bucket: str, prefix: str, endpoint: str | None, settings: tuple[tuple[str, str], ...], process: int) -> Any:
    from obstore.store import S3Store

    _require_credentials(bucket, dict(settings))
    if endpoint is not None:
        _require_answer(endpoint)
    return S3Store(
        bucket,
        config={} if endpoint is None else {"endpoint": endpoint},
        prefix=prefix or None,
        client_options={
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "connect_timeout": "10s",
            "timeout": "600s",  # of a whole request, a part of 16 MiB among them
        },
    )


def _require_credentials(bucket: str, settings: dict[str, str]) -> None:
    """Without this, a client asks Amazon's metadata service for minutes on machines that have none."""
    if settings.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return
    if settings.get("AWS_ACCESS_KEY_ID") and settings.get("AWS_SECRET_ACCESS_KEY"):
        return
    if any(settings.get(name) for name in _ROLE_VARIABLES):
        return
    if settings.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true" and _answers(*_INSTANCE_METADATA) is None:
        return
    raise UsageError(
        f"There are no credentials for s3://{bucket}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles in "
        "files are not read: aws configure export-credentials --format env), or AWS_SKIP_SIGNATURE=true for a public "
        "bucket."
    )


def _require_answer(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"AWS_ENDPOINT_URL is {endpoint!r}; allowed is a URL such as http://127.0.0.1:9000.")
    refusal = _answers(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    if refusal is not None:
        raise UsageError(
            f"Nothing answers at {endpoint} (AWS_ENDPOINT_URL): {refusal}. Start the object store, or correct "
            "the address."
        )


def _answers(host: str, port: int) -> str | None:
    """None if a connection can be made, else why not."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
