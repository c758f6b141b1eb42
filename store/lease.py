"""Lease: one extraction at a time on an object store, which has no lock that a dying process would drop.

The holder's object is created on condition that there is none, and rewritten every few seconds on condition that it is
still the holder's. Whoever finds one watches it: if nobody rewrites it for `LEASE_SECONDS` its holder is gone, and it
is taken over, again on condition that nobody else did. Only the watcher's own clock counts.
"""

import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from coldframe.errors import ColdframeError, StoreError, UsageError
from coldframe.store.object_path import ObjectPath

LEASE_FILE = "lease.json"
LEASE_SECONDS = 30.0
_SIGNAL = signal.SIGUSR2
_RENEWALS = 5  # within a lease
_POLLS = 10


_lost: set[ObjectPath] = set()  # by this process, until it asks for them again


def require_not_lost(path: ObjectPath) -> None:
    """Raise ColdframeError if this process lost the lease at `path`: what it was about to commit may be another's now.

    The main thread is interrupted, but it lets a write that is under way in another thread come to its end.
    """
    if path in _lost:
        raise _loss(path)


@contextmanager
def held_lease(path: ObjectPath) -> Iterator[None]:
    """Hold the lease at `path` for the length of a `with` block.

    If it is lost on the way, which takes an outage of `LEASE_SECONDS`, the main thread is interrupted and
    ColdframeError is raised.

    Raises:
        UsageError: another process holds it.
        StoreError: the object store ignores conditions, so that it cannot be held at all.
    """
    holder = _Holder(path)
    with _interruptible():
        holder.take()
        _lost.discard(path)
        holder.start()
        try:
            yield
        except KeyboardInterrupt as error:
            if holder.lost:
                raise _loss(path) from error
            raise
        finally:
            holder.release()
    if holder.lost:
        raise _loss(path)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let `_SIGNAL` interrupt the main thread. Not SIGINT, which a job in the background of a script ignores."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("A store in an object store is extracted from the main thread only: no other can be stopped.")
    before = signal.signal(_SIGNAL, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(_SIGNAL, before)


class _Holder:
    def __init__(self, path: ObjectPath) -> None:
        self.path = path
        self.lost = False
        self._id = secrets.token_hex(8)
        self._count = 0
        self._tag = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def take(self) -> None:
        self.path.create(self._text())
        while not self._is_ours():  # also where the object store acknowledged what it did not keep
            self._take_over()
        if self.path.create(self._text()) is not None:
            raise StoreError(
                f"The object store of {self.path} ignores conditional writes (If-None-Match), so two extractions could "
                "not exclude each other. Use one that has them, such as Amazon S3, R2, MinIO or Ceph of 2024 or later."
            )

    def start(self) -> None:
        self._thread.start()

    def release(self) -> None:
        self._stop.set()
        self._thread.join()
        if not self.lost:
            self.path.unlink()

    def _text(self) -> bytes:
        """Never the same twice: an entity tag is often a digest of the content."""
        self._count += 1
        return json.dumps(
            {"holder": self._id, "host": socket.gethostname(), "process": os.getpid(), "renewal": self._count}
        ).encode()

    def _take_over(self) -> None:
        """Wait for a lease that nobody renews, or that is released, and ask for it."""
        started = time.monotonic()
        seen: str | None = None
        while True:
            try:
                text, tag = self.path.tagged()
            except FileNotFoundError:  # released while we looked
                self.path.create(self._text())
                return
            if seen not in (None, tag):
                raise UsageError(
                    f"Another extraction is running on {self._store} ({_who(text)}). Wait for it to end, or "
                    "stop it first."
                )
            if time.monotonic() - started >= LEASE_SECONDS:
                self.path.replace(self._text(), tag)
                return
            seen = tag
            time.sleep(LEASE_SECONDS / _POLLS)

    @property
    def _store(self) -> str:
        return str(self.path).rsplit("/", 2)[0]

    def _renew(self) -> None:
        renewed = time.monotonic()
        while not self._stop.wait(LEASE_SECONDS / _RENEWALS):
            try:
                tag = self.path.replace(self._text(), self._tag)
                if tag is None and self._is_ours():
                    tag = self._tag
            except ColdframeError:
                if time.monotonic() - renewed < LEASE_SECONDS:
                    continue
                tag = None
            if tag is None:
                self.lost = True
                _lost.add(self.path)
                signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)  # wakes it too
                return
            self._tag, renewed = tag, time.monotonic()

    def _is_ours(self) -> bool:
        """Whether the lease that is there is ours; its tag is then the one to go on from.

        An answer can be lost and the request sent again, which then finds its own object in the way.
        """
        try:
            text, self._tag = self.path.tagged()
        except FileNotFoundError:
            return False
        return self._id.encode() in text


def _loss(path: ObjectPath) -> ColdframeError:
    return ColdframeError(
        f"The lease on {path} was lost: the object store could not be reached for {LEASE_SECONDS:g} s, or another "
        "extraction took over. Run the same command again; finished units are kept."
    )


def _who(text: bytes) -> str:
    try:
        holder = json.loads(text)
        return f"process {holder['process']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "its lease cannot be read"
