"""Facts about the machine that runtimes depend on."""

import os
import platform
from pathlib import Path

from coldframe.errors import UsageError


def usable_cpus() -> int:
    """Cores that this process may run on, by its affinity where the system tells it (`taskset`)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_threads(threads: int | None) -> int:
    """`threads`, or one a usable core where it is None."""
    if threads is None:
        return usable_cpus()
    if type(threads) is not int or threads < 1:
        raise UsageError(f"threads is {threads!r}; allowed is a whole number from 1, or none for one a core.")
    return threads


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"
