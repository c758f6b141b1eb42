"""Heartbeat: loops over bytes and packets say that they get on, so that a watcher can tell slow from stuck."""

import time
from collections.abc import Callable

INTERVAL_SECONDS = 0.5

_tell: Callable[[], object] | None = None
_due = 0.0


def watched_by(tell: Callable[[], object]) -> None:
    """From now on, this process calls `tell` when it gets on, at most once in `INTERVAL_SECONDS`."""
    global _tell
    _tell = tell


def beat() -> None:
    """Called from inside every loop over a file's bytes or packets."""
    global _due
    if _tell is not None and (now := time.monotonic()) >= _due:
        _due = now + INTERVAL_SECONDS
        _tell()
