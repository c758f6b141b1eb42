"""A committed unit that is written anew is the old one or the new one, whenever the writer is killed."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldframe.errors import ColdframeError, StoreError, UsageError
from coldframe.store import (
    Reason,
    Status,
    Store,
    UnitResult,
    committed_units,
    finish_replacements,
    keep_rows,
    open_store,
    pending_units,
    rows_to_retry,
    seal,
    verify_store,
    write_unit,
)
from tests.store.plans import row_tokens, small_result


def with_failures(store: Store, unit: int, reasons: dict[int, Reason]) -> UnitResult:
    """`small_result` with further failed rows."""
    result = small_result(store, unit)
    for row, reason in reasons.items():
        result.status[row - result.rows.start], result.reason[row - result.rows.start] = Status.FAILED, reason
        result.failures.append({"row": row, "error": "as asked"})
    return result


def taken_over(store: Store, unit: int, retry: tuple[Reason, ...]) -> tuple[list[int], UnitResult]:
    """Rows kept, and what a worker then hands in: what was kept, and `small_result` for the rest."""
    fresh = small_result(store, unit)
    tokens = {name: np.full_like(values, np.nan) for name, values in fresh.tokens.items()}
    status, reason = np.full(len(fresh.rows), Status.FAILED, np.uint8), np.zeros(len(fresh.rows), np.uint8)
    found = keep_rows(store, unit, retry=retry, status=status, reason=reason, tokens=tokens)
    kept, failures = found.rows, found.failures
    rest = np.setdiff1d(np.array(fresh.rows), kept) - fresh.rows.start
    status[rest], reason[rest] = fresh.status[rest], fresh.reason[rest]
    for name, values in fresh.tokens.items():
        tokens[name][rest] = values[rest]
    result = replace(
        fresh, status=status, reason=reason, cls=tokens["cls"], patch=tokens.get("patch"), failures=failures
    )
    return kept.tolist(), result


def test_rows_that_failed_for_the_named_reasons_are_tried_again_and_nothing_else(filled: Store) -> None:
    write_unit(filled, 1, with_failures(filled, 1, {17: Reason.TIMEOUT, 18: Reason.NOT_FOUND, 19: Reason.DECODE_ERROR}))
    assert rows_to_retry(filled, [Reason.TIMEOUT, Reason.NOT_FOUND, Reason.NO_VIDEO]).tolist() == [17, 18]
    others = {unit: (filled.path / f"patch/c/{unit}/0/0/0/0").read_bytes() for unit in (0, 2, 3)}
    kept, result = taken_over(filled, 1, (Reason.TIMEOUT, Reason.NOT_FOUND))
    assert kept == [row for row in range(16, 32) if row not in (17, 18)]
    marker = write_unit(filled, 1, result)
    assert dict(marker.counts) == {"ok": 14, "failed": 2}
    assert [(entry["row"], entry["reason"]) for entry in marker.failures] == [(19, "decode_error"), (21, "no_video")]
    assert marker.failures[0]["error"] == "as asked"
    assert verify_store(filled.path).passed
    good = filled.ok_rows()
    assert len(good) == 49
    cls, patch = row_tokens(filled, good)
    assert patch is not None
    np.testing.assert_array_equal(filled.cls(), cls.astype(np.float16))
    np.testing.assert_array_equal(filled.patch(), patch.astype(np.float16))
    assert others == {unit: (filled.path / f"patch/c/{unit}/0/0/0/0").read_bytes() for unit in others}


def test_nothing_is_kept_of_a_unit_that_is_not_committed(empty: Store) -> None:
    kept, _ = taken_over(empty, 0, ())
    assert kept == []


def test_damage_is_not_taken_over(filled: Store) -> None:
    shard = filled.path / "patch/c/1/0/0/0/0"
    body = bytearray(shard.read_bytes())
    body[100] ^= 1
    shard.write_bytes(body)
    with pytest.raises(StoreError, match=r"patch/c/1/0/0/0/0 is damaged.*coldframe repair"):
        taken_over(filled, 1, ())


class Killed(BaseException):
    """Stands for SIGKILL: what cleans up after errors must not be needed."""


@pytest.mark.parametrize("survives", range(13))
def test_a_kill_while_a_unit_is_replaced_loses_nothing(
    filled: Store, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    write_unit(filled, 1, with_failures(filled, 1, {17: Reason.TIMEOUT}))
    seal(filled)
    _, result = taken_over(filled, 1, (Reason.TIMEOUT,))
    moves = 0
    real = {name: getattr(Path, name) for name in ("replace", "unlink")}

    def counted(name: str) -> Any:
        def move(*arguments: Any, **options: Any) -> Any:
            nonlocal moves
            if moves == survives:
                raise Killed
            moves += 1
            return real[name](*arguments, **options)

        return move

    with monkeypatch.context() as patched:
        for name in real:
            patched.setattr(Path, name, counted(name))
        with pytest.raises(Killed):
            write_unit(filled, 1, result)
    decided = survives >= 5  # four objects and the staged marker
    assert (filled.path / "units/1.next.json").exists() is decided
    reader = open_store(filled.path)
    assert set(committed_units(reader)) >= {0, 2, 3}
    assert len(reader.ok_rows()) in (35, 49)  # without the unit, the old one, or the new one: never a mixture
    finish_replacements(filled.path, range(filled.unit_count))
    store = open_store(filled.path, writable=True)
    assert pending_units(store) == []
    assert verify_store(store.path).passed
    assert len(store.ok_rows()) == (50 if decided else 49)
    np.testing.assert_array_equal(store.cls(), row_tokens(store, store.ok_rows())[0].astype(np.float16))


def test_a_disk_that_refuses_leaves_the_old_unit(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (filled.path / "units/1.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(28, os.strerror(28))))
        with pytest.raises(ColdframeError, match="Free space"):
            write_unit(filled, 1, small_result(filled, 1))
    assert (filled.path / "units/1.json").read_bytes() == before
    assert verify_store(filled.path).passed


def test_a_staged_marker_that_is_damaged_decides_nothing(filled: Store) -> None:
    before = filled.cls()
    staged = filled.path / "units/1.next.json"
    staged.write_bytes((filled.path / "units/1.json").read_bytes()[:-9])
    (filled.path / "cls/c/1/0.next").write_bytes(b"never finished")
    finish_replacements(filled.path, range(filled.unit_count))
    assert not staged.exists()
    np.testing.assert_array_equal(open_store(filled.path).cls(), before)
    write_unit(filled, 1, small_result(filled, 1))
    assert not (filled.path / "cls/c/1/0.next").exists()
    assert verify_store(filled.path).passed


def test_a_replacement_that_was_decided_does_not_come_back_over_a_later_one(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer died in the middle of putting the new objects in place; another writer is given the unit."""
    write_unit(filled, 1, with_failures(filled, 1, {17: Reason.TIMEOUT}))
    _, result = taken_over(filled, 1, (Reason.TIMEOUT,))
    real, moves = Path.replace, 0

    def die(source: Path, target: Path) -> Path:
        nonlocal moves
        moves += "next" in source.name and "partial" not in source.name
        if moves == 3:
            raise Killed
        return real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", die)
        with pytest.raises(Killed):
            write_unit(filled, 1, result)
    store = open_store(filled.path, writable=True)
    assert store.trusted_marker(1) is None
    last = with_failures(store, 1, {30: Reason.TIMEOUT})
    write_unit(store, 1, last)
    finish_replacements(store.path, range(store.unit_count))
    assert verify_store(store.path).passed
    assert not list(store.path.rglob("*.next*"))
    assert np.setdiff1d(np.arange(16, 32), open_store(store.path).ok_rows()).tolist() == [21, 30]


def test_a_store_is_locked_once_also_within_a_process(filled: Store) -> None:
    with filled.lock(range(1, 3)):
        for units in (None, range(1, 3), range(2, 4), range(4)):
            with pytest.raises(UsageError, match="Another extraction is running"), filled.lock(units):
                pytest.fail("locked twice")
        with filled.lock(range(1)), filled.lock(range(3, 4)):
            pass
    with filled.lock(), pytest.raises(UsageError, match="overlaps this part"), filled.lock(range(1)):
        pytest.fail("locked twice")
