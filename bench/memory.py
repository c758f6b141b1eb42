"""Memory: the most that this process and its children hold at a time."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_INTERVAL_SECONDS = 0.02


class Peak:
    """`bytes` is the largest sum of resident memory that was seen; shared pages count once a process."""

    bytes = 0.0


@contextmanager
def peak_bytes() -> Iterator[Peak]:
    """Watch while the block runs. Reads `/proc`, so Linux only."""
    peak, stop = Peak(), threading.Event()

    def watch() -> None:
        while True:
            peak.bytes = max(peak.bytes, sum(map(_resident_bytes, _family(os.getpid()))))
            if stop.wait(_INTERVAL_SECONDS):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _family(process: int) -> list[int]:
    found = [process]
    with suppress(OSError):  # it ended while it was looked at
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            for child in children.read_text().split():
                found += _family(int(child))
    return found


def _resident_bytes(process: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
