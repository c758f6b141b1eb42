"""Unit writer: commits one unit in a thread while the next one is decoded and encoded."""

import threading
import time
from collections.abc import Callable, Sequence


class UnitWriter:
    """Runs one commit at a time in a thread, and waits for it before it takes the next.

    Leaving the context waits too: a run that is stopped finishes the unit that is being written. The thread dies with
    the process, so a second interrupt, which ends that wait, stops at once; the unit is then not committed.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._error: BaseException | None = None
        # not the thread's own `join`, which takes the thread for ended once an interrupt fell into it
        self._idle = threading.Event()
        self._idle.set()

    def __enter__(self) -> "UnitWriter":
        return self

    def __exit__(self, *exc: object) -> None:
        self._idle.wait()

    def hand_over(self, commit: Callable[..., None], *arguments: object) -> None:
        """Start `commit(*arguments)` when the one before is done, whose error is raised here."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(commit, arguments), name="write", daemon=True)
        self._idle.clear()
        try:
            thread.start()
        except RuntimeError:  # the system allows no more threads; nobody would ever end the wait
            self._idle.set()
            raise

    def wait(self) -> None:
        """Wait for the last commit and raise its error."""
        self._idle.wait()
        if self._error is not None:
            raise self._error

    def _run(self, commit: Callable[..., None], arguments: Sequence[object]) -> None:
        started = time.perf_counter()
        try:
            commit(*arguments)
        except BaseException as error:
            self._error = error
        finally:
            self.seconds += time.perf_counter() - started
            self._idle.set()
