"""Every row once an epoch, in an order that only the seed decides, within the stated memory."""

import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.errors import StoreError, UsageError
from coldframe.probes.loader import TokenLoader
from coldframe.probes.token_view import TokenView, token_mask
from coldframe.store import Store, create_store, open_store, write_unit
from coldframe.store.schema import Tokens
from tests.store.plans import ENCODER, row_tokens, small_geometry, small_plan, small_result

ROW_BYTES = 2 * 8 * 65  # float16, as stored


def write(path: Path, tokens: Tokens = "full", videos: Sequence[int] = (20, 1, 0, 17, 12), **geometry: int) -> Store:
    plan = small_plan(videos, tokens=tokens)
    n_real = plan.clips.n_real.copy()
    n_real[n_real > 0] = 1 + np.arange(np.count_nonzero(n_real)) % 4
    plan = replace(plan, clips=replace(plan.clips, n_real=n_real))
    store = create_store(path, plan, geometry=small_geometry(tokens, **geometry), encoder=ENCODER)
    for unit in range(store.unit_count):
        write_unit(store, unit, small_result(store, unit))
    return open_store(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write(tmp_path_factory.mktemp("loader") / "S.zarr")


def loader(store: Store, rows: NDArray[np.int64] | None = None, **options: object) -> TokenLoader:
    given = {"view": TokenView(cls=True), "batch_rows": 4, "memory_bytes": 40 * ROW_BYTES, "seed": 0, **options}
    return TokenLoader(store=store, rows=store.ok_rows() if rows is None else rows, **given)  # type: ignore[arg-type]


def order(loader: TokenLoader, epoch: int = 0) -> list[int]:
    return [row for batch in loader.epoch(epoch) for row in batch.rows.tolist()]


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_every_row_comes_once_with_its_own_tokens(store: Store, seed: int | None) -> None:
    seen: list[int] = []
    for batch in loader(store, seed=seed).epoch():
        cls, patch = row_tokens(store, batch.rows)
        assert patch is not None
        tokens = np.concatenate([cls[:, None], patch.reshape(len(cls), -1, 8)], axis=1)
        np.testing.assert_array_equal(batch.maps[0], tokens.astype(np.float16).astype(np.float32))
        np.testing.assert_array_equal(batch.mask, token_mask(store, batch.rows, TokenView(cls=True)))
        seen += batch.rows.tolist()
    assert sorted(seen) == store.ok_rows().tolist()
    assert (seen == sorted(seen)) == (seed is None)


def test_only_the_rows_asked_for_are_read_however_often_they_are_named(store: Store) -> None:
    rows = store.ok_rows()[[30, 2, 2, 41, 7]]
    assert sorted(order(loader(store, rows))) == sorted(set(rows.tolist()))


def test_order_is_decided_by_seed_and_epoch_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = order(loader(store))
    assert order(loader(store), 1) != first
    assert order(loader(store, seed=1)) != first
    read = Store.stored_into

    def slowly(self: Store, *given: Any) -> None:
        time.sleep(0.002)
        read(self, *given)

    monkeypatch.setattr(Store, "stored_into", slowly)
    assert order(loader(store)) == first


def test_batches_mix_shards(store: Store) -> None:
    assert store.unit_count > 2
    units = [
        np.unique(batch.rows // store.unit_rows)
        for batch in loader(store, memory_bytes=60 * ROW_BYTES, batch_rows=8).epoch()
    ]
    assert np.mean([len(found) for found in units]) > 1.5


def test_padding_is_masked_and_cls_is_not(store: Store) -> None:
    rows = store.ok_rows()[:4]
    np.testing.assert_array_equal(store.column("n_real")[rows], [1, 2, 3, 4])
    mask = token_mask(store, rows, TokenView(cls=True))
    np.testing.assert_array_equal(mask.sum(axis=1), 1 + 16 * np.array([1, 2, 3, 4]))
    assert mask[:, 0].all()
    np.testing.assert_array_equal(token_mask(store, rows, TokenView()), mask[:, 1:])
    np.testing.assert_array_equal(np.unique(TokenView(cls=True).time_of_tokens(store)), [-1, 0, 1, 2, 3])


def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    bound, peaks = 900_000, []  # three open batches, which is less than a quarter of either epoch
    for videos in (60, 240):
        path = tmp_path / f"{videos}.zarr"
        store = write(path, videos=[1] * videos, dim=64, side=8)  # 33 kB a row
        store.ok_rows(), store.column("n_real")
        made = loader(store, memory_bytes=bound)
        tracemalloc.start()
        count = sum(len(batch.rows) for batch in made.epoch())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count == videos
    assert max(peaks) < bound + 3 * 16 * 66_000  # and the store's own buffers: a chunk for each of two reads
    assert peaks[1] - peaks[0] < 0.2 * (240 - 60) * 33_000  # buffers come and go at chance


def test_too_little_memory_is_refused_with_what_is_needed(store: Store) -> None:
    with pytest.raises(UsageError, match=r"may use 1000 bytes; batches of 4 rows need \d+"):
        loader(store, memory_bytes=1000)


def test_a_damaged_row_stops_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write(tmp_path / "S.zarr")
    read = Store.stored_into

    def damaged(self: Store, array: str, rows: NDArray[np.int64], rooms: Sequence[NDArray[Any]]) -> None:
        read(self, array, rows, rooms)
        for room in (room for row, room in zip(rows, rooms, strict=True) if row == 7):
            room[0, 1, 1, 3] = np.inf

    monkeypatch.setattr(Store, "stored_into", damaged)
    with pytest.raises(StoreError, match=r"row 7 is marked ok but its tokens hold inf or nan"):
        order(loader(store))


def test_leaving_early_ends_the_reading_thread(store: Store) -> None:
    epoch = loader(store).epoch()
    next(epoch)
    epoch.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("token-loader")]


@pytest.mark.parametrize("yields", [True, False])
def test_reading_yields_if_asked_to_and_nobody_else_does(
    store: Store, monkeypatch: pytest.MonkeyPatch, yields: bool
) -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    read, found = Store.stored_into, set()

    def looking(self: Store, *given: Any) -> None:
        found.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        read(self, *given)

    monkeypatch.setattr(Store, "stored_into", looking)
    order(loader(store, yields=yields))
    assert found == {max(before, 14) if yields and sys.platform == "linux" else before}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_rate_counts_stored_bytes(store: Store) -> None:
    made = loader(store)
    assert made.rate.to_dict()["rows_per_s"] is None
    order(made)
    assert made.rate.rows == len(store.ok_rows())
    assert made.rate.stored_bytes == made.rate.rows * ROW_BYTES
    assert 0 < made.rate.waited_seconds <= made.rate.seconds
    assert made.rate.to_dict()["rows_per_s"] == pytest.approx(made.rate.rows / made.rate.seconds)


def test_a_store_without_the_tokens_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"reads the layers 3, 4, 5 .* the store keeps none\. Export"):
        loader(store, view=TokenView(layers=(3, 4, 5)))
    with pytest.raises(UsageError, match="token tier is 'cls'"):
        loader(write(tmp_path / "cls.zarr", "cls"))


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("loader_int8") / "S.zarr"
    plan = small_plan(tokens="full", dtype="int8")
    made = create_store(path, plan, geometry=small_geometry("full"), encoder=ENCODER)
    for unit in range(made.unit_count):
        write_unit(made, unit, small_result(made, unit))
    return open_store(path)


