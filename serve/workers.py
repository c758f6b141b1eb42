"""Workers: pending units run in this process or in a pool of spawned ones. Which worker runs what changes no row.

A worker takes its next unit as soon as its decoder is free, so that decoding runs on while the last one is encoded.
"""

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized

from coldframe.errors import ColdframeError
from coldframe.serve.decode_process import without_interrupt
from coldframe.serve.stages import StageSeconds
from coldframe.serve.unit import RunnerSettings, UnitRunner

_runner: UnitRunner  # of a pool process, set by its initialiser
_todo: "_Shared"


def run_units(
    units: Sequence[int], settings: RunnerSettings, *, workers: int, on_clips: Callable[[int], object]
) -> StageSeconds:
    """Run every unit of `units` and return how long each stage was at work.

    Args:
        units: unit numbers still to be done.
        settings: how each worker runs; `threads` is per worker.
        workers: processes; 1 runs in this process.
        on_clips: called with the number of rows just finished.

    Raises:
        ColdframeError: a worker process died. Committed units are safe; a second run does the rest.
    """
    if not units:
        return StageSeconds()
    if workers == 1:
        with closing(UnitRunner(settings, on_clips)) as runner:
            return runner.run(units)
    return _run_in_pool(units, settings, min(workers, len(units)), on_clips)


class _Shared:
    """Units that several processes take from, each unit once. There is no queue, whose threads could outlive a run."""

    def __init__(self, units: Sequence[int], context: SpawnContext) -> None:
        self._units = units
        self._taken: Synchronized[int] = context.Value("q", 0)

    def __iter__(self) -> Iterator[int]:
        while True:
            with self._taken.get_lock():
                place = self._taken.value
                self._taken.value = place + 1
            if place >= len(self._units):
                return
            yield self._units[place]


def _run_in_pool(
    units: Sequence[int], settings: RunnerSettings, workers: int, on_clips: Callable[[int], object]
) -> StageSeconds:
    # spawn, because a forked child inherits locks that threads of the parent hold (FFmpeg, OpenMP, FAISS)
    context = multiprocessing.get_context("spawn")
    progress: Queue[int] = context.Queue()
    todo, spent = _Shared(units, context), list[StageSeconds]()
    held, hold = context.Pipe(duplex=False)  # closed when this process says so, or however it dies
    with (
        hold,
        held,
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=_start_worker, initargs=(settings, todo, progress, held)
        ) as pool,
    ):
        try:
            waiting = _submit(pool, workers)
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                _drain(progress, on_clips)
                for future in done:
                    spent.append(future.result())
        except BrokenProcessPool as error:
            raise ColdframeError(
                "A worker process died, most often for want of memory. Finished units are safe: run the same command "
                "again, with fewer --workers or a smaller --batch-clips."
            ) from error
        except BaseException:
            # now, and not when the units in flight are done, which can be an hour; they are simply not committed
            hold.close()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        _drain(progress, on_clips)
    return StageSeconds.total(spent)


def _submit(pool: ProcessPoolExecutor, workers: int) -> set[Future[StageSeconds]]:
    """Start the pool's processes."""
    with without_interrupt():
        return {pool.submit(_run_shared) for _ in range(workers)}


def _drain(progress: "Queue[int]", on_clips: Callable[[int], object]) -> None:
    while True:
        try:
            on_clips(progress.get_nowait())
        except queue.Empty:
            return


def _start_worker(
    settings: RunnerSettings, todo: _Shared, progress: "Queue[int]", held: "Connection[None, None]"
) -> None:
    global _runner, _todo
    _todo = todo
    threading.Thread(target=_leave_with, args=(held,), daemon=True).start()
    _runner = UnitRunner(settings, progress.put)


def _leave_with(held: "Connection[None, None]") -> None:
    """End this pool process when its parent lets go of the pipe: it stops, or was killed, and would leave an orphan."""
    held.poll(None)
    os._exit(1)


def _run_shared() -> StageSeconds:
    return _runner.run(_todo)
