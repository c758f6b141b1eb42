"""A store is made whole, and what was planned comes back from it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray
import zarr

from coldframe.errors import ColdframeError, UsageError
from coldframe.store import Store, TokenGeometry, create_store, open_store, seal
from tests.store.plans import ENCODER, small_geometry, small_plan


def test_the_plan_comes_back(empty: Store) -> None:
    plan = small_plan(tokens="full")
    store = open_store(empty.path)
    assert store.recipe == plan.recipe
    assert store.encoder == ENCODER
    assert (store.rows, store.unit_rows, store.unit_count) == (51, 16, 4)
    assert [len(store.unit_range(unit)) for unit in range(4)] == [16, 16, 16, 3]
    assert store.video_column("path") == plan.videos.path
    assert store.video_column("label") == ["a", "b", "c", "d", "e"]
    np.testing.assert_array_equal(store.video_column("take"), np.arange(5))
    np.testing.assert_array_equal(store.video_column("fps"), plan.videos.fps)
    for name in ("video", "frame_index", "frame_pts_s", "n_real", "flags"):
        np.testing.assert_array_equal(store.column(name), getattr(plan.clips, name))
    np.testing.assert_array_equal(store.column("clip_start_s"), plan.clips.start_s)


def test_identical_plans_give_identical_files(tmp_path: Path) -> None:
    trees = []
    for name in ("a", "b"):
        store = create_store(tmp_path / name, small_plan(), geometry=small_geometry(), encoder=ENCODER)
        files = sorted(entry for entry in store.path.rglob("*") if entry.is_file())
        trees.append({entry.relative_to(store.path): entry.read_bytes() for entry in files})
    assert trees[0] == trees[1]


def test_zarr_and_xarray_open_a_sealed_store_without_a_warning(filled: Store) -> None:
    seal(filled)  # warnings are errors in this suite
    group = zarr.open_group(str(filled.path), mode="r")
    assert "patch" in dict(group.members(max_depth=None))
    assert "cls" in str(group.tree())
    ok = filled.ok_rows()
    np.testing.assert_array_equal(np.asarray(group["patch"])[ok].astype(np.float32), filled.patch())
    assert np.asarray(group["video_label"]).tolist() == ["a", "b", "c", "d", "e"]
    dataset = xarray.open_zarr(str(filled.path), consolidated=False).load()
    assert dataset["patch"].dims == ("clip", "time", "row", "col", "dim")
    assert dataset["cls"].dtype == np.float16
    np.testing.assert_array_equal(dataset["cls"].values[ok].astype(np.float32), filled.cls())
    assert np.isnan(dataset["cls"].values[21]).all()
    assert dataset["video_path"].values.tolist() == filled.video_column("path")
    assert dataset.attrs["coldframe"]["recipe_id"] == filled.recipe_id


def test_rows_that_were_never_written_read_as_nan_in_plain_zarr(empty: Store) -> None:
    group = zarr.open_group(str(empty.path), mode="r")
    assert np.isnan(np.asarray(group["cls"])).all()
    assert not np.asarray(group["status"]).any()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_an_existing_path_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "s.zarr"
    if kind == "file":
        place.write_text("mine")
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"s\.zarr exists already"):
        create_store(place, small_plan(), geometry=small_geometry(), encoder=ENCODER)
    assert place.is_symlink() or kind != "link"


def test_leftovers_of_dead_runs_are_removed_and_those_of_live_ones_kept(tmp_path: Path) -> None:
    dead, live = tmp_path / "s.zarr.partial-0", tmp_path / "s.zarr.partial-1"
    other = tmp_path / "t.zarr.partial-0"
    for folder in (dead, live, other):
        (folder / "cls").mkdir(parents=True)
    hold = (
        f"import fcntl, os, sys; fcntl.flock(os.open({str(live)!r}, os.O_RDONLY), fcntl.LOCK_EX); "
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        create_store(tmp_path / "s.zarr", small_plan(), geometry=small_geometry(), encoder=ENCODER)
        holder.communicate()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([live.name, other.name, "s.zarr"])


def test_a_creation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: int) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ColdframeError, match=r"Cannot create the store .*Read-only file system.*choose a folder"):
        create_store(tmp_path / "s.zarr", small_plan(), geometry=small_geometry(), encoder=ENCODER)
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_should_be_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ColdframeError, match="Cannot create the store"):
        create_store(tmp_path / "file" / "s.zarr", small_plan(), geometry=small_geometry(), encoder=ENCODER)


@pytest.mark.parametrize(
    "geometry",
    [TokenGeometry(dim=8, time=4, rows=2, cols=2), TokenGeometry(dim=8, time=4, rows=1, cols=1)],
)
def test_a_geometry_of_another_tier_is_refused(tmp_path: Path, geometry: TokenGeometry) -> None:
    with pytest.raises(UsageError, match="does not suit the token tier 'cls'"):
        create_store(tmp_path / "s", small_plan(), geometry=geometry, encoder=ENCODER)


def test_an_empty_plan_and_an_identity_that_is_not_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no clips"):
        create_store(tmp_path / "s", small_plan(()), geometry=small_geometry(), encoder=ENCODER)
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        create_store(tmp_path / "s", small_plan(), geometry=small_geometry(), encoder={"score": float("nan")})


def test_paths_that_are_not_utf8_work(tmp_path: Path) -> None:
    place = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.zarr")
    create_store(place, small_plan(), geometry=small_geometry(), encoder=ENCODER)
    with pytest.raises(UsageError, match=r"caf\\xe9\.zarr exists already"):
        create_store(place, small_plan(), geometry=small_geometry(), encoder=ENCODER)
