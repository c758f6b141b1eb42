import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from coldframe.cli_errors import ColdframeGroup, one_line
from coldframe.errors import BundleError, ColdframeError, InputNotFound, UsageError

SCRIPT = """
import errno, sys, time
import click
from coldframe.cli_errors import ColdframeGroup

@click.group("coldframe-x", cls=ColdframeGroup)
def main(): pass

@main.command()
def much():
    for _ in range(100_000):
        click.echo("x" * 80)

@main.command()
def buffered():
    print("lost in the buffer")
    raise BrokenPipeError(errno.EPIPE, "a worker died")

@main.command()
@click.argument("seconds", default=30)
def wait(seconds):
    click.echo("ready")
    time.sleep(seconds)

@main.command()
def bar():
    from coldframe.progress import announce, progress_bar
    announce("now")
    with progress_bar("working", 1) as advance:
        advance(1)

main()
"""


def group_raising(error: BaseException) -> click.Group:
    @click.group("coldframe-x", cls=ColdframeGroup)
    def main() -> None:
        pass

    @main.group("inner", cls=ColdframeGroup)
    def inner() -> None:
        pass

    @main.command("go")
    def go() -> None:
        raise error

    inner.add_command(go)
    return main


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def script(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("PYTHONUNBUFFERED", request.param)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return [sys.executable, str(path)]


@pytest.mark.parametrize(
    ("error", "exit_code", "text"),
    [
        (ColdframeError("it failed"), 1, "it failed"),
        (BundleError("weights are gone"), 1, "weights are gone"),
        (UsageError("bad fps"), 2, "bad fps"),
        (InputNotFound("no such file: a.mp4"), 2, "no such file: a.mp4"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/x/y"),
            1,
            "/x/y: No space left on device",
        ),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, "Broken pipe"),
    ],
)
@pytest.mark.parametrize("args", [["go"], ["inner", "go"]])
def test_error_is_one_line_with_its_exit_code(args: list[str], error: Exception, exit_code: int, text: str) -> None:
    result = CliRunner().invoke(group_raising(error), args)
    assert result.exit_code == exit_code
    assert result.stderr == f"coldframe-x: error: {text}\n"
    assert result.stdout == ""


def test_interrupt_is_one_line_and_130() -> None:
    result = CliRunner().invoke(group_raising(KeyboardInterrupt()), ["go"])
    assert (result.exit_code, result.stderr) == (130, "coldframe-x: interrupted\n")


def test_a_defect_keeps_its_traceback() -> None:
    result = CliRunner().invoke(group_raising(ZeroDivisionError("ours")), ["go"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_click_usage_errors_keep_their_form() -> None:
    result = CliRunner().invoke(group_raising(UsageError("never")), ["nonsense"])
    assert result.exit_code == 2
    assert "No such command" in result.stderr


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("a\nb\r\n  c\n", "a b c"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("name \udc80.mp4", "name \\udc80.mp4"),
        ("two  blanks stay, é and 猫 too", "two  blanks stay, é and 猫 too"),
        ("", ""),
    ],
)
def test_one_line(message: str, line: str) -> None:
    assert one_line(message) == line


def test_closed_reader_ends_the_command_silently(script: list[str]) -> None:
    with subprocess.Popen([*script, "much"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        stderr = process.stderr.read()
    assert (process.returncode, stderr) == (1, b"")


def test_broken_pipe_elsewhere_is_not_silent(script: list[str]) -> None:
    done = subprocess.run([*script, "buffered"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr == "coldframe-x: error: a worker died\n"
    assert done.stdout == "lost in the buffer\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("args", [["much"], ["--help"]])
def test_full_disk_under_stdout_is_one_line(script: list[str], args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*script, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr == "coldframe-x: error: No space left on device\n"


@pytest.mark.parametrize(
    ("number", "exit_code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_signal_during_a_command(script: list[str], number: int, exit_code: int, word: str) -> None:
    command = [*script, "wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (exit_code, f"coldframe-x: {word}\n")


def test_handler_of_sigterm_is_put_back() -> None:
    CliRunner().invoke(group_raising(UsageError("bad fps")), ["go"])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_change_no_exit_code(script: list[str], closed: str) -> None:
    for args, exit_code in (("wait 0", 0), ("bar", 0), ("buffered", 1)):
        line = f"{shlex.join(script)} {args} {closed}"
        assert subprocess.run(line, shell=True, capture_output=True, timeout=30).returncode == exit_code, args
