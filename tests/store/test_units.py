"""A unit is written whole, accounts for every row, and is committed last."""

import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from coldframe.errors import ColdframeError, StoreError, UsageError
from coldframe.store import (
    Reason,
    Store,
    TokenGeometry,
    UnitResult,
    committed_units,
    create_store,
    discard_units,
    open_store,
    pending_units,
    seal,
    verify_store,
    write_unit,
)
from coldframe.store.files import sha256_file
from coldframe.store.schema import Tokens
from coldframe.store.units import usable_rows
from tests.store.plans import ENCODER, row_tokens, small_geometry, small_plan, small_result

SHARD = "patch/c/1/0/0/0/0"


def test_the_marker_says_what_lies_on_disk(filled: Store) -> None:
    marker = json.loads((filled.path / "units" / "1.json").read_text())
    assert marker["rows"] == [16, 32]
    assert marker["counts"] == {"ok": 15, "failed": 1}
    assert sorted(marker["objects"]) == ["cls/c/1/0", SHARD, "reason/c/1", "status/c/1"]
    for key, written in marker["objects"].items():
        assert sha256_file(filled.path / key).to_dict() == written
    path = filled.video_column("path")[2]
    reason = "no_video"
    assert marker["failures"] == [{"row": 21, "video": 2, "path": path, "reason": reason, "error": "only audio"}]
    assert marker["seconds"] == {"encode": 0.5}
    assert marker["provenance"] == {"runtime": "none"}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("array", ["cls", "patch"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 65520.0, 0.0])
def test_rows_that_cannot_be_stored_become_failed(tmp_path: Path, dtype: Any, array: str, value: float) -> None:
    plan = small_plan((20,), tokens="full", dtype=dtype)
    store = create_store(tmp_path / "s", plan, geometry=small_geometry("full"), encoder=ENCODER)
    result = small_result(store, 0)
    tokens = getattr(result, array)
    if value == 0.0:
        tokens[5] = 0  # a vector without direction
    else:
        tokens[5].flat[3] = value
    marker = write_unit(store, 0, result)
    fits = dtype == "float32" and value == 65520.0  # the smallest number that float16 rounds to infinity
    assert dict(marker.counts) == ({"ok": 16, "failed": 0} if fits else {"ok": 15, "failed": 1})
    assert (store.column("reason")[5] == Reason.NON_FINITE) is not fits
    for name in ("cls", "patch"):
        stored = getattr(store, name)(np.arange(16), allow_failed=True)
        assert np.isnan(stored[5]).all() is np.bool_(not fits)
        assert np.isfinite(np.delete(stored, 5, axis=0)).all()
    if not fits:
        assert marker.failures[0]["reason"] == "non_finite"
        assert "after the cast" in marker.failures[0]["error"]
    write_unit(store, 1, small_result(store, 1))
    assert verify_store(store.path).passed


