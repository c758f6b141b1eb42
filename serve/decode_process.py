"""Decode process: a child in which files are read, so that a decoder that hangs, crashes or leaks costs one video.

A native decoder that loops cannot be interrupted from Python, and one that crashes takes its process along. The
child is killed when it has not got on for a while (no bytes hashed, no packet decoded, no answer), which holds for
a clip and for a 10-hour video alike; a limit on total time would have to be generous enough for the latter.
"""

import ctypes
import fcntl
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, TypeVar

from coldframe.errors import ColdframeError, VideoError
from coldframe.serve import heartbeat

T = TypeVar("T")

STALL_SECONDS = 60.0
MAX_BYTES = 4 << 30  # resident: 16 reference pictures of the largest size in 4:2:0 take 1.6 GB
RECYCLE_BYTES = 1 << 30  # above this, a child between two jobs is replaced: leaks of thousands of files end there

# glibc's parameters (malloc.h): freed memory at the heap's top that is kept, and from where a block is mapped alone.
_M_TRIM_THRESHOLD, _KEPT_BYTES = -1, 256 << 20
_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 32 << 20  # the highest that glibc takes
# The threads of an encoder on the same cores finish every step together, so one that waits for a decoder stops all of
# them. A decoder that yields lives in the gaps that they leave; more than 10 and a busy machine could starve it.
NICENESS = 10

_START_SECONDS = 300.0  # imports from a cold network disk
_POLL_SECONDS = 0.25
_BEAT, _ANSWER, _ERROR, _DONE = "beat", "answer", "error", "done"

# Children are forked from a server that imported this once and runs no thread; forking this process, with the
# threads of FFmpeg, OpenMP and the runtimes, would copy locks that nobody releases.
PRELOAD = ["av", "coldframe.serve.clips", "coldframe.serve.survey"]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOAD)
_start_lock = threading.Lock()


