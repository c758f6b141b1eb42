"""A store in an object store is the local one, object by object, whatever the server does to it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from coldframe.cli import main
from coldframe.errors import ColdframeError, StoreError, UsageError
from coldframe.store import (
    Store,
    committed_units,
    create_store,
    finish_replacements,
    nearest,
    open_store,
    pending_units,
    seal,
    summarise,
    verify_store,
    write_unit,
)
from coldframe.store import lease as lease_module
from coldframe.store.cli import info_command
from coldframe.store.convert import convert
from coldframe.store.index import open_index
from coldframe.store.object_path import ObjectPath
from tests.store.plans import ENCODER, small_geometry, small_plan, small_result
from tests.store.s3 import BUCKET, FrontDoor, s3_server

URL = f"s3://{BUCKET}/deep/s.zarr"


@pytest.fixture(scope="module")
def door() -> Iterator[FrontDoor]:
    with pytest.MonkeyPatch.context() as patch, s3_server(patch) as server:
        patch.setattr(lease_module, "LEASE_SECONDS", 1.0)
        yield server


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return extracted(made(tmp_path_factory.mktemp("local") / "s.zarr"))


@pytest.fixture(scope="module")
def remote(door: FrontDoor) -> Store:
    """Sealed, and not changed by any test."""
    return extracted(made(URL))


def made(url: str | PathLike[str]) -> Store:
    plan = small_plan(tokens="full", dtype="float32", columns={"label": ["a", "b", "c", "d", "e"]})
    return create_store(url, plan, geometry=small_geometry("full"), encoder=ENCODER)


def extracted(store: Store) -> Store:
    with store.lock():
        for unit in pending_units(store):
            write_unit(store, unit, small_result(store, unit))
        seal(store)
    return store


def contents(store: Store) -> dict[str, bytes]:
    """Every object by its key."""
    if isinstance(store.place, ObjectPath):
        return {key: (store.place / key).read_bytes() for key in store.place.sizes()}
    files = [file for file in store.path.rglob("*") if file.is_file()]
    return {file.relative_to(store.path).as_posix(): file.read_bytes() for file in files}


def test_every_object_equals_that_of_the_local_store(local: Store, remote: Store) -> None:
    assert contents(remote) == contents(local)  # markers too: these results name no times but fixed ones
    assert verify_store(URL).passed


def test_refused_and_unkept_puts_change_nothing(
    local: Store, door: FrontDoor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "refuse", 0.1)
    monkeypatch.setattr(door, "lie", 0.1)
    url = f"s3://{BUCKET}/flaky.zarr"
    before = door.lied - door.lied_about_leases
    flaky = extracted(made(url))
    assert contents(flaky) == contents(local)
    assert verify_store(url).passed
    lies = door.lied - door.lied_about_leases - before
    assert door.refused > 0
    assert lies > 0
    assert sum("writing it again" in record.message for record in caplog.records) == lies  # each of them was seen


def test_an_index_lies_on_a_local_disk(remote: Store, local: Store, tmp_path: Path) -> None:
    place = str(tmp_path / "i")
    for more in ([], ["--out", f"s3://{BUCKET}/i"]):
        refused = CliRunner().invoke(main, ["index", URL, *more])
        assert refused.exit_code == 2
        assert "Name a local folder (--out" in refused.output
    assert CliRunner().invoke(main, ["index", URL, "--out", place]).exit_code == 0
    assert CliRunner().invoke(main, ["search", URL, "--row", "0", "--index", place]).exit_code == 0
    (found,), (right,) = open_index(remote, place).nearest([0], 3), nearest([0], local, 3)
    assert found.rows.tolist() == right.rows.tolist()
    assert "Name a local folder" in CliRunner().invoke(main, ["search", URL, "--row", "0"]).output


def test_the_reader_sees_what_a_local_reader_sees(local: Store, remote: Store) -> None:
    rows = np.array([50, 3, 17, 20])
    np.testing.assert_array_equal(remote.cls(), local.cls())
    np.testing.assert_array_equal(remote.patch(rows), local.patch(rows))
    np.testing.assert_array_equal(remote.column("frame_index"), local.column("frame_index"))
    assert remote.video_columns == local.video_columns
    assert remote.video_column("label") == ["a", "b", "c", "d", "e"]
    assert summarise(remote) == summarise(local)
    assert remote.name == URL
    with pytest.raises(UsageError, match=f"{URL} is no local folder"):
        _ = remote.path
    (far,), (near,) = nearest([3], remote, 4), nearest([3], local, 4)
    assert far.rows.tolist() == near.rows.tolist()


def test_plain_zarr_reads_it(remote: Store) -> None:
    assert isinstance(remote.place, ObjectPath)
    group = zarr.open_group(remote.place.zarr_store(), mode="r")
    values = group["cls"]
    assert isinstance(values, zarr.Array)
    np.testing.assert_array_equal(np.asarray(values[:20]), remote.cls(np.arange(20)))


def test_damage_is_found_and_its_unit_is_written_again(door: FrontDoor) -> None:
    url = f"s3://{BUCKET}/damaged.zarr"
    store = extracted(made(url))
    assert isinstance(store.place, ObjectPath)
    key = "patch/c/1/0/0/0/0"
    shard = store.place / key
    body = shard.read_bytes()
    shard.put(body[:99] + bytes([body[99] ^ 4]) + body[100:])
    assert [problem.object for problem in verify_store(url).problems] == [key]
    with pytest.raises(StoreError, match="does not match its checksum"):  # sizes do not show it, so a read must
        open_store(url).patch([16])
    for damaged in (None, b"", body[: len(body) // 2]):
        if damaged is None:
            shard.unlink()
        else:
            shard.put(damaged)
        assert [problem.object for problem in verify_store(url, deep=False).problems] == [key]
        assert pending_units(open_store(url)) == [1]
    extracted(open_store(url, writable=True))
    assert shard.read_bytes() == body


def test_a_new_store_takes_no_place_that_is_taken(door: FrontDoor) -> None:
    ObjectPath(BUCKET, "mine/notes.txt").put(b"mine")
    with pytest.raises(UsageError, match=r"holds 1 objects that no store accounts for, such as notes\.txt"):
        made(f"s3://{BUCKET}/mine")
    assert ObjectPath(BUCKET, "mine").sizes() == {"notes.txt": 4}


def test_a_new_store_replaces_no_store(remote: Store) -> None:
    with pytest.raises(UsageError, match="exists already"):
        made(URL)


def test_two_extractions_exclude_each_other(remote: Store) -> None:
    with remote.lock(), pytest.raises(UsageError, match="Another extraction is running"), open_store(URL).lock():
        pytest.fail("both hold it")


KILLED = """
import sys
from coldframe.store import create_store, write_unit
from tests.store.test_object_store import made
from tests.store.plans import small_result
print("creating", flush=True)
store = made(sys.argv[1])
with store.lock():
    for unit in range(store.unit_count):
        print("unit", unit, flush=True)
        write_unit(store, unit, small_result(store, unit))
    print("done", flush=True)
