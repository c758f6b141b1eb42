"""One holder at a time on an object store, a dead one's lease is taken over, and a lost one stops the work."""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from coldframe.errors import ColdframeError, StoreError, UsageError
from coldframe.store import lease as module
from coldframe.store.lease import held_lease
from coldframe.store.object_path import ObjectPath
from tests.store.s3 import BUCKET, FrontDoor, s3_server

LEASE = ObjectPath(BUCKET, "s.zarr/units/lease.json")


@pytest.fixture(autouse=True)
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontDoor]:
    monkeypatch.setattr(module, "LEASE_SECONDS", 1.0)
    with s3_server(monkeypatch) as server:
        yield server


def test_a_second_holder_is_refused_and_told_who_holds_it() -> None:
    with held_lease(LEASE):
        holder = json.loads(LEASE.read_bytes())
        who = f"process {holder['process']} on {holder['host']}"
        with (
            pytest.raises(UsageError, match=f"Another extraction is running on s3://features/s.zarr .{who}"),
            held_lease(LEASE),
        ):
            pytest.fail("held twice")
    assert LEASE.size() is None
    with held_lease(LEASE):
        pass


def test_a_lease_that_nobody_renews_is_taken_over_after_its_time() -> None:
    LEASE.put(b'{"holder": "dead"}')
    started = time.monotonic()
    with held_lease(LEASE):
        assert time.monotonic() - started >= 1.0
        assert b"dead" not in LEASE.read_bytes()


def test_a_lease_is_renewed_for_as_long_as_it_is_held() -> None:
    with held_lease(LEASE):
        first = json.loads(LEASE.read_bytes())["renewal"]
        time.sleep(0.7)
        assert json.loads(LEASE.read_bytes())["renewal"] >= first + 2


@pytest.mark.parametrize("interrupts", [signal.default_int_handler, signal.SIG_IGN])
def test_whoever_loses_the_lease_is_stopped(interrupts: Any) -> None:
    """SIGINT is ignored in background jobs of a script."""

    def work() -> None:
        with held_lease(LEASE):
            LEASE.put(b'{"holder": "another"}')
            time.sleep(5)

    others, before = signal.getsignal(signal.SIGUSR2), signal.signal(signal.SIGINT, interrupts)
    started = time.monotonic()
    try:
        with pytest.raises(ColdframeError, match=r"The lease on .* was lost"):
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - started < 4
    assert LEASE.read_bytes() == b'{"holder": "another"}'  # not ours to remove
    assert signal.getsignal(signal.SIGUSR2) == others


def test_a_loss_that_comes_too_late_to_stop_the_work_is_no_success() -> None:
    def work() -> None:
        with held_lease(LEASE):
            LEASE.put(b'{"holder": "another"}')
            with suppress(KeyboardInterrupt):  # as code does that must not be left half-way
                time.sleep(5)

    with pytest.raises(ColdframeError, match=r"The lease on .* was lost"):
        work()


def test_a_thread_that_cannot_be_stopped_leaves_no_lease() -> None:
    def work() -> None:
        with pytest.raises(UsageError, match="from the main thread only"), held_lease(LEASE):
            pytest.fail("held by a thread")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert LEASE.size() is None


def test_a_store_that_ignores_conditions_cannot_be_used(door: FrontDoor) -> None:
    door.ignore_conditions = True
    with pytest.raises(StoreError, match=r"ignores conditional writes \(If-None-Match\)"), held_lease(LEASE):
        pytest.fail("held without excluding anybody")


def test_a_lease_that_was_acknowledged_and_not_kept_is_asked_for_again(door: FrontDoor) -> None:
    door.lie_next = 2
    with held_lease(LEASE):
        assert door.lied == 2
        assert LEASE.size()
