"""Any file name survives exactly: through plan, store, ledger, info, convert, append and repair."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.export import Bundle
from coldframe.store import open_store, text_to_path, verify_store
from tests.serve import inline
from tests.serve.test_extract import Barcodes

NAMES = [
    b"cat/000.mp4",
    b"dog/000.mp4",
    b"A.mp4",
    b"a.mp4",
    "Zürich.mp4".encode(),
    "Zu\u0308rich.mp4".encode(),  # the same to the eye, another name to the file system
    "映像 🎞.mp4".encode(),
    b"  two  blanks .mp4",
    b"line\nbreak.mp4",
    b"tab\tand\x1b[31mcolour.mp4",
    b"frame_%03d.mp4",
    b"latin1_caf\xe9.mp4",
    b"back\\slash\\xe9.mp4",
    b"quote\"comma,'x'.mp4",
    b"http:host.mp4",
    b"-o.mp4",
    b"hash#query?.mp4",
    b"n" * 251 + b".mp4",
]


def coldframe(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle, barcodes: Barcodes) -> Path:
    """One video of another length under every name of NAMES, so that mixing any two of them shows."""
    folder = tmp_path_factory.mktemp("names")
    for number, name in enumerate(NAMES):
        place = os.path.join(os.fsencode(folder / "v"), name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.copy(os.fsencode(barcodes(20 + number, 100 * number)), place)
    os.symlink("A.mp4", folder / "v" / "link.mp4")
    os.symlink("..", folder / "v" / "cat" / "cycle")
    (folder / "v" / os.fsdecode(b"broken \xff\n%s.mp4")).write_bytes(b"no video")
    with pytest.MonkeyPatch.context() as patched:
        inline.use(patched)
        result = coldframe("extract", folder / "v", "--encoder", bundle.path, "--store", folder / "s.zarr")
    assert result.exit_code == 3, result.output
    assert sorted(os.listdir(folder)) == ["s.zarr", "v"]
    return folder / "s.zarr"


def test_paths_in_the_store_lead_to_the_files(store: Path) -> None:
    opened = open_store(store)
    paths = [os.fsencode(text_to_path(text)) for text in opened.video_column("path")]
    root = os.fsencode(store.parent / "v")
    broken = b"broken \xff\n%s.mp4"
    assert sorted(paths) == sorted(os.path.join(root, name) for name in [*NAMES, broken])
    assert paths == sorted(paths)
    frames = dict(zip(paths, np.asarray(opened.video_column("frames")).tolist(), strict=True))
    for number, name in enumerate(NAMES):
        assert frames[os.path.join(root, name)] == 20 + number
    twins = [json.loads(text) for text in opened.video_column("duplicates")]
    assert [twin for twin in twins if twin] == [[str(store.parent / "v/link.mp4")]]
    assert twins[paths.index(os.path.join(root, b"A.mp4"))]


def test_ledger_and_info_name_the_broken_file_on_one_line(store: Path) -> None:
    (entry,) = [json.loads(line) for line in (store / "units/failures.jsonl").read_bytes().splitlines()]
    assert os.fsencode(text_to_path(entry["path"])).endswith(b"/broken \xff\n%s.mp4")
    result = coldframe("info", store, "--failures")
    (line,) = [line for line in result.stdout.splitlines() if "unreadable: /" in line]
    assert "broken \\xff %s.mp4" in line
    assert "\x1b" not in result.stdout
    listed = json.loads(coldframe("info", store, "--failures", "--json").stdout)["failures"]
    assert [failure["path"] for failure in listed] == [entry["path"]]


def test_converted_files_name_the_videos(store: Path, tmp_path: Path) -> None:
    assert coldframe("convert", store, "--to", "npy", "--out", tmp_path / "npy").exit_code == 0
    with open(tmp_path / "npy/index.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    opened = open_store(store)
    paths, video = opened.video_column("path"), opened.column("video")
    for row in rows:
        number = int(row["row"])
        assert row["video_path"] == paths[video[number]]
        values = np.load(tmp_path / "npy" / row["file"])[int(row["position"])]
        np.testing.assert_array_equal(values, opened.cls([number])[0])
    assert {row["video_path"] for row in rows} == {paths[number] for number in video[opened.ok_rows()]}


def test_repair_and_append_find_the_files_again(
    store: Path, tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline.use(monkeypatch)
    copy = shutil.copytree(store, tmp_path / "s.zarr")
    for unit in range(open_store(copy).unit_count):
        (copy / f"cls/c/{unit}/0").write_bytes(b"")
    result = coldframe("repair", copy, "--encoder", bundle.path)
    assert result.exit_code == 3, result.output
    assert verify_store(copy).passed
    for file in (store / "cls").rglob("*"):
        if file.is_file():
            assert (copy / file.relative_to(store)).read_bytes() == file.read_bytes()
    again = coldframe("extract", store.parent / "v", "--encoder", bundle.path, "--store", copy, "--append")
    assert again.exit_code == 3, again.output
    assert open_store(copy).plan_id == open_store(store).plan_id


def test_a_manifest_may_name_them_too(
    store: Path, tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline.use(monkeypatch)
    root = store.parent / "v"
    with open(tmp_path / "m.csv", "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path"])
        writer.writerows([os.path.join(root, os.fsdecode(name))] for name in NAMES)
    result = coldframe("extract", tmp_path / "m.csv", "--encoder", bundle.path, "--store", tmp_path / "s.zarr")
    assert result.exit_code == 0, result.output
    opened, whole = open_store(tmp_path / "s.zarr"), open_store(store)
    assert set(opened.video_column("path")) < set(whole.video_column("path"))
    np.testing.assert_array_equal(opened.cls(), whole.cls())


@pytest.mark.parametrize("name", ["plain", "caf\udce9 %03d\n.zarr"])
def test_a_store_that_cannot_be_there_is_refused_before_any_work(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, name: str
) -> None:
    link = tmp_path / name
    link.symlink_to(tmp_path / "nowhere")
    for path, message in ((link, "is a link to "), ("", "The path of the store is empty")):
        for more in ((), ("--dry-run",), ("--append",)):
            result = coldframe("extract", barcodes(70, 0), "--encoder", "no bundle", "--store", path, *more)
            assert (result.exit_code, message in result.stderr) == (2, True), result.output
            assert len(result.stderr.splitlines()) == 1
