"""Many writers, killed writers and full disks. Each worker is a process of its own."""

import hashlib
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest

from coldframe.store import (
    Store,
    committed_units,
    create_store,
    discard_units,
    open_store,
    pending_units,
    seal,
    verify_store,
    write_unit,
)
from tests.forkserver import CONTEXT
from tests.store.plans import ENCODER, row_tokens, small_geometry, small_plan, small_result

# the server imports the store once, so that a worker starts in milliseconds


def new_store(path: Path, clips: Sequence[int] = (100, 0, 90, 60)) -> Store:
    return create_store(path, small_plan(clips, tokens="full"), geometry=small_geometry("full"), encoder=ENCODER)


def write_all(path: Path, units: Sequence[int], began: Event | None = None) -> None:
    store = open_store(path, writable=True)
    if began is not None:
        began.set()
    for unit in units:
        write_unit(store, unit, small_result(store, unit))


def arrays_sha256(store: Store) -> str:
    """Digest over every file of the arrays that units write, names included."""
    digest = hashlib.sha256()
    for name in store.unit_arrays:
        for entry in sorted((store.path / name).rglob("*")):
            if entry.is_file():
                digest.update(f"{entry.relative_to(store.path)}\n".encode() + entry.read_bytes())
    return digest.hexdigest()


def require_complete(store: Store) -> None:
    assert pending_units(store) == []
    assert verify_store(store.path).passed
    rows = store.ok_rows()
    assert len(rows) == np.count_nonzero(store.column("n_real") > 0)
    cls, patch = row_tokens(store, rows)
    assert patch is not None
    np.testing.assert_array_equal(store.cls(), cls.astype(np.float16))
    np.testing.assert_array_equal(store.patch(), patch.astype(np.float16))


def test_eight_threads_lose_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda unit: write_unit(store, unit, small_result(store, unit)), range(store.unit_count)))
    require_complete(store)


def test_four_processes_lose_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    workers = [
        CONTEXT.Process(target=write_all, args=(store.path, range(part, store.unit_count, 4))) for part in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    require_complete(store)


def test_a_writer_killed_at_20_random_moments_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    reference = new_store(tmp_path / "reference")
    started = time.perf_counter()
    write_all(reference.path, range(reference.unit_count))
    seconds = time.perf_counter() - started
    seal(reference)
    moments = random.Random(0)
    store, kills, torn, attempt = new_store(tmp_path / "s0"), 0, 0, 0
    while kills < 20:
        pending = pending_units(store)
        if not pending:
            attempt += 1
            assert arrays_sha256(store) == arrays_sha256(reference)
            store = new_store(tmp_path / f"s{attempt}")
            continue
        began = CONTEXT.Event()
        worker = CONTEXT.Process(target=write_all, args=(store.path, pending, began))
        worker.start()
        assert began.wait(60)
        time.sleep(moments.uniform(0, 0.5 * seconds))
        worker.kill()
        worker.join()
        kills += worker.exitcode == -signal.SIGKILL
        done = committed_units(store)
        rows = np.array([row for unit in done for row in store.unit_range(unit)], np.int64)
        store.refresh()
        good = rows[store.column("n_real")[rows] > 0]
        np.testing.assert_array_equal(store.ok_rows(), good)  # nothing partial is ever visible
        np.testing.assert_array_equal(store.cls(good), row_tokens(store, good)[0].astype(np.float16))
        report = verify_store(store.path)
        assert {problem.kind for problem in report.problems} <= {"absent", "uncommitted"}
        torn += any(problem.kind == "uncommitted" for problem in report.problems)
    assert torn  # at least one kill hit a unit half-way, or this test shows nothing
    write_all(store.path, pending_units(store))
    require_complete(store)
    assert arrays_sha256(store) == arrays_sha256(reference)
    seal(store)
    for name in ("summary.json", "failures.jsonl"):
        assert (store.path / "units" / name).read_bytes() == (reference.path / "units" / name).read_bytes()


FULL_DISK = """
import resource, sys
from pathlib import Path
from coldframe.errors import ColdframeError
from tests.store.test_crash import write_all
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    write_all(Path({path!r}), range(3))
except ColdframeError as error:
    print(error.exit_code, error)
"""


def test_a_file_that_the_system_cuts_short_is_never_committed(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s", (20,))
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    shard_bytes = 16 * 4 * 4 * 4 * 8 * 2
    code = FULL_DISK.format(limit=shard_bytes // 2, path=str(store.path))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.startswith("1 Cannot write unit 0 to "), run.stderr
    assert "File too large. Raise the limit on file sizes" in run.stdout
    assert pending_units(store) == [0, 1]
    assert not list(store.path.rglob("*.partial"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == whole
    write_all(store.path, [0, 1])
    require_complete(store)


@pytest.mark.parametrize("damage", ["delete", "empty", "half", "flip"])
def test_resume_rewrites_exactly_what_is_damaged(tmp_path: Path, damage: str) -> None:
    store = new_store(tmp_path / "s")
    write_all(store.path, range(store.unit_count))
    before = arrays_sha256(store)
    shard = store.path / "cls" / "c" / "3" / "0"
    good = shard.read_bytes()
    shard.unlink()
    if damage != "delete":
        flipped = good[:40] + bytes([good[40] ^ 1]) + good[41:]
        shard.write_bytes({"empty": b"", "half": good[: len(good) // 2], "flip": flipped}[damage])
    report = verify_store(store.path)
    assert report.damaged_units == (3,)
    assert {problem.object for problem in report.problems} == {"cls/c/3/0"}
    assert report.absent == 16
    if damage != "flip":  # only hashes reveal a flipped bit, so resuming cannot see it
        assert pending_units(store) == [3]
    discard_units(store, report.damaged_units)
    assert pending_units(store) == [3]
    write_all(store.path, [3])
    assert arrays_sha256(store) == before
    require_complete(store)
