"""Halves: the two halves of a batch, worked on at the same time.

Between large products lies work that PyTorch spreads over its threads badly: norms, steps over elements, thin products,
Python itself. Two halves that go their own way, each with half of the threads, keep the cores busier than one batch on
all of them. The halves and the order in which their results are used depend on the batch alone, never on timing.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from coldframe.probes.token_view import TokenBatch

Result = TypeVar("Result")
_HALVES = 2


def halves(batch: TokenBatch) -> list[TokenBatch]:
    """The first and the second half of the rows of `batch`; a batch of one row as it is."""
    count = len(batch.rows)
    if count < _HALVES:
        return [batch]
    spans = (slice(count // _HALVES), slice(count // _HALVES, count))
    return [
        replace(batch, rows=batch.rows[span], maps=tuple(one[span] for one in batch.maps), mask=batch.mask[span])
        for span in spans
    ]


class SideBySide:
    """Two threads of Python, each with half of the threads that PyTorch has where this is made."""

    def __init__(self) -> None:
        before = torch.get_num_threads()
        started = threading.Barrier(_HALVES + 1)

        def start() -> None:
            torch.set_num_threads(max(1, before // _HALVES))
            started.wait()

        self._pool = ThreadPoolExecutor(_HALVES, thread_name_prefix="half", initializer=start)
        for _ in range(_HALVES):
            self._pool.submit(started.wait)
        started.wait()  # both have their number
        torch.set_num_threads(before)  # which is also what later threads start with
        started.wait()  # and both are free

    def run(self, work: Callable[[TokenBatch], Result], parts: Sequence[TokenBatch]) -> list[Result]:
        """`work` of every part, in order; the first error is raised when none is running any more."""
        waiting = [self._pool.submit(work, part) for part in parts]
        for one in waiting:
            one.exception()
        return [one.result() for one in waiting]

    def close(self) -> None:
        self._pool.shutdown()
