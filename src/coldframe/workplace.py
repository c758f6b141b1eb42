"""Workplace: a folder beside its target, in which something is built that appears whole or not at all."""

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def workplace(place: Path, *, prefix: str) -> Iterator[Path]:
    """A new folder beside `place` to build in, locked for as long as its builder lives; dead builders' are removed.

    Its name is `prefix` and a random end; the parent of `place` must exist. Rename it to `place` when it is whole.

    A lock and not a process number tells the dead from the living: numbers are reused, and other hosts have their own.
    """
    import fcntl  # absent on Windows, where stores and bundles can still be read

    with _opened(place.parent) as parent:
        fcntl.flock(parent, fcntl.LOCK_EX)  # until our own folder is locked, so that nobody takes it for a dead one
        for entry in place.parent.glob(f"{glob.escape(prefix)}*"):
            with _opened(entry) as leftover:
                try:
                    fcntl.flock(leftover, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(entry, ignore_errors=True)
        partial = place.with_name(f"{prefix}{secrets.token_hex(4)}")
        partial.mkdir()
        own = os.open(partial, os.O_RDONLY)
        fcntl.flock(own, fcntl.LOCK_EX)
    try:
        yield partial
    finally:
        os.close(own)
        shutil.rmtree(partial, ignore_errors=True)  # gone already if it was renamed into its place


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
