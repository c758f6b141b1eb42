"""Files, folders and manifests become one sorted list, whatever the names and the order."""

import os
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from coldframe.errors import InputNotFound, UsageError
from coldframe.serve.inputs import collect_inputs, passed_over, read_manifest

ODD_NAMES = ["a b.mp4", "line\nbreak.mp4", "%03d.mp4", "ü.mp4", "back\\slash.mp4", "x:y.mp4", os.fsdecode(b"\xff.mp4")]


def touch(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return str(path)


def paths_of(*names: str) -> list[str]:
    return [video.path for video in collect_inputs(names).videos]


def test_every_name_survives_exactly(tmp_path: Path) -> None:
    made = sorted((touch(tmp_path / name) for name in ODD_NAMES), key=os.fsencode)
    assert paths_of(str(tmp_path)) == made


def test_order_of_arguments_does_not_matter(tmp_path: Path) -> None:
    b, a = touch(tmp_path / "b.mp4"), touch(tmp_path / "sub" / "a.mp4")
    assert paths_of(b, str(tmp_path / "sub")) == paths_of(str(tmp_path / "sub"), b) == sorted([a, b])


def test_same_name_in_two_folders_and_two_spellings_are_distinct(tmp_path: Path) -> None:
    made = [touch(tmp_path / name) for name in ("cat/000.mp4", "dog/000.mp4", "A.mp4", "a.mp4")]
    assert paths_of(str(tmp_path)) == sorted(made)


def test_listing_a_file_twice_counts_once(tmp_path: Path) -> None:
    file = touch(tmp_path / "a.mp4")
    assert paths_of(file, file, str(tmp_path)) == [file]


def test_cycle_of_links_ends(tmp_path: Path) -> None:
    file = touch(tmp_path / "sub" / "a.mp4")
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    assert paths_of(str(tmp_path)) == [file]


def test_link_that_leads_nowhere_is_an_input_and_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "gone.mp4").symlink_to(tmp_path / "another disk" / "gone.mp4")
    (tmp_path / "itself.mp4").symlink_to(tmp_path / "itself.mp4")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    found = collect_inputs([str(tmp_path)])
    assert [Path(video.path).name for video in found.videos] == ["gone.mp4", "itself.mp4"]
    assert found.ignored == {".txt": 1}


def test_other_files_in_a_folder_are_counted_not_hidden(tmp_path: Path) -> None:
    for name in ("a.MP4", "notes.txt", "b.json", "c.json", "README"):
        touch(tmp_path / name)
    inputs = collect_inputs([str(tmp_path)])
    assert len(inputs.videos) == 1
    assert inputs.ignored == {".txt": 1, ".json": 2, "": 1}


def test_a_named_file_is_tried_whatever_its_ending(tmp_path: Path) -> None:
    assert paths_of(touch(tmp_path / "clip.dat")) == [str(tmp_path / "clip.dat")]


def test_csv_keeps_text_and_carries_columns(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text('path,source,label,take\nv/a.mp4,kitchen,"cut, raw",007\nb.mp4,,pour,1\n', encoding="utf-8-sig")
    first, second = read_manifest(str(file))
    assert first.path == str(tmp_path / "v" / "a.mp4")
    assert first.source == "kitchen"
    assert first.columns == {"label": "cut, raw", "take": "007"}
    assert second.source is None


def test_csv_may_name_paths_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_bytes(b"path,label\n\xff.mp4,x\n")
    assert os.fsencode(read_manifest(str(tmp_path / "m.csv"))[0].path).endswith(b"/\xff.mp4")
    (tmp_path / "bad.csv").write_bytes(b"path,label\na.mp4,\xff\n")
    with pytest.raises(UsageError, match="row 1: not UTF-8"):
        read_manifest(str(tmp_path / "bad.csv"))


def test_parquet_keeps_types(tmp_path: Path) -> None:
    table = pyarrow.table({"path": ["a.mp4", "b.mp4"], "label": ["x", None], "take": [7, 8], "score": [0.5, 1.5]})
    parquet.write_table(table, tmp_path / "m.parquet")
    first, second = read_manifest(str(tmp_path / "m.parquet"))
    assert first.columns == {"label": "x", "take": 7, "score": 0.5}
    assert second.columns["label"] is None


def test_nan_in_parquet_is_a_missing_value(tmp_path: Path) -> None:
    nan = float("nan")
    table = pyarrow.table({"path": ["a.mp4", "b.mp4"], "source": [nan, 3.5], "score": [nan, 1.5]})
    parquet.write_table(table, tmp_path / "m.parquet")
    first, second = read_manifest(str(tmp_path / "m.parquet"))
    assert (first.source, first.columns) == (None, {"score": None})
    assert (second.source, second.columns) == ("3.5", {"score": 1.5})


def test_source_without_columns_is_kept_whatever_the_order(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("path,source\na.mp4,kitchen\n")
    names = [str(tmp_path / "m.csv"), touch(tmp_path / "a.mp4")]
    for order in (names, names[::-1]):
        assert [video.source for video in collect_inputs(order).videos] == ["kitchen"]


def test_missing_file_in_a_manifest_is_kept_for_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("path\ngone.mp4\n")
    assert paths_of(str(tmp_path / "m.csv")) == [str(tmp_path / "gone.mp4")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.csv", "file,label\na.mp4,x\n", r"no column 'path' \(columns: 'file', 'label'\)"),
        ("m.csv", "path,label\na.mp4\n", "row 1: 1 cells under 2 columns"),
        ("m.csv", "path,label\n,x\n", "row 1: the path is ''"),
        ("m.csv", "path,path\na,b\n", "must be unique"),
        ("m.csv", "", "no column 'path'"),
        ("m.parquet", "not parquet", "is not a parquet file"),
        ("m.csv", "path,label\na.mp4,x\na.mp4,y\n", "listed twice with different columns"),
        ("m.csv", "path,source\na.mp4,x\na.mp4,y\n", "listed twice with different columns"),
        ("m.csv", "path,frames\na.mp4,3\n", "'frames' has the name of a built-in column"),
        ("m.csv", "path,a/b\na.mp4,3\n", "'a/b' cannot name an array"),
        ("m.csv", "path\n", "No video found"),
    ],
)
def test_malformed_manifest_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        collect_inputs([str(tmp_path / name)])


def test_missing_path_is_named() -> None:
    with pytest.raises(InputNotFound, match=r"nowhere/at\.mp4 does not exist"):
        collect_inputs(["nowhere/at.mp4"])


def test_empty_folder_says_what_was_passed_over(tmp_path: Path) -> None:
    touch(tmp_path / "a.txt")
    with pytest.raises(UsageError, match=r"Passed over: 1 \.txt"):
        collect_inputs([str(tmp_path)])


def test_what_was_passed_over_fits_on_a_line() -> None:
    ignored = {f".{letter}": 10 - place for place, letter in enumerate("jihgfedcba")} | {"": 3}
    assert passed_over(ignored) == "10 .j, 9 .i, 8 .h, 7 .g, 6 .f, 5 .e, 4 .d, 3 without ending, 6 of 3 other endings"
    assert passed_over({}) == "nothing"
