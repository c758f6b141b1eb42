"""How Coldframe's commands end when something goes wrong: one line on standard error and an exit code."""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from coldframe.errors import ColdframeError

INTERRUPTED, TERMINATED = 130, 143  # 128 + SIGINT, 128 + SIGTERM, as shells report them


class Terminated(KeyboardInterrupt):
    """SIGTERM: what schedulers send before they kill. It unwinds as an interrupt does."""


class ColdframeGroup(click.Group):
    """Command group whose commands never show a traceback for what a user or the machine did wrong.

    `ColdframeError` leaves with its own exit code, other `OSError`s (disk full, no permission) with 1, an
    interrupt with 130, SIGTERM with 143. If the reader of standard output has left (`| head`) the command
    ends silently with 1.
    Click's own usage errors keep their form. Anything else is a defect and keeps its traceback.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with _one_line_errors(self.name or "coldframe"), _terminable():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        # Caught here as well, because click's main turns an interrupt into exit code 1 and hides every
        # EPIPE, also one that a worker process caused.
        with _one_line_errors(ctx.find_root().command.name or "coldframe"):
            return super().invoke(ctx)


@contextmanager
def _one_line_errors(program: str) -> Iterator[None]:
    try:
        yield
    except Terminated:
        _leave(f"{program}: terminated", TERMINATED)
    except KeyboardInterrupt:
        _leave(f"{program}: interrupted", INTERRUPTED)
    except ColdframeError as error:
        _leave(f"{program}: error: {one_line(str(error))}", error.exit_code)
    except OSError as error:
        silent = isinstance(error, BrokenPipeError) and _reader_left()
        _drop_unwritable_output()
        if silent:
            sys.exit(1)
        _leave(f"{program}: error: {one_line(_os_error(error))}", 1)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the command, as an interrupt does, unless the process has other plans for it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated


def _os_error(error: OSError) -> str:
    """`error` in words, without the number that Python puts in front."""
    if error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"


def one_line(message: str) -> str:
    """`message` without line breaks, and with control characters (file names may hold them) escaped."""
    joined = " ".join(part for line in message.splitlines() if (part := line.strip()))
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in joined)


def _leave(line: str, exit_code: int) -> NoReturn:
    click.echo(line, err=True)
    sys.exit(exit_code)


def _reader_left() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError):  # closed by the shell, or replaced by an object in memory
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _drop_unwritable_output() -> None:
    """Point standard output at nothing if it cannot take what is still buffered.

    Python flushes it once more at exit, which would print a second error and change the exit code to 120.
    """
    if sys.stdout is None:  # closed by the shell (`>&-`)
        return
    try:
        click.echo(nl=False)  # flushes click's own stream, which is not always sys.stdout
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
