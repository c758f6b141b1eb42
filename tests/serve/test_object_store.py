"""`coldframe extract --store s3://...`: killed, resumed, verified, repaired, probed; equal to the local store."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.export import Bundle
from coldframe.probes.loader import TokenLoader
from coldframe.probes.token_view import TokenView
from coldframe.progress import progress_bar
from coldframe.serve import clips as clips_module
from coldframe.serve import watch as watch_module
from coldframe.serve.destination import grown
from coldframe.serve.extract import make_recipe, plan_videos
from coldframe.serve.inputs import collect_inputs
from coldframe.serve.ray_workers import UnitActor
from coldframe.serve.unit import RunnerSettings
from coldframe.store import lease, open_store, pending_units, verify_store
from coldframe.store.object_path import ObjectPath
from tests.serve import inline
from tests.serve.test_extract import Barcodes, contents, corpus, run
from tests.store.s3 import BUCKET, FrontDoor, s3_server

URL = f"s3://{BUCKET}/videos.zarr"


def command(name: str, *arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main([name, *arguments])
    return int(left.value.code or 0)


def test_a_killed_extraction_into_an_object_store_ends_as_the_local_one(
    tmp_path: Path, bundle: Bundle, barcodes: Callable[[int, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = corpus(tmp_path / "videos", barcodes, videos=8)
    options = [str(videos), "--encoder", str(bundle.path), "--tokens", "full", "--dtype", "float32", "--store"]
    assert command("extract", *options, str(tmp_path / "s.zarr")) == 3
    with s3_server(monkeypatch):
        place = ObjectPath(BUCKET, "videos.zarr")
        with subprocess.Popen([sys.executable, "-m", "coldframe.cli", "extract", *options, URL]) as process:
            while process.poll() is None and "units/0.json" not in place.sizes():
                time.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
        assert "units/summary.json" not in place.sizes()
        monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
        assert command("extract", *options, URL) == 3
        keys = [key for key in place.sizes() if not key.startswith("units/")]
        assert {key: (place / key).read_bytes() for key in keys} == contents(tmp_path / "s.zarr")
        assert command("verify", URL, "--encoder", str(bundle.path), "--canaries", "2") == 0
        store, local = open_store(URL), open_store(tmp_path / "s.zarr")
        loader = TokenLoader(store=store, rows=store.ok_rows(), view=TokenView(cls=True), batch_rows=7)
        expected = TokenLoader(store=local, rows=local.ok_rows(), view=TokenView(cls=True), batch_rows=7)
        for far, near in zip(loader.epoch(), expected.epoch(), strict=True):
            np.testing.assert_array_equal(far.maps[0], near.maps[0])


def coldframe(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontDoor]:
    with s3_server(monkeypatch) as server:
        monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
        inline.use(monkeypatch)
        yield server


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle, barcodes: Barcodes) -> Path:
    """46 rows in 3 units of 16, and the videos that they come from in `c`; two rows failed as their disk was away."""
    folder = tmp_path_factory.mktemp("objects")
    real = clips_module.read_in_child

    def flicker(video: clips_module.VideoClips, size: int) -> object:
        return real(replace(video, path="/away") if video.path.endswith("12.mp4") else video, size)

    with pytest.MonkeyPatch.context() as patched:
        inline.use(patched)
        patched.setattr(clips_module, "read_in_child", flicker)
        run(corpus(folder / "c", barcodes, videos=24), bundle, folder / "s.zarr")
    return folder


def upload(store: Path, name: str) -> ObjectPath:
    place = ObjectPath(BUCKET, name)
    for file in (file for file in store.rglob("*") if file.is_file()):
        (place / file.relative_to(store).as_posix()).put(file.read_bytes())
    return place


def objects(place: ObjectPath) -> dict[str, bytes]:
    return {key: (place / key).read_bytes() for key in place.sizes()}


@pytest.mark.parametrize("options", [("--append",), ("--part", "1/2"), ("--append", "--dry-run")])
def test_what_needs_a_file_system_is_refused_before_anything_is_asked(
    bundle: Bundle, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # where nothing answers
    result = coldframe("extract", "none/", "--encoder", bundle.path, "--store", URL, *options)
    assert result.exit_code == 2
    assert f"cannot be used with {URL}: " in result.stderr
    assert result.stderr.count("\n") == 1


def test_damaged_and_missing_units_are_repaired_where_they_are(
    tmp_path: Path, template: Path, bundle: Bundle, door: FrontDoor
) -> None:
    place = upload(template / "s.zarr", "damaged.zarr")
    before = objects(place)
    (place / "cls/c/0/0").put(before["cls/c/0/0"][:9] + b"\0" + before["cls/c/0/0"][10:])
    (place / "patch/c/2/0/0/0/0").unlink()
    found = json.loads(coldframe("repair", str(place), "--dry-run", "--json").stdout)
    assert sorted(found["damaged"] + found["absent"]) == [0, 2]
    result = coldframe("repair", str(place), "--encoder", bundle.path)
    assert result.exit_code == 3, result.output  # two videos cannot be used
    assert verify_store(place).passed
    after = objects(place)
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    assert changed == {"units/0.json", "units/2.json"}  # which hold timings
    done = coldframe("convert", str(place), "--to", "npy", "--out", tmp_path / "out")
    assert f"coldframe info {place} --failures" in done.stdout, done.output


def test_committed_units_are_written_anew_where_they_are(
    tmp_path: Path, template: Path, bundle: Bundle, barcodes: Barcodes, door: FrontDoor
) -> None:
    place, local = upload(template / "s.zarr", "kept.zarr"), shutil.copytree(template / "s.zarr", tmp_path / "l.zarr")
    shutil.copytree(template / "c", tmp_path / "more")
    shutil.copy(barcodes(70, 7000), tmp_path / "more/24.mp4")
    recipe = make_recipe(bundle, tokens="full", dtype="float32")
    plan = plan_videos(collect_inputs([str(tmp_path / "more")]).videos, recipe, progress_bar)
    assert pending_units(grown(plan, str(local))) == [2, 3]  # unit 2 has 14 of its 16 rows
    larger = upload(local, "grown.zarr")
    for name, near, command in (
        (place, shutil.copytree(template / "s.zarr", tmp_path / "s.zarr"), "retry-failed"),
        (larger, local, "repair"),
        (larger, local, "retry-failed"),
    ):
        far = coldframe(command, str(name), "--encoder", bundle.path, "--max-failures", "5")
        assert far.exit_code == 3, (command, far.output)  # two videos cannot be used
        assert coldframe(command, near, "--encoder", bundle.path).exit_code == 3
        rows = {key: body for key, body in objects(name).items() if not key.startswith("units/")}
        assert rows == contents(near)
        assert verify_store(name).passed
        assert not [key for key in objects(name) if ".next" in key]
    assert coldframe("retry-failed", str(place), "--encoder", bundle.path, "--json").exit_code == 3  # nothing to do


def test_an_actor_writes_into_an_object_store(tmp_path: Path, template: Path, bundle: Bundle, door: FrontDoor) -> None:
    """A Ray actor, in this process; what Ray does has tests of its own, and the driver holds the lease."""
    place = upload(template / "s.zarr", "ray.zarr")
    wanted = contents(template / "s.zarr")
    for unit in (0, 2):
        (place / f"units/{unit}.json").unlink()
        (place / f"cls/c/{unit}/0").unlink()
    settings = RunnerSettings(
        store=str(place), bundle=str(bundle.path), backend="onnxruntime", threads=1, batch_clips=4
    )
    UnitActor(settings).run([0, 2])
    assert pending_units(open_store(place)) == []
    again = {key: body for key, body in objects(place).items() if not key.startswith("units/")}
    assert again["patch/c/0/0/0/0/0"] == wanted["patch/c/0/0/0/0/0"]
    assert again.keys() == wanted.keys()


def test_max_failures_stops_a_run_into_an_object_store(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, door: FrontDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = tmp_path / "v"
    videos.mkdir()
    for number in range(24):
        shutil.copy(barcodes(70, 70 * number), videos / f"{number:02d}.mp4")
    real = clips_module.read_in_child

    def losing(video: clips_module.VideoClips, size: int) -> object:
        if video.path[-6:-4] in ("00", "02", "09"):
            Path(video.path).unlink(missing_ok=True)
        return real(video, size)

    monkeypatch.setattr(clips_module, "read_in_child", losing)
    monkeypatch.setattr(watch_module, "_SECONDS_BETWEEN_LOOKS", 0.0)
    result = coldframe("extract", videos, "--encoder", bundle.path, "--store", URL, "--max-failures", "2")
    assert result.exit_code == 1, result.output
    assert "3 videos failed, --max-failures allows 2" in result.stderr