def test_the_largest_float16_is_kept(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", small_plan((16,)), geometry=small_geometry(), encoder=ENCODER)
    result = small_result(store, 0)
    result.tokens["cls"][0, 0], result.tokens["cls"][1, 0] = 65519.0, 1e-9
    assert dict(write_unit(store, 0, result).counts) == {"ok": 16, "failed": 0}
    assert store.cls([0])[0, 0] == 65504.0


def test_usable_rows_agrees_with_isfinite() -> None:
    values = np.random.default_rng(0).standard_normal((200, 7)).astype(np.float32)
    values[np.random.default_rng(1).random(values.shape) < 0.05] = np.nan
    values[3], values[4], values[5, 0], values[6] = 0.0, -0.0, -np.inf, 1e-45
    for dtype in (np.float16, np.float32):
        stored = values.astype(dtype)
        expected = np.isfinite(stored).all(axis=1) & (stored != 0).any(axis=1)
        np.testing.assert_array_equal(usable_rows(stored), expected)


def test_failed_rows_are_nan_whatever_the_worker_left_there(empty: Store) -> None:
    result = small_result(empty, 1)
    assert np.isfinite(result.tokens["cls"][5]).all()  # row 21 carries numbers, and is failed
    write_unit(empty, 1, result)
    assert np.isnan(empty.cls([21], allow_failed=True)).all()
    assert np.isnan(empty.patch([21], allow_failed=True)).all()


def test_float16_results_are_taken_as_they_are(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", small_plan((16,)), geometry=small_geometry(), encoder=ENCODER)
    result = small_result(store, 0)
    write_unit(store, 0, dataclasses.replace(result, cls=result.tokens["cls"].astype(np.float16)))
    np.testing.assert_array_equal(store.cls(), row_tokens(store, np.arange(16))[0].astype(np.float16))


def _with(store: Store, **changes: Any) -> Any:
    return dataclasses.replace(small_result(store, 0), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": range(16, 32)}, r"rows range\(16, 32\), but unit 0 has range\(0, 16\)"),
        ({"cls": np.ones((16, 9), np.float32)}, "has the shapes"),
        ({"patch": None}, "has the shapes"),
        ({"cls": np.ones((16, 8))}, "cls is float64; allowed are float32 and float16"),
        ({"status": np.zeros(16, np.uint8)}, "Row 0 is neither ok nor failed"),
        ({"status": np.full(16, 2, np.uint8)}, "Row 0 has status FAILED and reason 0"),
        ({"reason": np.full(16, 7, np.uint8)}, "Row 0 has status OK and reason 7"),
        ({"failures": [{"row": 3}]}, r"failures lists the rows \[3\]"),
        ({"seconds": {"encode": float("nan")}}, "cannot be written as JSON"),
        ({"provenance": {"x": object()}}, "cannot be written as JSON"),
    ],
)
def test_results_that_do_not_fit_are_refused(empty: Store, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        write_unit(empty, 0, _with(empty, **changes))
    assert pending_units(empty) == [0, 1, 2, 3]
    assert not (empty.path / "cls" / "c").exists()


def test_unknown_reason_codes_are_refused(empty: Store) -> None:
    status, reason = np.full(16, 2, np.uint8), np.full(16, 200, np.uint8)
    with pytest.raises(StoreError, match="reason 200"):
        write_unit(empty, 0, _with(empty, status=status, reason=reason))


def test_a_reader_cannot_write(filled: Store) -> None:
    reader = open_store(filled.path)
    with pytest.raises(UsageError, match="writable=True"):
        write_unit(reader, 0, small_result(reader, 0))
    with pytest.raises(UsageError, match="writable=True"):
        discard_units(reader, [0])


@pytest.mark.parametrize("damage", ["no data", "empty", "half", "no marker", "broken marker", "edited marker"])
def test_existence_is_never_taken_as_done(filled: Store, damage: str) -> None:
    shard, marker = filled.path / SHARD, filled.path / "units" / "1.json"
    body = shard.read_bytes()
    if damage == "no data":
        shard.unlink()
    elif damage in ("empty", "half"):
        shard.write_bytes(body[: 0 if damage == "empty" else len(body) // 2])
    elif damage == "no marker":
        marker.unlink()
    else:
        text = marker.read_text()
        marker.write_text(text[:100] if damage == "broken marker" else text.replace('"ok":15', '"ok":16'))
    assert pending_units(filled) == [1]
    assert committed_units(filled) == [0, 2, 3]
    write_unit(filled, 1, small_result(filled, 1))
    assert pending_units(filled) == []
    assert shard.read_bytes() == body
    assert verify_store(filled.path).passed


@pytest.mark.parametrize("foreign", [{"recipe_id": "0"}, {"plan_id": "0"}, {"unit": 2}, {"rows": [0, 16]}])
def test_a_marker_of_something_else_does_not_commit(filled: Store, foreign: dict[str, Any]) -> None:
    from coldframe.store.markers import read_sealed_json, write_sealed_json

    path = filled.path / "units" / "1.json"
    write_sealed_json(path, {**read_sealed_json(path), **foreign})
    assert pending_units(filled) == [1]


def test_discarded_units_are_pending_and_unseal_the_store(filled: Store) -> None:
    seal(filled)
    discard_units(filled, [0, 3])
    assert pending_units(filled) == [0, 3]
    assert len(filled.ok_rows()) == 31
    assert not (filled.path / "units" / "summary.json").exists()
    assert not (filled.path / "units" / "failures.jsonl").exists()


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.ENOSPC, "Free space"), (errno.EROFS, "read-only"), (errno.EACCES, "permissions")],
)
@pytest.mark.parametrize(
    ("call", "number"),
    [("write", 1), ("write", 2), ("write", 6), ("fsync", 1), ("fsync", 2), ("fsync", 5), ("replace", 2)],
)
def test_a_disk_that_refuses_commits_nothing(
    filled: Store, monkeypatch: pytest.MonkeyPatch, code: int, advice: str, call: str, number: int
) -> None:
    discard_units(filled, [1])
    real, calls = getattr(os, call), [0]

    def refuse(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] >= number:
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(ColdframeError, match=rf"Cannot write unit 1 to .*s\.zarr: .*{advice}"):
            write_unit(filled, 1, small_result(filled, 1))
    assert pending_units(filled) == [1]
    assert not list(filled.path.rglob("*.partial"))
    write_unit(filled, 1, small_result(filled, 1))
    assert verify_store(filled.path).passed


# --- further layers, and no [CLS] --------------------------------------------------------------


def layered_store(path: Path, *, has_cls: bool = True, tokens: Tokens = "full") -> Store:
    plan = small_plan((20,), tokens=tokens)
    plan = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, layers=(2, 5)))
    geometry = TokenGeometry.for_tier(tokens, dim=8, time=4, rows=2, cols=2, has_cls=has_cls, layers=(2, 5))
    return create_store(path, plan, geometry=geometry, encoder=ENCODER)


