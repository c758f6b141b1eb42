"""`coldframe extract --append`: later videos get rows behind the old ones, which stay as they are."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.export import Bundle
from coldframe.progress import progress_bar
from coldframe.serve.extract import extract, make_recipe
from coldframe.serve.inputs import collect_inputs
from coldframe.serve.unit import UnitRunner
from coldframe.store import open_store, pending_units, verify_store
from tests.serve import inline
from tests.serve.test_extract import Barcodes


def coldframe(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _decode_here(monkeypatch: pytest.MonkeyPatch) -> None:
    inline.use(monkeypatch)


def folder_of(place: Path, barcodes: Barcodes, numbers: range) -> Path:
    place.mkdir()
    for number in numbers:
        shutil.copy(barcodes(70, 70 * number), place / f"{number:02d}.mp4")
    return place


def tokens_by_content(store: Path) -> dict[tuple[str, float], bytes]:
    opened = open_store(store)
    contents, video, start = opened.video_column("sha256"), opened.column("video"), opened.column("clip_start_s")
    return {(contents[video[row]], start[row]): opened.patch([row]).tobytes() for row in opened.ok_rows().tolist()}


def test_later_videos_get_rows_behind_the_old_ones(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    old, new = folder_of(tmp_path / "b", barcodes, range(9)), folder_of(tmp_path / "a", barcodes, range(9, 14))
    (new / "broken.mp4").write_bytes(b"no video")
    shutil.copy(old / "03.mp4", new / "again.mp4")
    options = ("--encoder", bundle.path, "--tokens", "full", "--dtype", "float32")
    store = tmp_path / "s.zarr"
    assert coldframe("extract", old, *options, "--store", store).exit_code == 0
    before = {file: file.read_bytes() for file in (store / "patch/c/0").rglob("*") if file.is_file()}
    first = tokens_by_content(store)
    dry = coldframe("extract", new, *options, "--store", store, "--append", "--dry-run", "--json")
    assert dry.exit_code == 3, dry.output
    expected = {"rows": 29, "new_rows": 11, "done_rows": 18, "rows_to_extract": 11}
    assert json.loads(dry.stdout)["store_rows"] == expected
    refused = coldframe("extract", new, *options, "--store", store)
    assert (refused.exit_code, "add --append to extract new ones" in refused.stderr) == (2, True)
    result = coldframe("extract", new, *options, "--store", store, "--append", "--json")
    assert result.exit_code == 3, result.output
    assert json.loads(result.stdout)["ok"] == 28
    opened = open_store(store)
    assert opened.video_column("path")[9:] == [*(str(new / f"{n:02d}.mp4") for n in range(9, 14)), f"{new}/broken.mp4"]
    assert json.loads(opened.video_column("duplicates")[3]) == [str(new / "again.mp4")]
    assert {file: file.read_bytes() for file in before} == before
    assert first.items() <= tokens_by_content(store).items()
    assert verify_store(store).passed
    ledger = [json.loads(line) for line in (store / "units/failures.jsonl").read_text().splitlines()]
    assert [(entry["row"], entry["path"], entry["reason"], entry["transient"]) for entry in ledger] == [
        (28, f"{new}/broken.mp4", "unreadable", False)
    ]
    assert ledger[0]["error"]
    together = tmp_path / "together.zarr"
    assert coldframe("extract", old, new, *options, "--store", together).exit_code == 3
    assert tokens_by_content(together) == tokens_by_content(store)
    stamps = {file: file.stat().st_mtime_ns for file in (store / "patch").rglob("*") if file.is_file()}
    again = coldframe("extract", old, new, *options, "--store", store, "--append")
    assert again.exit_code == 3, again.output
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps
    assert open_store(store).root.earlier == opened.root.earlier


def test_a_store_begun_with_a_few_videos_takes_the_rest(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    videos = folder_of(tmp_path / "v", barcodes, range(4))
    options = (videos, "--encoder", bundle.path, "--store", tmp_path / "s.zarr")
    assert coldframe("extract", *options, "--limit", "1").exit_code == 0
    assert open_store(tmp_path / "s.zarr").rows == 2
    assert coldframe("extract", *options, "--append").exit_code == 0
    assert coldframe("extract", *options).exit_code == 0  # grown in the order of the paths, it is the plan of all
    assert open_store(tmp_path / "s.zarr").video_column("path") == [str(videos / f"{n:02d}.mp4") for n in range(4)]


@pytest.mark.parametrize("done", [0, 1])
def test_a_killed_append_resumes(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    old, new = folder_of(tmp_path / "b", barcodes, range(9)), folder_of(tmp_path / "a", barcodes, range(9, 20))
    recipe = make_recipe(bundle, tokens="full", dtype="float32")
    store, whole = tmp_path / "s.zarr", tmp_path / "whole.zarr"

    def run(inputs: Path, place: Path, append: bool = False) -> None:
        videos = collect_inputs([str(inputs)]).videos
        extract(videos, bundle, str(place), recipe, progress=progress_bar, append=append)

    run(old, store)
    shutil.copytree(store, whole)
    run(new, whole, append=True)
    real, commits = UnitRunner._commit, 0

    def killed(self: UnitRunner, *arguments: object) -> None:
        nonlocal commits
        if commits == done:
            raise KeyboardInterrupt
        commits += 1
        real(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(UnitRunner, "_commit", killed)
        with pytest.raises(KeyboardInterrupt):
            run(new, store, append=True)
    grown = open_store(store)
    assert grown.rows == 40
    assert len(grown.ok_rows()) >= 18
    assert len(pending_units(grown)) == 2 - done
    run(new, store, append=True)
    assert tokens_by_content(store) == tokens_by_content(whole)
    assert [file.relative_to(store) for file in sorted(store.rglob("*"))] == [
        file.relative_to(whole) for file in sorted(whole.rglob("*"))
    ]
    assert verify_store(store).passed


def test_what_cannot_be_appended_is_refused_and_nothing_changes(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = folder_of(tmp_path / "b", barcodes, range(2)), folder_of(tmp_path / "a", barcodes, range(2, 4))
    options = ("--encoder", bundle.path, "--store", tmp_path / "s.zarr")
    assert coldframe("extract", old, *options).exit_code == 0
    before = {file: file.read_bytes() for file in (tmp_path / "s.zarr").rglob("*") if file.is_file()}
    other = coldframe("extract", new, *options, "--append", "--fps", "5")
    assert (other.exit_code, "fps: 5.0 here, 7.5 in the store" in other.stderr) == (2, True)
    nowhere = coldframe("extract", new, "--encoder", bundle.path, "--store", tmp_path / "none.zarr", "--append")
    assert (nowhere.exit_code, "no store at" in nowhere.stderr) == (2, True)
    shutil.copy(barcodes(70, 700), old / "01.mp4")
    changed = coldframe("extract", old, *options, "--append")
    assert (changed.exit_code, f"{old}/01.mp4 has other content now" in changed.stderr) == (2, True)
    (tmp_path / "m.csv").write_text(f"path,label\n{new}/02.mp4,x\n")
    labelled = coldframe("extract", tmp_path / "m.csv", *options, "--append")
    assert (labelled.exit_code, "columns none; the new ones have label (text)" in labelled.stderr) == (2, True)
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    full = coldframe("extract", new, *options, "--append")
    assert (full.exit_code, "has 10 B free" in full.stderr) == (1, True)
    assert {file: file.read_bytes() for file in before} == before


def test_an_append_that_stops_for_want_of_videos_writes_nothing(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    old = folder_of(tmp_path / "b", barcodes, range(2))
    options = ("--encoder", bundle.path, "--store", tmp_path / "s.zarr")
    assert coldframe("extract", old, *options).exit_code == 0
    (tmp_path / "m.csv").write_text("path\n" + "".join(f"gone{number}.mp4\n" for number in range(60)))
    result = coldframe("extract", tmp_path / "m.csv", *options, "--append")
    assert result.exit_code == 1
    assert "50 videos in a row failed, 50 of them with the reason not_found" in result.stderr
    assert open_store(tmp_path / "s.zarr").rows == 4
    assert np.isfinite(open_store(tmp_path / "s.zarr").cls()).all()