"""


@pytest.mark.parametrize(("line", "wait"), [("creating", 0.3), ("unit 2", 0.0)])
def test_a_killed_run_is_finished_by_the_next(local: Store, door: FrontDoor, line: str, wait: float) -> None:
    place = ObjectPath(BUCKET, f"killed {line}.zarr")
    command = [sys.executable, "-c", KILLED, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        for said in process.stdout:
            if said.strip() == line:
                break
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
    store = open_store(place, writable=True) if (place / "zarr.json").size() else made(place)
    assert contents(extracted(store)) == contents(local)
    assert "units/lease.json" not in place.sizes()


def test_what_a_killed_creation_left_is_replaced(local: Store, door: FrontDoor) -> None:
    place = ObjectPath(BUCKET, "half.zarr")
    other = create_store(place, small_plan([3], tokens="full"), geometry=small_geometry("full"), encoder=ENCODER)
    assert isinstance(other.place, ObjectPath)
    (place / "zarr.json").unlink()  # put last, so never there after a kill
    (place / "cls/zarr.json").unlink()
    store = extracted(made(place))
    assert contents(store) == contents(local)


def test_commands_take_the_url(tmp_path: Path, remote: Store) -> None:
    shown = CliRunner().invoke(info_command, [URL], catch_exceptions=False)
    assert shown.exit_code == 0
    assert shown.output.startswith(f"{URL}: complete")
    assert convert(remote, "npy", tmp_path / "out").rows == 50


def test_nothing_is_committed_without_the_lease(door: FrontDoor) -> None:
    """The unit that is being written when it is lost is not: its objects may be another run's by then."""
    store = made(f"s3://{BUCKET}/lost.zarr")
    lease = ObjectPath(BUCKET, "lost.zarr/units/lease.json")

    def work() -> None:
        with store.lock():
            write_unit(store, 0, small_result(store, 0))
            lease.put(b'{"holder": "another"}')
            try:
                time.sleep(10)
            except KeyboardInterrupt:  # which the main thread gets, while another one still writes
                write_unit(store, 1, small_result(store, 1))

    with pytest.raises(ColdframeError, match=r"The lease on .* was lost"):
        work()
    assert committed_units(store) == [0]
    lease.unlink()
    with store.lock():
        write_unit(store, 1, small_result(store, 1))
    assert committed_units(store) == [0, 1]


class Killed(BaseException):
    """Stands for SIGKILL: what cleans up after errors must not be needed."""


@pytest.fixture(scope="module")
def rewritten(door: FrontDoor) -> Store:
    """Whole before and after each test."""
    return extracted(made(f"s3://{BUCKET}/rewritten.zarr"))


@pytest.mark.parametrize("survives", [0, 3, 4, 5, 6, 8, 9, 11, 12, 14, 15])
def test_a_kill_while_a_unit_is_replaced_loses_nothing(
    rewritten: Store, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    before = rewritten.cls()
    steps = 0

    def counted(real: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal steps
            if steps == survives:
                raise Killed
            steps += 1
            return real(*arguments, **options)

        return step

    with monkeypatch.context() as patched:
        for name in ("put", "unlink"):
            patched.setattr(ObjectPath, name, counted(getattr(ObjectPath, name)))
        with pytest.raises(Killed):
            write_unit(rewritten, 1, small_result(rewritten, 1))
    reader = open_store(rewritten.place)
    assert set(committed_units(reader)) >= {0, *range(2, reader.unit_count)}
    finish_replacements(rewritten.place, range(rewritten.unit_count))
    store = open_store(rewritten.place, writable=True)
    assert pending_units(store) == []
    np.testing.assert_array_equal(store.cls(), before)
    assert verify_store(store.place).passed
    write_unit(store, 1, small_result(store, 1))  # and what an undecided one left is in nobody's way
    assert verify_store(store.place).passed
    assert isinstance(store.place, ObjectPath)
    assert not [key for key in store.place.sizes() if ".next" in key]
