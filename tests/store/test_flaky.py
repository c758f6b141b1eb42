"""Storage that fails and storage that lies: whatever it does, no row is lost without being missed."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldframe.errors import ColdframeError, StoreError
from coldframe.store import (
    Store,
    committed_units,
    create_store,
    finish_replacements,
    open_store,
    pending_units,
    seal,
    verify_store,
    write_unit,
)
from tests.store.plans import ENCODER, row_tokens, small_geometry, small_plan, small_result

UNITS = 60


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return create_store(tmp_path / "s", small_plan((16 * UNITS,)), geometry=small_geometry(), encoder=ENCODER)


def fails(real: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if chance.random() < 0.1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments)

    return call


def writes_nothing(real: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    def call(file: int, data: memoryview) -> int:
        return len(data) if chance.random() < 0.02 else int(real(file, data))

    return call


def keeps_half(real: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    """A flush that reports success; half of the file is gone."""

    def call(file: int) -> None:
        size = os.fstat(file).st_size
        if chance.random() < 0.02 and os.path.isfile(f"/proc/self/fd/{file}"):
            os.truncate(f"/proc/self/fd/{file}", size // 2)
        real(file)

    return call


def moves_nothing(real: Callable[..., Any], chance: random.Random) -> Callable[..., Any]:
    def call(source: Path, target: Path) -> None:
        if chance.random() >= 0.02:
            real(source, target)

    return call


def write_what_is_pending(store: Store) -> tuple[list[int], int]:
    """Units whose writing was reported as done, and how many were not."""
    done, refused = [], 0
    finish_replacements(store.path, range(store.unit_count))
    for unit in pending_units(store):
        try:
            write_unit(store, unit, small_result(store, unit))
            done.append(unit)
        except ColdframeError:
            refused += 1
    return done, refused


FLAWS = {
    "write fails": ("write", fails),
    "fsync fails": ("fsync", fails),
    "rename fails": ("replace", fails),
    "write does nothing": ("write", writes_nothing),
    "half is kept": ("fsync", keeps_half),
    "rename does nothing": ("replace", moves_nothing),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_no_row_is_lost_without_being_missed(store: Store, monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    name, make = FLAWS[flaw]
    with monkeypatch.context() as patched:
        patched.setattr(os, name, make(getattr(os, name), random.Random(3)))
        done, refused = write_what_is_pending(store)
    lost = [unit for unit in range(UNITS) if not is_right(store, unit)]
    assert lost  # or this disk had no flaw
    assert set(lost) <= set(pending_units(store))
    with pytest.raises(StoreError, match="is not complete"):
        seal(store)
    assert refused + len(set(done) & set(lost)) >= len(lost)
    attempts = 0
    while pending_units(store):
        attempts += 1
        assert attempts < 20
        with monkeypatch.context() as patched:
            patched.setattr(os, name, make(getattr(os, name), random.Random(attempts)))
            write_what_is_pending(store)
    seal(store)
    assert verify_store(store.path).passed
    np.testing.assert_array_equal(store.cls(), row_tokens(store, np.arange(store.rows))[0].astype(np.float16))


def is_right(store: Store, unit: int) -> bool:
    reader = open_store(store.path)
    if unit not in committed_units(reader):
        return False
    rows = np.array(reader.unit_range(unit))
    return np.array_equal(reader.cls(rows), row_tokens(reader, rows)[0].astype(np.float16))


def test_a_disk_that_loses_bytes_after_it_gave_them_back_is_found_by_verification(store: Store) -> None:
    """Nothing that a running program reads back shows this: the right bytes are still in the page cache."""
    write_what_is_pending(store)
    seal(store)
    rotten = random.Random(0).sample(range(UNITS), 2)
    for unit in rotten:
        place = store.path / f"cls/c/{unit}/0"
        place.write_bytes(bytes(place.stat().st_size))
    assert pending_units(open_store(store.path)) == []  # sizes are right
    assert verify_store(store.path, deep=False).passed
    assert verify_store(store.path).damaged_units == tuple(sorted(rotten))
    with pytest.raises(StoreError, match=r"is damaged.*coldframe repair"):
        open_store(store.path).cls()


def test_a_marker_that_was_not_kept_is_an_error_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def loses_markers(source: Path, target: Path) -> None:
        if os.fspath(target).endswith("0.json"):
            Path(target).write_bytes(b"{")
        else:
            real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", loses_markers)
        with pytest.raises(StoreError, match=r"0\.json does not hold what was just written to it"):
            write_unit(store, 0, small_result(store, 0))
    assert 0 in pending_units(store)
