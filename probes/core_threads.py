"""Core threads: one thread a core, each with products of its own, in place of all cores in one product after another.

A thread that waits for another at the end of every product loses what the other one does meanwhile, which may be the
loader's work.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

_NICENESS = 14
_WORTH_ELEMENTS = 1 << 20  # below it, to wake threads takes longer than the work

Work = Callable[[int, int], None]


def yield_to_others() -> None:
    """Let this thread run where the others of the process leave a core idle, and no more than a share of it elsewhere.

    A niceness of 14 weighs 1 / 23, which is what reading takes of 20 heads' time: on a machine that is busy with other
    things, too, two readers keep up with them.
    """
    if sys.platform == "linux":  # where a niceness is a thread's own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def workers(device: torch.device, count: int, elements: int) -> int:
    """Threads for `count` pieces of work on `device` that read so many elements; a GPU is kept busy by one."""
    if device.type != "cpu" or elements < _WORTH_ELEMENTS:
        return 1
    return min(torch.get_num_threads(), count)


def spread(work: Work, count: int, threads: int) -> None:
    """Call `work(thread, number)` for every number below `count`, in no order that may be relied on.

    Args:
        work: is not recorded by autograd; an error ends all of it.
        count: pieces of work.
        threads: as `workers` says. With one, products use the cores that PyTorch is allowed.
    """
    numbers = iter(range(count))  # `next` of it is one step of the interpreter
    if threads == 1:
        _take(work, 0, numbers)
        return
    pool = _pool(torch.get_num_threads())
    for taken in [pool.submit(_take, work, thread, numbers) for thread in range(threads)]:
        taken.result()


@torch.no_grad()
def _take(work: Work, thread: int, numbers: Iterator[int]) -> None:
    for number in numbers:
        work(thread, number)


@lru_cache(maxsize=1)
def _pool(cores: int) -> ThreadPoolExecutor:
    """`cores` threads, all of them started, which compute with one core each whatever the others may use."""
    pool = ThreadPoolExecutor(cores, thread_name_prefix="core", initializer=_compute_alone)
    started = threading.Barrier(cores)
    for start in [pool.submit(started.wait) for _ in range(cores)]:
        start.result()
    torch.set_num_threads(cores)  # of threads to come; PyTorch remembers the last number that any thread asked for
    return pool


def _compute_alone() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # settles it for this thread
