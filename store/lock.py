"""Lock: one extraction at a time into the same rows of a store."""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from coldframe.errors import StoreError, UsageError
from coldframe.store.files import Place, disk_errors
from coldframe.store.lease import LEASE_FILE, held_lease
from coldframe.store.markers import MARKER_FOLDER
from coldframe.store.object_path import ObjectPath
from coldframe.store.root import PLAN_RECORD_KEY, read_root
from coldframe.store.text import path_to_text


@contextmanager
def held_lock(place: Place, units: range | None, plan_id: str) -> Iterator[None]:
    """Be the only process that extracts `units` of the store at `place`, or into it at all (None).

    Args:
        plan_id: the plan that the caller read; a store that has grown since is refused.

    Raises:
        UsageError: another process holds it, or one that overlaps it; so does a second holder in this process.
        StoreError: the store has grown since it was opened.
    """
    import fcntl  # absent on Windows, where stores can still be read

    if units is not None and not len(units):
        yield
        return
    if isinstance(place, ObjectPath):
        with held_lease(place / MARKER_FOLDER / LEASE_FILE):
            yield
        return
    start, length = (0, 0) if units is None else (units.start, len(units))  # a length of 0 is all there can be
    # A byte stands for a unit. It is a lock of the open file and not of the process, which would lose it as soon
    # as anything in it opened and closed the same file.
    wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    target, name = place / PLAN_RECORD_KEY, path_to_text(place)
    with disk_errors("lock", target), target.open("r+b") as file:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
            # only growth replaces the file, and a lock on the old one would keep nobody out
            taken = os.path.samestat(os.fstat(file.fileno()), target.stat())
        except (BlockingIOError, PermissionError):
            taken = False
        if not taken:
            which = "" if units is None else " that overlaps this part"
            raise UsageError(f"Another extraction is running on {name}{which}. Wait for it to end, or stop it first.")
        if read_root(place).plan_id != plan_id:  # units of the old plan would undo those of the new one
            raise StoreError(f"{name} has grown since it was opened. Run the same command again.")
        yield
