"""Worker processes end with the run that started them, however it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coldframe.export import Bundle
from coldframe.store import Status, open_store, verify_store

Barcodes = Callable[[int, int], Path]


def group_is_gone(group: int) -> bool:
    """Whether no process of the group is alive; zombies that nobody has waited for yet do not count."""
    listed = subprocess.run(["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True, check=False)
    return all(state.startswith("Z") for state in listed.stdout.split())


@pytest.mark.parametrize(
    ("number", "exit_code", "stderr"),
    [
        (signal.SIGINT, 130, "coldframe: interrupted\n"),
        (signal.SIGTERM, 143, "coldframe: terminated\n"),
        (signal.SIGKILL, -9, None),  # nothing can be said, but no worker may go on
    ],
)
def test_signal_stops_the_run_and_its_workers(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, number: int, exit_code: int, stderr: str | None
) -> None:
    store = tmp_path / "s.zarr"
    arguments = [barcodes(510, 0), "--encoder", bundle.path, "--store", store, "--workers", "2"]
    arguments += ["--tokens", "full", "--fps", "60", "--hop", "1", "--batch-clips", "1"]  # 1,020 rows
    command = [sys.executable, "-m", "coldframe.cli", "extract", *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        while not (store / "units/0.json").exists():
            assert run.poll() is None
            time.sleep(0.01)
        if number == signal.SIGINT:
            os.killpg(run.pid, number)  # as a terminal does
        else:
            run.send_signal(number)
        _, said = run.communicate(timeout=60)
    assert run.returncode == exit_code
    assert stderr is None or said == stderr
    deadline = time.monotonic() + 30
    while not group_is_gone(run.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group_is_gone(run.pid)
    assert {problem.kind for problem in verify_store(store).problems} <= {"absent", "uncommitted"}
    assert Status.ABSENT in open_store(store).column("status")


HANGING_DISK = """
import sys, time
from coldframe.cli import main
from coldframe.serve import unit

def hang(*arguments):
    print("writing", flush=True)
    time.sleep(600)

unit.write_unit = hang
main(sys.argv[1:])
"""


def test_second_interrupt_stops_at_once(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    arguments = ["extract", barcodes(70, 0), "--encoder", bundle.path, "--store", tmp_path / "s.zarr"]
    command = [sys.executable, "-c", HANGING_DISK, *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "writing\n"
        run.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):  # the unit that is being written is finished first
            run.wait(timeout=1)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=10)
    assert run.returncode == 130
    assert said == "coldframe: interrupted\n"
    deadline = time.monotonic() + 10
    while not group_is_gone(run.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group_is_gone(run.pid)
    assert open_store(tmp_path / "s.zarr").ok_rows().size == 0


WITH_A_CHILD_OF_ITS_OWN = """
import subprocess, sys
from coldframe.cli import main

child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
main(sys.argv[1:])
"""


def children_of(pid: int) -> list[int]:
    found = [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    return [*found, *(grandchild for child in found for grandchild in children_of(child))]


def test_a_run_ends_its_own_children_and_nobody_elses(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    """One that the program had started itself, in the same group, stays."""
    store = tmp_path / "s.zarr"
    arguments = ["extract", barcodes(510, 0), "--encoder", bundle.path, "--store", store, "--workers", "2"]
    arguments += ["--tokens", "full", "--fps", "60", "--hop", "1", "--batch-clips", "1"]  # 1,020 rows
    command = [sys.executable, "-c", WITH_A_CHILD_OF_ITS_OWN, *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        other = int(run.stdout.readline())
        while not (store / "units/0.json").exists():
            assert run.poll() is None
            time.sleep(0.01)
        started = children_of(run.pid)
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in started}
        run.terminate()
        run.wait(timeout=60)
    own = [pid for pid, line in lines.items() if b"sleep" not in line]
    # workers are spawned, decoders come from a fork server: nobody has this process's locks
    assert sum(b"spawn_main" in lines[pid] for pid in own) == 2
    assert sum(b"multiprocessing.forkserver" in lines[pid] for pid in own) >= 2
    assert all(b"multiprocessing" in lines[pid] for pid in own)
    deadline = time.monotonic() + 30
    while any(is_alive(pid) for pid in own) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [lines[pid] for pid in own if is_alive(pid)]
    try:
        assert is_alive(other)
    finally:
        os.kill(other, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


ON_ONE_CORE = """
import os, sys
from coldframe.cli import main

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
main(sys.argv[1:])
"""


def test_threads_follow_from_the_affinity_mask(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    store = tmp_path / "s.zarr"
    arguments = ["extract", barcodes(70, 0), "--encoder", bundle.path, "--store", store]
    command = [sys.executable, "-c", ON_ONE_CORE, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)
    marker = open_store(store).trusted_marker(0)
    assert marker is not None
    assert marker.provenance["threads"] == "1"
