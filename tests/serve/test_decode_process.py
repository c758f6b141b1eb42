"""A decoder that hangs, crashes or leaks is a result; the process that asked goes on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldframe.errors import VideoError
from coldframe.serve import decode_process
from coldframe.serve.decode_process import DecodeProcess
from tests.serve import stubs


@pytest.fixture
def process() -> Iterator[DecodeProcess]:
    made = DecodeProcess(stall_seconds=3.0)
    yield made
    made.close()


def outcome(process: DecodeProcess, job: Callable[..., Any], *arguments: object) -> tuple[list[Any], VideoError]:
    """Answers up to the error that ended the job."""
    answers = []
    try:
        for answer in process.run(job, *arguments):
            answers.append(answer)
    except VideoError as error:
        return answers, error
    raise AssertionError(f"The job ended without an error after {answers}.")


def test_answers_arrive_in_order_and_whole(process: DecodeProcess) -> None:
    assert list(process.run(stubs.count_to, 5)) == list(range(5))
    for number, picture in process.run(stubs.pictures, 4):
        assert picture.shape == (16, 224, 224, 3)
        assert (picture == number).all()
        picture[:] = 0  # the receiver's own


def test_one_child_serves_many_jobs(process: DecodeProcess) -> None:
    assert len({next(iter(list(process.run(stubs.process_number)))) for _ in range(5)}) == 1


def test_a_hang_costs_its_job_only(process: DecodeProcess) -> None:
    started = time.monotonic()
    answers, error = outcome(process, stubs.hang_after, 3)
    assert (answers, error.reason) == ([0, 1, 2], "timeout")
    assert "did not get on for 3 s" in str(error)
    assert time.monotonic() - started < 10
    assert list(process.run(stubs.count_to, 2)) == [0, 1]


def test_what_gets_on_may_take_long(process: DecodeProcess) -> None:
    assert list(process.run(stubs.get_on_slowly, 5.0)) == [1]


def test_a_slow_receiver_is_no_hang(process: DecodeProcess) -> None:
    received = []
    for number, _ in process.run(stubs.pictures, 4):
        time.sleep(1.0)
        received.append(number)
    assert received == list(range(4))


@pytest.mark.parametrize(("job", "arguments", "count"), [(stubs.abort_after, (2,), 2), (stubs.segfault, (), 0)])
def test_a_crash_costs_its_job_only(process: DecodeProcess, job: Any, arguments: tuple[int, ...], count: int) -> None:
    answers, error = outcome(process, job, *arguments)
    assert (answers, error.reason) == (list(range(count)), "decode_error")
    assert "SIGABRT" in str(error) or "SIGSEGV" in str(error)
    assert list(process.run(stubs.count_to, 2)) == [0, 1]


def test_a_child_that_died_between_jobs_is_replaced_or_reported(process: DecodeProcess) -> None:
    (pid,) = process.run(stubs.process_number)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert outcome(process, stubs.count_to, 1)[1].reason == "decode_error"
    assert list(process.run(stubs.count_to, 1)) == [0]


def test_a_leak_inside_a_job_is_stopped() -> None:
    process = DecodeProcess(max_bytes=600 << 20)
    _, error = outcome(process, stubs.leak_for_ever)
    assert error.reason == "limit"
    assert "GB of memory" in str(error)
    assert list(process.run(stubs.count_to, 1)) == [0]
    process.close()


def test_a_leak_over_many_jobs_ends_with_the_child(process: DecodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = process.run(stubs.leak, 64 << 20)
    monkeypatch.setattr(decode_process, "RECYCLE_BYTES", process._resident_bytes() - (32 << 20))
    (second,) = process.run(stubs.leak, 0)
    (third,) = process.run(stubs.leak, 0)
    assert first != second == third


def test_errors_of_the_job_arrive_as_they_are(process: DecodeProcess) -> None:
    answers, error = outcome(process, stubs.refuse)
    assert (answers, error.reason, str(error)) == ([1], "no_frames", "Nothing to see.")
    with pytest.raises(KeyError, match="a defect, not a bad video") as caught:
        list(process.run(stubs.defect))
    assert "stubs.py" in caught.value.__notes__[0]  # where in the child
    (before,) = process.run(stubs.process_number)
    assert list(process.run(stubs.process_number)) == [before]  # neither cost the child


def test_stopping_early_ends_the_child(process: DecodeProcess) -> None:
    answers = process.run(stubs.pictures, 1000)
    next(answers)
    pid = process._process.pid
    answers.close()
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
    assert list(process.run(stubs.count_to, 1)) == [0]


def test_children_come_from_a_server_without_threads(process: DecodeProcess) -> None:
    (pid,) = process.run(stubs.process_number)
    parent = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
    assert int(parent) != os.getpid()
    assert len(os.listdir(f"/proc/{parent}/task")) == 1


def test_the_fork_server_leaves_an_interrupt_to_its_parent() -> None:
    """It gets a terminal's interrupt too, and for seconds it only imports."""
    script = (
        "import multiprocessing.forkserver as server\n"
        "from coldframe.serve.decode_process import DecodeProcess\n"
        "process = DecodeProcess()\n"
        "print(open(f'/proc/{server._forkserver._forkserver_pid}/status').read())\n"
        "process.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    (blocked,) = [int(line.split()[1], 16) for line in done.stdout.splitlines() if line.startswith("SigBlk")]
    assert blocked >> (signal.SIGINT - 1) & 1


def test_children_yield_to_the_encoder(process: DecodeProcess) -> None:
    (pid,) = process.run(stubs.process_number)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, own + decode_process.NICENESS) > own


def test_many_starts_leave_no_descriptors_and_no_processes() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    DecodeProcess().close()
    before = open_files()
    for _ in range(10):
        process = DecodeProcess()
        outcome(process, stubs.abort_after, 1)
        process.close()
    assert open_files() <= before
    assert not [child for child in multiprocessing.active_children() if child.name == "decode"]


def test_a_killed_parent_leaves_no_child(tmp_path: Path) -> None:
    # Without a main guard: a child must not run the script again.
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import time
            from coldframe.serve.decode_process import DecodeProcess
            from tests.serve import stubs

            running = []
            for job in (stubs.hang_after, stubs.hang_deaf, stubs.count_to):
                process = DecodeProcess()
                answers = process.run(job, 1)
                next(answers)
                running.append((process, answers))
            print(*[process._process.pid for process, _ in running], flush=True)
            time.sleep(600)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert [_is_alive(pid) for pid in pids] == [True] * 3
        parent.kill()
    deadline = time.monotonic() + 20
    while any(map(_is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [_is_alive(pid) for pid in pids] == [False] * 3


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_bulk_transfer_is_cheap(process: DecodeProcess) -> None:
    list(process.run(stubs.pictures, 2))
    started = time.perf_counter()
    size = sum(np.asarray(picture).nbytes for _, picture in process.run(stubs.pictures, 60))
    assert size / (time.perf_counter() - started) > 100e6  # 40 clips a second; measured quiet: over 1 GB/s


def test_memory_of_pictures_is_reused(process: DecodeProcess) -> None:
    pages = 4 * 720 * 1280 * 3 // 4096
    list(process.run(stubs.page_faults_of_pictures, 2))
    (faults,) = process.run(stubs.page_faults_of_pictures, 10)
    assert faults < pages  # of those of ten rounds
