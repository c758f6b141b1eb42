"""Converted files hold the ok rows, in order, and nothing that is not ok."""

import csv
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import lance
import numpy as np
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from coldframe.cli import main
from coldframe.errors import StoreError, UsageError
from coldframe.store import Status, Store, create_store, write_unit
from coldframe.store.convert import TARGETS, Target, convert
from coldframe.store.schema import StorageDtype, Tokens
from tests.store.plans import ENCODER, small_geometry, small_plan, small_result


def filled_store(
    path: Path, tokens: Tokens = "cls", units: int | None = None, dtype: StorageDtype = "float16"
) -> Store:
    plan = small_plan(tokens=tokens, dtype=dtype, columns={"label": ["a", "b", "c", "d", "e"]})
    store = create_store(path, plan, geometry=small_geometry(tokens), encoder=ENCODER)
    for unit in range(store.unit_count if units is None else units):
        made = small_result(store, unit)
        write_unit(store, unit, made if store.geometry.has_cls else replace(made, cls=None))
    store.refresh()
    return store


def test_npy_has_one_array_a_whole_video(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "s.zarr")
    done = convert(store, "npy", tmp_path / "out")
    video, status = store.column("video"), store.column("status")
    whole = [v for v in range(5) if (status[video == v] == Status.OK).all()]
    files = sorted(path.name for path in (tmp_path / "out").glob("*.npy"))
    assert len(files) == len(whole) < 5
    with open(tmp_path / "out" / "index.csv", newline="") as file:
        index = list(csv.DictReader(file))
    assert done.rows == len(index) == sum(np.isin(video, whole))
    assert done.rows + done.left_out_rows == store.rows
    for line in index:
        array = np.load(tmp_path / "out" / line["file"])
        np.testing.assert_array_equal(array[int(line["position"])], store.cls([int(line["row"])])[0])
        assert float(line["clip_start_s"]) == store.column("clip_start_s")[int(line["row"])]


def test_equal_names_do_not_overwrite_each_other(tmp_path: Path) -> None:
    plan = small_plan([2, 3, 1])
    plan.videos.path[:] = ["/cat/000.mp4", "/dog/000.mp4", "/dog/b.mp4"]
    store = create_store(tmp_path / "s.zarr", plan, geometry=small_geometry(), encoder=ENCODER)
    write_unit(store, 0, small_result(store, 0))
    convert(store, "npy", tmp_path / "out")
    lengths = {path.name: len(np.load(path)) for path in (tmp_path / "out").glob("*.npy")}
    assert lengths == {"000.0.npy": 2, "000.1.npy": 3, "b.npy": 1}