def layered_result(store: Store, unit: int) -> UnitResult:
    result = small_result(store, unit)
    assert isinstance(result.patch, np.ndarray)
    layers = {2: result.patch * 2, 5: result.patch * -1}
    return dataclasses.replace(result, layers=layers, cls=result.cls if store.geometry.has_cls else None)


def test_layers_are_stored_beside_the_output(tmp_path: Path) -> None:
    store = layered_store(tmp_path / "s")
    for unit in range(store.unit_count):
        write_unit(store, unit, layered_result(store, unit))
    assert verify_store(store.path).passed
    rows = np.array([17, 3])
    expected = store.patch(rows)
    given = row_tokens(store, rows)[1]
    assert given is not None
    np.testing.assert_array_equal(store.patch(rows, layer=2), (given * 2).astype(np.float16))
    np.testing.assert_array_equal(store.patch(rows, layer=5), -expected)
    ((_, first),) = store.iter_tokens("patch_l5", rows, batch_rows=9)
    np.testing.assert_array_equal(first, -expected)
    group = zarr.open_group(str(store.path), mode="r")
    assert {"patch", "patch_l2", "patch_l5", "cls"} <= set(dict(group.arrays()))
    with pytest.raises(UsageError, match=r"keeps no patch_l4; it keeps the layers \[2, 5\]"):
        store.patch(rows, layer=4)


@pytest.mark.parametrize("where", ["patch", 2, 5, "cls"])
def test_a_row_that_is_not_finite_anywhere_is_nan_everywhere(tmp_path: Path, where: str | int) -> None:
    store = layered_store(tmp_path / "s")
    result = layered_result(store, 0)
    broken = result.layers[where] if isinstance(where, int) else result.tokens[where]
    assert isinstance(broken, np.ndarray)
    broken[6].reshape(-1)[3] = 70000.0  # overflows float16
    assert dict(write_unit(store, 0, result).counts) == {"ok": 15, "failed": 1}
    for values in (
        store.cls([6], allow_failed=True),
        *(store.patch([6], layer=layer, allow_failed=True) for layer in (None, 2, 5)),
    ):
        assert np.isnan(values).all()
    report = verify_store(store.path)
    assert [problem.kind for problem in report.problems] == ["absent"]


def test_a_store_without_cls_has_none(tmp_path: Path) -> None:
    store = layered_store(tmp_path / "s", has_cls=False)
    for unit in range(store.unit_count):
        write_unit(store, unit, layered_result(store, unit))
    assert verify_store(store.path).passed
    assert not (store.path / "cls").exists()
    assert np.isfinite(store.patch()).all()
    with pytest.raises(UsageError, match=r"keeps no \[CLS\] tokens: its token tier is 'full'. Read patch"):
        store.cls()
    with pytest.raises(StoreError, match="has the shapes"):
        write_unit(store, 0, small_result(store, 0))


@pytest.mark.parametrize(("tier", "offered"), [("cls", "mean"), ("cls+mean", "mean"), ("cls+grid7", "grid7")])
def test_tiers_with_cls_are_refused_by_name_without_one(tier: Tokens, offered: str) -> None:
    with pytest.raises(UsageError, match=f"no \\[CLS\\] token.*Use '{offered}'"):
        TokenGeometry.for_tier(tier, dim=8, time=4, rows=2, cols=2, has_cls=False)


def test_a_layer_that_is_damaged_is_seen(tmp_path: Path) -> None:
    store = layered_store(tmp_path / "s")
    for unit in range(store.unit_count):
        write_unit(store, unit, layered_result(store, unit))
    place = store.path / "patch_l5/c/0/0/0/0/0"
    data = bytearray(place.read_bytes())
    data[100] ^= 1
    place.write_bytes(data)
    assert [problem.kind for problem in verify_store(store.path).problems] == ["checksum"]