class DecodeProcess:
    """Runs jobs, one at a time, in a child process that is replaced when it had to be killed.

    A job is a module-level function that returns an iterable; arguments and results are pickled. The child dies with
    this process, however this process ends, and with `close`.

    Args:
        stall_seconds: how long a job may go without getting on.
        max_bytes: resident memory above which a job is stopped.
    """

    def __init__(self, *, stall_seconds: float = STALL_SECONDS, max_bytes: int = MAX_BYTES) -> None:
        self._stall_seconds, self._max_bytes = stall_seconds, max_bytes
        self._is_ready = False
        self._start()

    def run(self, job: Callable[..., Iterable[T]], *arguments: object) -> Generator[T]:
        """Yield what `job(*arguments)` yields in the child. Stopping early ends the child.

        Raises:
            VideoError: `timeout` if the job stalls, `decode_error` if the child dies, `limit` if it takes too much
                memory; and what the job raises, as any other exception of it.
            ColdframeError: no child can be started.
        """
        self._prepare()
        finished = False
        try:
            self._connection.send((job, arguments))
            while (message := self._receive())[0] != _DONE:
                if message[0] == _ERROR:
                    finished = True
                    raise message[1]
                yield message[1]
            finished = True
        except BrokenPipeError as error:  # it died between two jobs
            raise self._death() from error
        finally:
            if not finished:
                self.close()

    def close(self) -> None:
        """End the child, whatever it does. A later `run` starts another."""
        if self._connection.closed:
            return
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()
        self._is_ready = False

    def _prepare(self) -> None:
        if self._connection.closed:
            self._start()
        if not self._is_ready:
            self._await_ready()
        elif self._resident_bytes() > RECYCLE_BYTES:
            self.close()
            self._prepare()

    def _start(self) -> None:
        self._connection, far_end = multiprocessing.Pipe()
        # daemon: ended, not waited for, when this process exits
        self._process = _context.Process(target=_serve, args=(far_end,), daemon=True, name="decode")
        with _start_lock, _without_main(), without_interrupt():
            self._process.start()
        far_end.close()

    def _await_ready(self) -> None:
        try:
            if self._connection.poll(_START_SECONDS):
                self._connection.recv()
                self._is_ready = True
                return
            why = f"It was not ready after {_START_SECONDS:.0f} s"
        except (EOFError, OSError):
            self._process.join()
            why = f"It ended with exit code {self._process.exitcode}"
        self.close()
        raise ColdframeError(f"The process that decodes videos cannot be started. {why}; see what it printed above.")

    def _receive(self) -> tuple[str, Any]:
        """The next message that is not a heartbeat.

        Raises:
            VideoError: the child had to be killed, or died.
        """
        since = time.monotonic()
        try:
            while True:
                if self._connection.poll(_POLL_SECONDS):
                    message = _receive_message(self._connection)
                    if message[0] != _BEAT:
                        return message
                    since = time.monotonic()
                elif time.monotonic() - since > self._stall_seconds:
                    raise VideoError(
                        "timeout", f"The decoder did not get on for {self._stall_seconds:g} s and was stopped."
                    )
                if (size := self._resident_bytes()) > self._max_bytes:
                    raise VideoError(
                        "limit",
                        f"Decoding takes {size / 1e9:.1f} GB of memory; allowed are {self._max_bytes / 1e9:.1f} GB.",
                    )
        except (EOFError, OSError) as error:
            raise self._death() from error

    def _death(self) -> VideoError:
        self._process.join()
        code = self._process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return VideoError("decode_error", f"The decoder crashed on this file ({how}).")

    def _resident_bytes(self) -> int:
        try:
            with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):  # it is gone, which the connection tells
            return 0


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the program's main module, which a child would import: a script would run a second time in it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def without_interrupt() -> Iterator[None]:
    """Start processes with Ctrl-C blocked: it reaches the whole group, and is this process's to answer.

    Anything else would answer it with a traceback, and the fork server imports for a second.
    """
    resource_tracker.ensure_running()  # before, because it unblocks the signal when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection) -> None:
    """The child: answer one job after the other until the other end is closed."""
    _die_with_parent()
    _keep_freed_memory()
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's interrupt reaches the parent, which ends this
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a result here, not a thing to debug
    heartbeat.watched_by(lambda: _send_message(connection, (_BEAT, None)))
    # a parent that is gone, whenever that shows, is no error of this process
    with suppress(BrokenPipeError, ConnectionResetError, EOFError):
        connection.send("ready")
        while True:
            _answer(connection, *connection.recv())


def _answer(connection: Connection, job: Callable[..., Iterable[object]], arguments: tuple[object, ...]) -> None:
    try:
        for answer in job(*arguments):
            _send_message(connection, (_ANSWER, answer))
        _send_message(connection, (_DONE, None))
    except BrokenPipeError:
        raise
    except Exception as error:
        _send_message(connection, (_ERROR, _portable(error)))


def _die_with_parent() -> None:
    """SIGIO, whose default is to end the process, when the parent's end of a pipe is closed.

    The kernel sends it also while native code holds the interpreter. PR_SET_PDEATHSIG would not do: the parent of a
    forked child is the fork server, and it counts the thread that started a child, not the process.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    pipe = parent.sentinel
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _keep_freed_memory() -> None:
    """Reuse the pictures' memory, in place of giving it back to the kernel and being handed it anew, page by page.

    Measured: 10 % of the processor time of clips at 720p. The C library may be another one, which has no such thing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def _portable(error: Exception) -> Exception:
    """`error` if it survives pickling, with its traceback as a note."""
    if not isinstance(error, VideoError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _send_message(connection: Connection, message: tuple[str, object]) -> None:
    """Arrays travel behind the pickle, uncopied."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    connection.send_bytes(pickle.dumps(([view.nbytes for view in views], body)))
    for view in views:
        if view.nbytes:
            connection.send_bytes(view)


def _receive_message(connection: Connection) -> tuple[str, Any]:
    sizes, body = pickle.loads(connection.recv_bytes())
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if buffer:
            connection.recv_bytes_into(buffer)
    message: tuple[str, Any] = pickle.loads(body, buffers=buffers)
    return message