@pytest.mark.parametrize("target", ["parquet", "lance"])
def test_parquet_and_lance_have_a_row_for_each_ok_row(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldframe.store.convert.ROWS_A_READ", 20)  # several batches
    store = filled_store(tmp_path / "s.zarr")
    done = convert(store, target, tmp_path / "out")
    assert (done.rows, done.left_out_rows) == (50, 1)
    if target == "lance":
        table = lance.dataset(tmp_path / "out" / "clips.lance").to_table()
    else:
        table = parquet.read_table(tmp_path / "out" / "clips.parquet")
    assert table["row"].to_pylist() == store.ok_rows().tolist()
    np.testing.assert_array_equal(np.array(table["cls"].to_pylist(), np.float32), store.cls())
    videos = store.column("video")[store.ok_rows()]
    assert table["video_label"].to_pylist() == [store.video_column("label")[video] for video in videos]
    assert table.schema.metadata[b"coldframe_recipe_id"].decode() == store.recipe_id


@pytest.mark.parametrize(("patches", "dtype"), [(False, "float16"), (True, "float16"), (True, "int8"), (False, "int8")])
def test_webdataset_has_a_sample_for_each_ok_row(tmp_path: Path, patches: bool, dtype: StorageDtype) -> None:
    store = filled_store(tmp_path / "s.zarr", "full", dtype=dtype)
    dequantised = patches and dtype == "int8"
    assert convert(store, "webdataset", tmp_path / "out", patches=patches).dequantised is dequantised
    members: dict[str, bytes] = {}
    with tarfile.open(tmp_path / "out" / "clips-000000.tar") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            members[member.name] = file.read()
    ok = store.ok_rows()
    assert len(members) == len(ok) * (3 if patches else 2)
    for row in ok.tolist():
        np.testing.assert_array_equal(np.load(io.BytesIO(members[f"{row:09d}.cls.npy"])), store.cls([row])[0])
        assert json.loads(members[f"{row:09d}.json"])["row"] == row
        assert json.loads(members[f"{row:09d}.json"]).get("patch_stored_as") == ("int8" if dequantised else None)
        if patches:
            patch = np.load(io.BytesIO(members[f"{row:09d}.patch.npy"]))
            assert patch.dtype == (np.float32 if dequantised else np.float16)
            np.testing.assert_array_equal(patch, store.patch([row])[0])


def test_patches_without_a_clip_token(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "s.zarr", "mean")
    done = convert(store, "webdataset", tmp_path / "out", patches=True)
    with tarfile.open(tmp_path / "out" / "clips-000000.tar") as tar:
        names = {name.partition(".")[2] for name in tar.getnames()}
        row = int(store.ok_rows()[0])
        member = tar.extractfile(f"{row:09d}.patch.npy")
        assert member is not None
        patch = np.load(io.BytesIO(member.read()))
    assert names == {"patch.npy", "json"}
    assert done.rows == len(store.ok_rows())
    np.testing.assert_array_equal(patch, store.patch([row])[0].astype(np.float16))


def test_equal_stores_give_equal_tars(tmp_path: Path) -> None:
    tars = []
    for name in ("a", "b"):
        convert(filled_store(tmp_path / name), "webdataset", tmp_path / f"{name}_out")
        tars.append((tmp_path / f"{name}_out" / "clips-000000.tar").read_bytes())
    assert tars[0] == tars[1]


@pytest.mark.parametrize("target", ["npy", "parquet", "webdataset", "lance"])
def test_unfinished_store_gives_what_it_has(tmp_path: Path, target: Target) -> None:
    store = filled_store(tmp_path / "s.zarr", units=2)
    done = convert(store, target, tmp_path / "out")
    assert 0 < done.rows <= len(store.ok_rows()) < store.rows
    assert done.rows + done.left_out_rows == store.rows


@pytest.mark.parametrize("target", ["npy", "parquet", "webdataset", "lance"])
def test_half_of_a_conversion_leaves_nothing(tmp_path: Path, target: Target) -> None:
    store = filled_store(tmp_path / "s.zarr")
    victim = sorted((store.path / "cls" / "c").rglob("0"))[-1]
    sound = victim.read_bytes()
    victim.write_bytes(sound[:4] + bytes([sound[4] ^ 1]) + sound[5:])
    before = set(tmp_path.iterdir())
    with pytest.raises(StoreError, match="is damaged"):
        convert(store, target, tmp_path / "out")
    assert set(tmp_path.iterdir()) == before
    victim.write_bytes(sound)
    convert(store, target, tmp_path / "out")
    assert set(tmp_path.iterdir()) - before == {tmp_path / "out"}


def test_store_without_a_whole_video_gives_no_npy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no video whose rows are all ok"):
        convert(filled_store(tmp_path / "s.zarr", units=1), "npy", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tokens", "target", "patches", "message"),
    [
        ("full", "npy", True, "do not fit into npy"),
        ("cls", "webdataset", True, r"has no patch tokens \(tokens: cls\)"),
        *(("mean", target, False, "has no \\[CLS\\] tokens .* Use --to webdataset --patches") for target in TARGETS),
    ],
)
def test_patches_that_cannot_be_given_are_refused(
    tmp_path: Path, tokens: Tokens, target: Target, patches: bool, message: str
) -> None:
    store = filled_store(tmp_path / "s.zarr", tokens)
    with pytest.raises(UsageError, match=message):
        convert(store, target, tmp_path / "out", patches=patches)
    assert not (tmp_path / "out").exists()


def test_command(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "s.zarr")
    arguments = ["convert", str(store.path), "--to", "npy", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "planned rows left out" in result.stdout
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "out exists. Name a new folder." in again.stderr


def test_the_command_says_that_patches_were_dequantised(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "s.zarr", "full", dtype="int8")
    arguments = ["convert", str(store.path), "--to", "webdataset", "--patches", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, arguments)
    assert "patch tokens are float32: the store's int8 times their scales" in result.stdout, result.output
    told = CliRunner().invoke(main, [*arguments[:-1], str(tmp_path / "more"), "--json"])
    assert json.loads(told.stdout)["dequantised"] is True
