"""A store that grows keeps its rows and bytes, and a kill at any moment leaves the old plan or the new one."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from coldframe.errors import RecipeMismatch, StoreError, UsageError
from coldframe.store import (
    Plan,
    Reason,
    Status,
    Store,
    committed_units,
    create_store,
    finish_growth,
    grow_store,
    keep_rows,
    merge_plans,
    open_store,
    pending_units,
    read_plan,
    seal,
    summarise,
    verify_store,
    write_unit,
)
from tests.store.plans import ENCODER, row_tokens, small_geometry, small_plan, small_result


def further(clips: Sequence[int], **options: Any) -> Plan:
    """A plan of videos that no other plan here has."""
    plan = small_plan(clips, **options)
    paths = [path.replace("/videos/", "/more/") for path in plan.videos.path]
    digests = [f"f{digest[1:]}" for digest in plan.videos.sha256]
    return replace(plan, videos=replace(plan.videos, path=paths, sha256=digests, source=digests))


def fill(store: Store) -> None:
    for unit in pending_units(store):
        result = small_result(store, unit)
        empty = {name: np.full_like(values, np.nan) for name, values in result.tokens.items()}
        status, reason = np.full(len(result.rows), 2, np.uint8), np.zeros(len(result.rows), np.uint8)
        found = keep_rows(store, unit, retry=(), status=status, reason=reason, tokens=empty)
        kept, failures = found.rows, found.failures
        at = kept - result.rows.start
        for name, values in result.tokens.items():
            values[at] = empty[name][at]
        new = np.setdiff1d(np.arange(len(result.rows)), at)
        status[new], reason[new] = result.status[new], result.reason[new]
        new_failures = [entry for entry in result.failures if entry["row"] not in kept.tolist()]
        write_unit(store, unit, replace(result, status=status, reason=reason, failures=failures + new_failures))


def contents(store: Store) -> dict[str, bytes]:
    return {
        str(file.relative_to(store.path)): file.read_bytes()
        for file in sorted(store.path.rglob("*"))
        if file.is_file() and file.parent.name != "units"
    }


def test_the_plan_is_read_back_as_it_was_made(filled: Store) -> None:
    assert read_plan(filled).plan_id == filled.plan_id
    plan = small_plan(tokens="full", columns={"label": ["a", "b", "c", "d", "e"], "take": np.arange(5)})
    assert read_plan(filled).videos.columns["label"] == plan.videos.columns["label"]
    assert plan.plan_id == filled.plan_id


def test_growth_keeps_rows_and_bytes_and_equals_a_store_made_at_once(tmp_path: Path) -> None:
    first, more = small_plan((20, 0, 17)), further((30, 0, 12))
    store = create_store(tmp_path / "s", first, geometry=small_geometry(), encoder=ENCODER)
    fill(store)
    seal(store)
    before, old_rows = contents(store), store.cls()
    grown = grow_store(store, merge_plans(read_plan(store), more))
    assert (grown.rows, grown.root.videos, grown.unit_rows) == (81, 6, store.unit_rows)
    np.testing.assert_array_equal(grown.cls(), old_rows)  # also those of the unit that is not whole any more
    assert pending_units(grown) == [2, 3, 4, 5]
    assert committed_units(grown) == [0, 1, 2]
    assert summarise(grown)["units"] == {"total": 6, "done": 2, "rows": 16}
    report = verify_store(grown.path)
    assert (report.ok, report.failed, report.absent) == (37, 1, 43)
    assert {problem.kind for problem in report.problems} == {"absent"}
    assert not (grown.path / "units" / "summary.json").exists()
    fill(grown)
    assert verify_store(grown.path).passed
    seal(grown)
    after = contents(grown)
    for unit in (0, 1):
        assert after[f"cls/c/{unit}/0"] == before[f"cls/c/{unit}/0"]
    at_once = create_store(tmp_path / "once", merge_plans(first, more), geometry=small_geometry(), encoder=ENCODER)
    fill(at_once)
    once = contents(at_once)
    assert {name for name in after if after[name] != once.get(name)} == {"zarr.json"}  # it names the earlier plan
    assert after.keys() == once.keys()
    plain = zarr.open_group(str(grown.path), mode="r")
    values = np.asarray(plain["cls"][:])  # type: ignore[index]
    good = np.flatnonzero(np.asarray(plain["status"][:]) == Status.OK)  # type: ignore[index]
    np.testing.assert_array_equal(values[good], row_tokens(grown, good)[0].astype(np.float16))


def test_growing_twice(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", small_plan((3,)), geometry=small_geometry(), encoder=ENCODER)
    fill(store)
    for clips in ((2,), (40,)):
        more = further(clips)
        digests = [digest.replace("f", f"{clips[0]:02x}"[-1] + "e") for digest in more.videos.sha256]
        paths = [f"{path}{clips}" for path in more.videos.path]
        more = replace(more, videos=replace(more.videos, path=paths, sha256=digests, source=digests))
        store = grow_store(store, merge_plans(read_plan(store), more))
    assert [plan.rows for plan in store.root.earlier] == [3, 5]
    assert len(store.ok_rows()) == 3
    fill(store)
    assert seal(store) == {"planned": 45, "ok": 45, "failed": 0, "absent": 0}
    assert verify_store(store.path).passed


def test_what_is_there_already_gets_no_new_rows(tmp_path: Path) -> None:
    old = small_plan((4, 0, 2))
    again = replace(old, videos=replace(old.videos, path=["/b/0.mp4", old.videos.path[1], old.videos.path[2]]))
    merged = merge_plans(old, again)
    assert (len(merged.videos), len(merged.clips)) == (3, 7)
    assert [json.loads(text) for text in merged.videos.duplicates] == [["/b/0.mp4"], [], []]
    assert merge_plans(merged, again).plan_id == merged.plan_id
    store = create_store(tmp_path / "s", old, geometry=small_geometry(), encoder=ENCODER)
    fill(store)
    grown = grow_store(store, merged)
    assert pending_units(grown) == []
    assert json.loads(grown.video_column("duplicates")[0]) == ["/b/0.mp4"]
    assert verify_store(grown.path).passed


def test_a_file_that_could_not_be_used_before_gets_rows_when_it_can() -> None:
    old = small_plan((4, 0))
    mended = small_plan((1, 3))
    videos = replace(mended.videos, path=[old.videos.path[0], old.videos.path[1]])
    merged = merge_plans(old, replace(mended, videos=videos))
    assert merged.videos.path == [*old.videos.path, old.videos.path[1]]
    assert merged.clips.video.tolist() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert merged.clips.reason.tolist() == [0, 0, 0, 0, Reason.NO_VIDEO, 0, 0, 0]


def test_plans_that_do_not_fit_together_are_refused(filled: Store) -> None:
    old = small_plan((4, 2))
    other = replace(old.videos, sha256=["a" * 64, "b" * 64])
    with pytest.raises(UsageError, match=r"has other content now \(sha256 aaaaaaaaaaaa"):
        merge_plans(old, replace(old, videos=other))
    with pytest.raises(RecipeMismatch, match=r"tokens: 'full' here, 'cls' in the store"):
        merge_plans(old, further((1,), tokens="full"))
    with pytest.raises(UsageError, match=r"columns none; the new ones have label \(text\)"):
        merge_plans(old, further((1,), columns={"label": ["a"]}))
    with pytest.raises(UsageError, match=r"take \(int64\); the new ones have take \(text\)"):
        merge_plans(small_plan((1,), columns={"take": np.arange(1)}), further((1,), columns={"take": ["a"]}))
    labelled = small_plan((1,), columns={"label": ["a"]})
    relabelled = small_plan((1,), columns={"label": ["b"]})
    with pytest.raises(UsageError, match=r"with label 'a' instead of 'b'"):
        merge_plans(labelled, replace(relabelled, videos=replace(relabelled.videos, path=["/else.mp4"])))
    with pytest.raises(UsageError, match="does not begin with the rows of the store"):
        grow_store(filled, small_plan((30, 40), tokens="full"))


def test_missing_numbers_in_a_column_are_equal() -> None:
    old = small_plan((1,), columns={"age": np.array([np.nan])})
    assert merge_plans(old, old).plan_id == old.plan_id


class Killed(BaseException):
    """Stands for SIGKILL: nothing may be cleaned up after it, and nothing here is."""


@pytest.mark.parametrize("survives", [0, 1, 2, 30, 56, 57, 900])
def test_a_kill_during_growth_leaves_the_old_plan_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    store = create_store(tmp_path / "s", small_plan((20, 0, 17)), geometry=small_geometry(), encoder=ENCODER)
    fill(store)
    rows = store.cls()
    plan = merge_plans(read_plan(store), further((30, 5)))
    left = survives

    def counted(real: Any) -> Any:
        def move(source: Path, target: Path) -> Any:
            nonlocal left
            if "next" in (target.name, *source.parts):
                if left == 0:
                    raise Killed
                left -= 1
            return real(source, target)

        return move

    def die_at_the_end(folder: Path, **options: Any) -> None:
        if folder.name == "next":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", counted(Path.rename))
        patched.setattr(Path, "replace", counted(Path.replace))
        patched.setattr(shutil, "rmtree", die_at_the_end)
        with pytest.raises(Killed):
            grow_store(store, plan)
    if (store.path / "units" / "next").exists():
        with pytest.raises(StoreError, match=r"is being grown, .* Run `coldframe repair`"):
            open_store(store.path)
    finish_growth(store.path)
    opened = open_store(store.path, writable=True)
    assert opened.rows == (38 if survives < 1 else 73)
    np.testing.assert_array_equal(opened.cls(), rows)
    grown = grow_store(opened, plan)
    fill(grown)
    assert verify_store(grown.path).passed
    assert len(grown.ok_rows()) == 72


def test_a_reader_that_was_open_is_told_to_open_again(filled: Store) -> None:
    reader = open_store(filled.path)
    old = read_plan(filled)
    more = further((4,), tokens="full", columns={"label": ["z"], "take": np.arange(1)})
    grow_store(filled, merge_plans(old, more))
    with pytest.raises(StoreError, match=r"has grown since it was opened \(video has 55 entries instead of 51\)"):
        reader.column("video")


def test_a_lock_that_was_waited_for_is_not_one_on_the_old_file(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    real = fcntl.fcntl

    def slow(file: Any, command: int, wanted: bytes) -> None:
        real(file, command, wanted)
        record = filled.path / "units/plan.json"  # grown by another process between opening and locking
        copy = record.with_suffix(".copy")
        shutil.copy(record, copy)
        os.replace(copy, record)

    monkeypatch.setattr(fcntl, "fcntl", slow)
    with pytest.raises(UsageError, match="Another extraction is running"), filled.lock():
        pass


def test_an_altered_plan_is_not_grown(filled: Store) -> None:
    chunk = filled.path / "n_real/c/0"
    body = bytearray(chunk.read_bytes())
    array = zarr.open_array(str(filled.path / "n_real"), mode="r+")
    values = np.asarray(array[:])
    values[3] -= 1
    array[:] = values
    assert len(chunk.read_bytes()) == len(body)
    more = further((4,), tokens="full", columns={"label": ["z"], "take": np.arange(1)})
    with pytest.raises(StoreError, match="has been altered since it was made"):
        grow_store(filled, merge_plans(read_plan(filled), more))


def test_whoever_opened_the_store_before_it_grew_may_not_write_to_it(filled: Store) -> None:
    """A marker of the old plan for the unit that it ended in would undo the rows behind it."""
    part, other = open_store(filled.path, writable=True), open_store(filled.path, writable=True)
    more = further((40,), tokens="full", columns={"label": ["z"], "take": np.arange(1)})
    with filled.lock():
        grown = grow_store(filled, merge_plans(read_plan(filled), more))
    fill(grown)
    for units in (None, range(2, 4)):
        with pytest.raises(StoreError, match="has grown since it was opened"), part.lock(units):
            pytest.fail("a lock on the old plan")
    with pytest.raises(StoreError, match="has grown since it was opened"), other.lock():
        grow_store(other, merge_plans(read_plan(other), more))  # as the second of two appends at once would
    with grown.lock():
        assert pending_units(grown) == []


def test_a_growth_that_another_process_finished_first_is_no_error(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = merge_plans(read_plan(filled), further((4,), tokens="full", columns={"label": ["z"], "take": np.arange(1)}))
    with monkeypatch.context() as patched:
        patched.setattr("coldframe.store.grow._move_in", lambda folder: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            grow_store(filled, plan)
    real = Store.lock

    def slow(store: Store, units: range | None = None) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(Store, "lock", real)
            finish_growth(store.path)
        return real(replace(store, root=open_store(store.path).root), units)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "lock", slow)
        finish_growth(filled.path)
    assert open_store(filled.path).rows == 55
    assert not (filled.path / "units/next").exists()
