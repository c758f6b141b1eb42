"""Opening and reading: finished rows only, in the order asked, or an error that says why not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from coldframe.errors import InputNotFound, StoreError, UsageError
from coldframe.store import Reason, Status, Store, create_store, open_store, write_unit
from tests.store.plans import ENCODER, row_tokens, small_geometry, small_plan, small_result


def test_tokens_come_back_in_the_order_asked(filled: Store) -> None:
    rows = np.array([50, 3, 17, 3, 0, 49])
    cls, patch = row_tokens(filled, rows)
    assert patch is not None
    np.testing.assert_array_equal(filled.cls(rows), cls.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(filled.patch(rows.tolist()), patch.astype(np.float16).astype(np.float32))
    assert filled.cls(rows).dtype == np.float32


def test_by_default_only_ok_rows_come_out(filled: Store) -> None:
    expected = [row for row in range(51) if row != 21]
    assert filled.ok_rows().tolist() == expected
    np.testing.assert_array_equal(filled.cls(), filled.cls(expected))
    assert filled.cls([]).shape == (0, 8)


def test_float32_stores_keep_every_bit(tmp_path: Path) -> None:
    plan = small_plan((5,), dtype="float32")
    store = create_store(tmp_path / "s", plan, geometry=small_geometry(), encoder=ENCODER)
    write_unit(store, 0, small_result(store, 0))
    np.testing.assert_array_equal(store.cls(), row_tokens(store, np.arange(5))[0])


def test_a_failed_row_is_an_error_unless_asked_for(filled: Store) -> None:
    with pytest.raises(StoreError, match=r"Row 21 has no tokens: it is failed, reason no_video\."):
        filled.cls([20, 21])
    values = filled.patch([20, 21, 22], allow_failed=True)
    assert np.isnan(values[1]).all()
    np.testing.assert_array_equal(values[[0, 2]], filled.patch([20, 22]))
    assert filled.column("status")[21] == Status.FAILED
    assert filled.column("reason")[21] == Reason.NO_VIDEO


def test_rows_of_uncommitted_units_are_absent_whatever_lies_on_disk(filled: Store) -> None:
    (filled.path / "units" / "1.json").unlink()
    store = open_store(filled.path)
    assert not set(range(16, 32)) & set(store.ok_rows().tolist())
    assert set(store.column("status")[16:32]) == {Status.ABSENT}
    with pytest.raises(StoreError, match=r"Row 16 \(and 1 more.*absent: its unit is not committed"):
        store.cls([3, 16, 17])
    assert np.isnan(store.cls([16], allow_failed=True)).all()


def test_what_was_written_since_the_first_read_shows_after_a_refresh(empty: Store) -> None:
    reader = open_store(empty.path)
    assert len(reader.ok_rows()) == 0
    write_unit(empty, 0, small_result(empty, 0))
    assert len(reader.ok_rows()) == 0
    reader.refresh()
    assert len(reader.ok_rows()) == 16
    assert len(empty.ok_rows()) == 16  # the writer's own view follows by itself


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([-1], "Row -1 does not exist; allowed is 0 to 50"),
        ([51], "Row 51 does not exist"),
        ([0.5], "whole numbers"),
        ([[0, 1]], r"shape \(1, 2\)"),
        (np.ones(51, bool), "flatnonzero"),
    ],
)
def test_rows_that_make_no_sense_are_refused(filled: Store, rows: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        filled.cls(rows)


def test_columns_that_do_not_exist_are_named(filled: Store) -> None:
    with pytest.raises(UsageError, match=r"no clip array 'cls'.*read with cls\(\)"):
        filled.column("cls")
    with pytest.raises(UsageError, match=r"no video column 'colour'; there are .*label"):
        filled.video_column("colour")
    with pytest.raises(UsageError, match="Unit 4 does not exist"):
        filled.unit_range(4)


def test_a_tier_without_patches_says_so(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", small_plan(), geometry=small_geometry(), encoder=ENCODER)
    with pytest.raises(UsageError, match="its token tier is 'cls'"):
        store.patch([0])


@pytest.mark.parametrize("batch_rows", [1, 7, 64])
def test_batches_cover_the_ok_rows_once(filled: Store, batch_rows: int) -> None:
    batches = list(filled.iter_tokens("patch", batch_rows=batch_rows))
    assert np.concatenate([rows for rows, _ in batches]).tolist() == filled.ok_rows().tolist()
    np.testing.assert_array_equal(np.concatenate([tokens for _, tokens in batches]), filled.patch())
    assert max(len(rows) for rows, _ in batches) <= batch_rows


def test_damage_under_a_valid_marker_is_an_error_not_a_value(filled: Store) -> None:
    shard = filled.path / "patch" / "c" / "2" / "0" / "0" / "0" / "0"
    body = bytearray(shard.read_bytes())
    body[100] ^= 4
    shard.write_bytes(body)
    store = open_store(filled.path)
    with pytest.raises(StoreError, match=r"patch/c/2/0/0/0/0 is damaged.*coldframe repair"):
        store.patch()
    assert np.isfinite(store.patch(np.arange(16))).all()


@pytest.mark.parametrize("damage", ["delete", "empty", "half"])
def test_a_plan_that_lost_an_object_does_not_open(filled: Store, damage: str) -> None:
    chunk = filled.path / "video" / "c" / "0"  # plain zarr would read zeros: every row from video 0
    body = chunk.read_bytes()
    chunk.unlink() if damage == "delete" else chunk.write_bytes(body[: 0 if damage == "empty" else len(body) // 2])
    with pytest.raises(StoreError, match="cannot be trusted: video/c/0: the object"):
        open_store(filled.path)


def test_a_flipped_bit_in_the_plan_is_an_error_at_reading(filled: Store) -> None:
    chunk = filled.path / "video" / "c" / "0"
    body = bytearray(chunk.read_bytes())
    body[0] ^= 1
    chunk.write_bytes(body)
    with pytest.raises(StoreError, match=r"plan array video .* is damaged"):
        open_store(filled.path).column("video")


def test_altered_root_attributes_do_not_open(filled: Store) -> None:
    path = filled.path / "zarr.json"
    text = path.read_text()
    path.write_text(text.replace('"untrained": true', '"untrained": false'))
    with pytest.raises(StoreError, match="root attributes are not those"):
        open_store(filled.path)
    path.write_text(text.replace('"fps": 7.5', '"fps": 8.0'))
    with pytest.raises(StoreError, match=r"altered or cut short.*recipe_id"):
        open_store(filled.path)
    path.write_text(text.replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(StoreError, match="format version 2; this program reads version 1"):
        open_store(filled.path)


def test_consolidating_metadata_does_not_hurt(filled: Store) -> None:
    with pytest.warns(UserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(str(filled.path))
    assert len(open_store(filled.path).ok_rows()) == 50


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.write_text("x"), "it is a file"),
        (lambda p: p.mkdir(), "folder with 0 entries and no zarr.json"),
        (lambda p: zarr.create_group(str(p)), "Zarr group made by another program"),
        (lambda p: zarr.create_array(str(p), shape=(1,), dtype="i4"), "a Zarr array"),
        (lambda p: (p.mkdir(), (p / "zarr.json").write_text("{")), "zarr.json cannot be read"),
        (lambda p: (p.mkdir(), (p / "zarr.json").write_text("[]")), "zarr.json cannot be read"),
    ],
)
def test_other_things_are_not_stores(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "s")
    with pytest.raises(UsageError, match=message):
        open_store(tmp_path / "s")


def test_a_missing_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match=r"There is no store at .*nothing\.zarr"):
        open_store(tmp_path / "nothing.zarr")


def test_a_moved_store_opens(filled: Store, tmp_path: Path) -> None:
    shutil.move(filled.path, tmp_path / "elsewhere")
    assert len(open_store(tmp_path / "elsewhere").cls()) == 50


def test_only_one_holds_the_lock(filled: Store) -> None:
    other = f"from coldframe.store import open_store\nwith open_store({str(filled.path)!r}).lock(): print('held')"
    with filled.lock():
        with (
            pytest.raises(UsageError, match="Another extraction is running on"),
            open_store(filled.path).lock(),
        ):
            pass
        run = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
        assert "Another extraction is running on" in run.stderr
    run = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
    assert run.stdout == "held\n"


def test_root_attributes_hold_no_time_host_or_path(filled: Store) -> None:
    fields = json.loads((filled.path / "zarr.json").read_text())["attributes"]["coldframe"]
    assert sorted(fields) == [
        "created_by",
        "encoder",
        "format_version",
        "geometry",
        "plan_id",
        "recipe",
        "recipe_id",
        "rows",
        "unit_rows",
        "videos",
    ]


def test_large_rows_that_are_chunks_of_their_own(tmp_path: Path) -> None:
    geometry = small_geometry("full", dim=128, time=4, side=16)
    assert geometry.row_bytes("float16") > 256 * 1024
    store = create_store(tmp_path / "s", small_plan((5,), tokens="full"), geometry=geometry, encoder=ENCODER)
    assert store.unit_arrays["patch"].chunk_rows == 1
    write_unit(store, 0, small_result(store, 0))
    rows = np.array([4, 1, 4, 0])
    cls, patch = row_tokens(store, rows)
    assert patch is not None
    np.testing.assert_array_equal(store.patch(rows), patch.astype(np.float16))
    np.testing.assert_array_equal(store.cls(rows), cls.astype(np.float16))
    plain = zarr.open_array(str(store.path / "patch"), mode="r")
    np.testing.assert_array_equal(np.asarray(plain[4]).astype(np.float32), store.patch([4])[0])


@pytest.mark.parametrize("side", [4, 16])  # 16 rows a chunk, and one of 1 MB alone
def test_stored_tokens_are_written_to_their_places(tmp_path: Path, side: int) -> None:
    plan = small_plan((20,), tokens="full")
    store = create_store(tmp_path / "s", plan, geometry=small_geometry("full", dim=512, side=side), encoder=ENCODER)
    for unit in range(store.unit_count):
        write_unit(store, unit, small_result(store, unit))
    assert (store.unit_arrays["patch"].chunk_rows == 1) == (side == 16)
    rows = np.array([17, 3, 3, 0])
    block = np.zeros((4, 1 + 4 * side * side, 512), np.float16)
    rooms = [one[1:].reshape(4, side, side, 512) for one in block]
    store.stored_into("patch", rows, rooms)
    np.testing.assert_array_equal(np.stack(rooms), store.stored("patch", rows))
    assert not block[:, 0].any()
    with pytest.raises(UsageError, match=r"no array 'patch_l3' of tokens; it has patch, cls\."):
        store.stored_into("patch_l3", rows, rooms)


def test_a_failed_row_is_not_written_anywhere(filled: Store) -> None:
    rooms = list(np.zeros((2, 4, 4, 4, 8), np.float16))
    with pytest.raises(StoreError, match="Row 21 has no tokens: it is failed"):
        filled.stored_into("patch", [20, 21], rooms)
    assert not np.any(rooms)
