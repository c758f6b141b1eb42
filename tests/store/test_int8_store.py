"""A store in int8: what is read, what is refused, what verification sees, and that rows stay as they were."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from click.testing import CliRunner

from coldframe.cli import main
from coldframe.errors import StoreError, UsageError
from coldframe.store import (
    Reason,
    Status,
    Store,
    TokenGeometry,
    create_store,
    discard_units,
    grow_store,
    keep_rows,
    merge_plans,
    open_store,
    pending_units,
    read_plan,
    seal,
    summarise,
    unit_rows,
    verify_store,
    write_unit,
)
from coldframe.store.files import write_pieces
from coldframe.store.int8_tokens import Int8Tokens
from coldframe.store.layout import rows_per_unit, unit_arrays
from coldframe.store.markers import read_marker, read_sealed_json, write_sealed_json
from coldframe.store.recipe import Recipe
from coldframe.store.shards import encode_object
from coldframe.store.units import UnitResult, stored_arrays
from tests.store.plans import ENCODER, row_tokens, small_geometry, small_plan, small_recipe, small_result
from tests.store.test_grow import further


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("int8") / "s.zarr"
    plan = small_plan(tokens="full", dtype="int8")
    store = create_store(path, plan, geometry=small_geometry("full"), encoder=ENCODER)
    for unit in range(store.unit_count):
        write_unit(store, unit, small_result(store, unit))
    return path


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Store:
    """50 rows ok, row 21 failed, 4 units."""
    return open_store(shutil.copytree(template, tmp_path / "s.zarr"), writable=True)


def expected(store: Store, rows: Any) -> Int8Tokens:
    _, patch = row_tokens(store, np.asarray(rows))
    assert patch is not None
    return Int8Tokens.of(patch)


def test_readers_give_floats_and_the_stored_arrays_by_name(store: Store) -> None:
    rows = [30, 2, 50, 2]
    made = expected(store, rows)
    np.testing.assert_array_equal(store.patch(rows), made.dequantised())
    assert store.patch(rows).dtype == np.float32
    np.testing.assert_array_equal(store.stored("patch", rows), made.values)
    np.testing.assert_array_equal(store.stored("patch_scale", rows), made.scale)
    cls, patch = row_tokens(store, np.array(rows))
    np.testing.assert_array_equal(store.cls(rows), cls.astype(np.float16))  # vectors stay in float16
    assert store.stored("cls", rows).dtype == np.float16
    assert patch is not None
    assert np.abs(store.patch(rows) - patch).max() < 4 / 127
    batches = [tokens for _, tokens in store.iter_tokens("patch", rows, batch_rows=3)]
    np.testing.assert_array_equal(np.concatenate(batches), made.dequantised())


def test_a_failed_row_is_nan_once_it_is_dequantised(store: Store) -> None:
    with pytest.raises(StoreError, match=r"Row 21 has no tokens"):
        store.patch([20, 21])
    with pytest.raises(StoreError, match=r"Row 21 has no tokens"):
        store.stored("patch", [20, 21])
    both = store.patch([20, 21], allow_failed=True)
    assert np.isnan(both[1]).all()
    assert np.isfinite(both[0]).all()
    assert not store.stored("patch", [21], allow_failed=True).any()
    assert np.isnan(store.stored("patch_scale", [21], allow_failed=True)).all()
    group = zarr.open_group(str(store.path), mode="r")
    values, scale = (np.asarray(group[name][:]) for name in ("patch", "patch_scale"))  # type: ignore[index]
    assert (values.dtype, scale.dtype) == (np.dtype(np.int8), np.dtype(np.float32))
    assert not values[21].any()
    assert np.isnan(scale[21]).all()


def test_float16_is_refused_where_it_cannot_hold_what_is_stored(store: Store) -> None:
    with pytest.raises(UsageError, match=r"Tokens stored in int8 may pass what float16 holds"):
        store.patch([30], dtype=np.float16)
    assert store.patch([30], dtype=np.float64).dtype == np.float64


def test_plain_zarr_and_xarray_read_it_by_the_documented_rule(store: Store) -> None:
    group = zarr.open_group(str(store.path), mode="r")
    values, scale = (np.asarray(group[name][:]) for name in ("patch", "patch_scale"))  # type: ignore[index]
    ok = store.ok_rows()
    np.testing.assert_array_equal((values * scale[..., None])[ok], store.patch())
    with xarray.open_zarr(str(store.path), consolidated=False) as opened:
        patch = (opened["patch"] * opened["patch_scale"]).compute()
    assert patch.dims == ("clip", "time", "row", "col", "dim")
    np.testing.assert_array_equal(patch.values, store.patch(np.arange(51), allow_failed=True))


def test_an_unknown_storage_type_is_refused_as_it_must_be(store: Store) -> None:
    """What a reader that knows no int8 does with this store is what this one does with another type."""
    root = store.path / "zarr.json"
    fields = json.loads(root.read_text())
    fields["attributes"]["coldframe"]["recipe"]["dtype"] = "int4"
    root.write_text(json.dumps(fields))
    with pytest.raises(StoreError, match=r"dtype is 'int4'; allowed are float16, float32, int8"):
        open_store(store.path)


def test_the_marker_and_info_say_what_was_lost(store: Store) -> None:
    ok = store.ok_rows()
    cosine = expected(store, ok).cosine
    marker = read_marker(store.path, 1).reconstruction["patch"]
    mine = cosine[(ok >= 16) & (ok < 32)]
    assert marker.tokens == mine.size == 15 * 64  # the failed row does not count
    assert marker.cosine_worst == mine.min()
    assert marker.cosine_mean == pytest.approx(mine.mean(dtype=np.float64), abs=1e-12)
    found = summarise(store)["reconstruction"]["patch"]
    assert (found["tokens"], found["cosine_worst"]) == (cosine.size, cosine.min())
    assert found["cosine_mean"] == pytest.approx(cosine.mean(dtype=np.float64), abs=1e-12)
    _, patch = row_tokens(store, ok)
    assert patch is not None
    stored = store.patch()
    exact = (patch * stored).sum(-1) / np.linalg.norm(patch, axis=-1) / np.linalg.norm(stored, axis=-1)
    np.testing.assert_allclose(cosine, exact, atol=1e-6)
    result = CliRunner().invoke(main, ["info", str(store.path)])
    line = f"int8     patch: cosine with what the encoder gave {cosine.mean(dtype=np.float64):.6f} on average"
    assert line in result.output
    assert f"of {cosine.size} tokens" in result.output
    told = json.loads(CliRunner().invoke(main, ["info", str(store.path), "--json"]).output)
    assert told["reconstruction"]["patch"] == found
    assert "reconstruction" not in summarise(create_float16(store.path.parent / "half.zarr"))


def create_float16(path: Path) -> Store:
    return create_store(path, small_plan(tokens="full"), geometry=small_geometry("full"), encoder=ENCODER)


def test_tokens_that_were_quantised_before_are_stored_as_they_are(store: Store) -> None:
    before = {key: (store.path / key).read_bytes() for key in read_marker(store.path, 2).objects}
    result = small_result(store, 2)
    assert isinstance(result.patch, np.ndarray)
    discard_units(store, [2])
    write_unit(store, 2, replace(result, patch=Int8Tokens.of(result.patch)))
    assert {key: (store.path / key).read_bytes() for key in before} == before


def test_a_row_that_is_not_finite_or_all_zero_fails_alone(store: Store) -> None:
    result = small_result(store, 0)
    assert isinstance(result.patch, np.ndarray)
    result.patch[3, 1, 2, 0, 5] = np.nan
    result.patch[4, 0, 0, 0, 0] = np.inf
    result.patch[5] = 0
    result.patch[6, 2] = 0  # some tokens of zeros are fine
    marker = write_unit(store, 0, result)
    assert [(entry["row"], entry["reason"]) for entry in marker.failures] == [
        (3, "non_finite"),
        (4, "non_finite"),
        (5, "non_finite"),
    ]
    assert "after the cast to int8" in marker.failures[0]["error"]
    assert np.isnan(store.cls([3], allow_failed=True)).all()
    assert marker.reconstruction["patch"].tokens == 13 * 64
    assert verify_store(store.path).passed
    assert not store.patch([6])[0, 2].any()


def test_a_row_whose_vector_fails_has_no_patches_either(store: Store) -> None:
    result = small_result(store, 0)
    assert result.cls is not None
    result.cls[7, 0] = 1e6  # does not fit into float16
    write_unit(store, 0, result)
    assert not store.stored("patch", [7], allow_failed=True).any()
    assert np.isnan(store.stored("patch_scale", [7], allow_failed=True)).all()
    group = zarr.open_group(str(store.path), mode="r")
    assert not np.asarray(group["patch"][7]).any()  # type: ignore[index]
    assert verify_store(store.path).passed


def forge(store: Store, name: str, change: Any) -> None:
    """Alter an array of unit 1 and sign it, as a faulty writer would."""
    spec = store.unit_arrays[name]
    values = np.array(store.stored(name, np.arange(16, 32), allow_failed=True))
    change(values)
    key = spec.object_key(1)
    pieces = encode_object(spec, 16, lambda start, stop, out: np.copyto(out, values[start:stop]))
    path = store.path / "units" / "1.json"
    marker = read_sealed_json(path)
    marker["objects"][key] = write_pieces(store.path / key, pieces).to_dict()
    write_sealed_json(path, marker)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("patch_scale", (3, 0, 0, 0), np.nan, "row 19 is ok, but its patch is not what int8 with a scale can be"),
        ("patch_scale", (3, 0, 0, 0), 0.0, "row 19 is ok, but its patch is not"),
        ("patch", (3, 0, 0, 0), 0, "row 19 is ok, but its patch is not"),
        ("patch", (3, 1, 0, 2, 4), -128, "row 19 is ok, but its patch is not"),
        ("patch", (5, 0, 0, 0, 0), 1, "row 21 is failed, but its patch is not NaN"),
        ("patch_scale", (5, 0, 0, 0), 1.0, "row 21 is failed, but its patch is not NaN"),
    ],
)
def test_signed_nonsense_is_found(store: Store, name: str, place: tuple[int, ...], value: float, message: str) -> None:
    forge(store, name, lambda values: values.__setitem__(place, value))
    assert verify_store(store.path, deep=False).passed
    report = verify_store(store.path)
    assert any(problem.message.startswith(message) for problem in report.problems), report.problems


@pytest.mark.parametrize("name", ["patch", "patch_scale"])
def test_lost_and_flipped_objects_are_found_and_never_read(store: Store, name: str) -> None:
    place = store.path / store.unit_arrays[name].object_key(2)
    whole = place.read_bytes()
    place.write_bytes(whole[:40] + bytes([whole[40] ^ 4]) + whole[41:])
    assert [problem.kind for problem in verify_store(store.path).problems] == ["checksum"]
    with pytest.raises(StoreError, match=rf"The object {name}/c/2/.* is damaged"):
        store.patch([40])
    place.unlink()
    assert {problem.kind for problem in verify_store(store.path, deep=False).problems} == {"missing"}
    assert pending_units(store) == [2]
    with pytest.raises(StoreError, match=r"Row 40 has no tokens: it is absent"):
        store.patch([40])


def retaken(store: Store, unit: int, retry: tuple[Reason, ...]) -> UnitResult:
    """What a worker hands in that takes over what is there: the rest are the tokens of `small_result`."""
    fresh = small_result(store, unit)
    assert isinstance(fresh.patch, np.ndarray)
    assert fresh.cls is not None
    patch = Int8Tokens.empty(fresh.patch.shape)
    cls = np.zeros(fresh.cls.shape, np.float16)
    status, reason = fresh.status.copy(), fresh.reason.copy()
    kept = keep_rows(
        store,
        unit,
        retry=retry,
        status=status,
        reason=reason,
        tokens={**stored_arrays({"patch": patch}), "cls": cls},
    )
    new = np.setdiff1d(np.arange(len(fresh.rows)), kept.rows - fresh.rows.start)
    new = new[fresh.status[new] == Status.OK]
    patch.put(new, fresh.patch[new])
    cls[new] = fresh.cls[new]
    patch = replace(patch, earlier=kept.reconstruction.get("patch"))
    failures = [*kept.failures, *(e for e in fresh.failures if e["row"] not in kept.rows.tolist())]
    return replace(fresh, status=status, reason=reason, cls=cls, patch=patch, failures=failures)


def test_rows_that_are_tried_again_leave_the_others_bit_by_bit(store: Store, template: Path) -> None:
    whole = open_store(template)
    failing = small_result(store, 1)
    failing.status[1], failing.reason[1] = Status.FAILED, Reason.TIMEOUT
    discard_units(store, [1])
    write_unit(store, 1, failing)
    marker = write_unit(store, 1, retaken(store, 1, (Reason.TIMEOUT,)))
    assert (store.path / "patch/c/1/0/0/0/0").read_bytes() == (whole.path / "patch/c/1/0/0/0/0").read_bytes()
    assert (store.path / "patch_scale/c/1/0/0/0").read_bytes() == (whole.path / "patch_scale/c/1/0/0/0").read_bytes()
    found, once = marker.reconstruction["patch"], read_marker(whole.path, 1).reconstruction["patch"]
    assert (found.tokens, found.cosine_worst) == (once.tokens, once.cosine_worst)
    assert found.cosine_mean == pytest.approx(once.cosine_mean, abs=1e-12)


def test_a_store_grows_and_its_old_rows_stay_as_they_were(store: Store) -> None:
    before = store.stored("patch"), store.stored("patch_scale")
    more = further((5, 3), tokens="full", dtype="int8")
    grown = grow_store(store, merge_plans(read_plan(store), more))
    for unit in pending_units(grown):
        write_unit(grown, unit, retaken(grown, unit, ()))
    seal(grown)
    assert verify_store(grown.path).passed
    old = np.delete(np.arange(51), 21)
    np.testing.assert_array_equal(grown.stored("patch", old), before[0])
    np.testing.assert_array_equal(grown.stored("patch_scale", old), before[1])
    assert summarise(grown)["reconstruction"]["patch"]["tokens"] == 58 * 64


def test_layers_have_scales_of_their_own(tmp_path: Path) -> None:
    recipe = replace(small_recipe("grid7", "int8"), layers=(1,))
    geometry = TokenGeometry.for_tier("grid7", dim=8, time=4, rows=4, cols=4, layers=(1,))
    plan = replace(small_plan([3], tokens="grid7", dtype="int8"), recipe=recipe)
    store = create_store(tmp_path / "s.zarr", plan, geometry=geometry, encoder=ENCODER)
    _, patch = row_tokens(store, np.arange(3))
    assert patch is not None
    result = replace(small_result(store, 0), cls=None, patch=patch, layers={1: patch * 100})
    marker = write_unit(store, 0, result)
    assert set(marker.reconstruction) == {"patch", "patch_l1"}
    np.testing.assert_array_equal(store.stored("patch_l1"), store.stored("patch"))
    np.testing.assert_allclose(store.patch(layer=1), store.patch() * 100, rtol=1e-5)
    with pytest.raises(UsageError, match=r"no array 'patch_l2_scale' of tokens; it has patch, patch_scale, patch_l1, "):
        store.stored("patch_l2_scale")
    assert verify_store(store.path).passed


@pytest.mark.parametrize("tokens", ["cls", "cls+mean", "mean", "frame_cls"])
def test_tiers_without_a_grid_are_refused(tokens: Any) -> None:
    with pytest.raises(UsageError, match=f"grids of patch tokens, and the token tier '{re.escape(tokens)}' keeps none"):
        replace(small_recipe("full"), tokens=tokens, dtype="int8")


def test_bytes_and_units_by_hand() -> None:
    geometry = TokenGeometry.for_tier("full", dim=1024, time=16, rows=14, cols=14)
    tokens = 16 * 14 * 14
    assert geometry.array_bytes("int8") == {"patch": tokens * 1024, "patch_scale": tokens * 4, "cls": 2048}
    assert geometry.row_bytes("int8") == tokens * 1028 + 2048
    assert geometry.row_bytes("float16") == tokens * 2048 + 2048
    assert rows_per_unit(100_000, geometry, "int8") == unit_rows(100_000, tokens * 1024) == 64
    arrays = unit_arrays(100_000, 64, geometry, "int8")
    assert {name: (spec.dtype, spec.chunk_rows) for name, spec in arrays.items()} == {
        "patch": ("int8", 1),
        "patch_scale": ("float32", 1),
        "cls": ("float16", 16),
        "status": ("uint8", 64),
        "reason": ("uint8", 64),
    }


def test_another_storage_type_is_another_recipe() -> None:
    one, other = small_recipe("full", "float16"), small_recipe("full", "int8")
    assert one.recipe_id != other.recipe_id
    assert Recipe.from_dict(other.to_dict()) == other