INT8_ROW_BYTES = 64 * (8 + 4) + 2 * 8


@pytest.mark.parametrize("seed", [None, 0])
def test_int8_tokens_come_as_the_floats_that_the_store_gives(int8: Store, seed: int | None) -> None:
    made = loader(int8, seed=seed, memory_bytes=60_000)
    seen: list[int] = []
    for batch in made.epoch():
        assert batch.maps[0].dtype == np.float32
        np.testing.assert_array_equal(batch.maps[0][:, 1:], int8.patch(batch.rows).reshape(len(batch.rows), 64, 8))
        np.testing.assert_array_equal(batch.maps[0][:, 0], int8.cls(batch.rows))
        seen += batch.rows.tolist()
    assert sorted(seen) == int8.ok_rows().tolist()
    assert made.rate.stored_bytes == 50 * INT8_ROW_BYTES


def test_int8_rows_wait_as_they_are_stored(int8: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loader(int8, memory_bytes=60_000)
    # float32 batches of 4 rows: one in the queue, two in hand, one that is made
    assert made.open_batches == (60_000 - 4 * 4 * 4 * 8 * 65) // (4 * INT8_ROW_BYTES)
    monkeypatch.setattr(Store, "patch", None)  # nothing is made float before its batch is whole
    assert sorted(order(made)) == int8.ok_rows().tolist()


def test_a_damaged_scale_stops_the_epoch(int8: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Store.stored_into

    def damaged(self: Store, array: str, rows: NDArray[np.int64], rooms: Sequence[NDArray[Any]]) -> None:
        read(self, array, rows, rooms)
        for room in (room for row, room in zip(rows, rooms, strict=True) if row == 7 and array == "patch_scale"):
            room[0, 1, 1] = np.nan

    monkeypatch.setattr(Store, "stored_into", damaged)
    with pytest.raises(StoreError, match=r"row 7 is marked ok but its tokens hold inf or nan"):
        order(loader(int8, memory_bytes=60_000))
