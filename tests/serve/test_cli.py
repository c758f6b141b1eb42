"""`coldframe plan` and `coldframe extract` as a person or a script meets them."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.export import Bundle
from coldframe.store import open_store
from tests.barcode import cut, write_video

Barcodes = Callable[[int, int], Path]


def coldframe(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_plan_shows_clips_bytes_and_time_and_writes_nothing(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    shutil.copy(barcodes(150, 0), tmp_path / "v.mp4")
    (tmp_path / "notes.txt").write_text("x")
    before = sorted(tmp_path.iterdir())
    result = coldframe("plan", tmp_path, "--encoder", bundle.path, "--tokens", "full", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["videos"] == 1
    assert found["clips"] == 3  # 5 s are 38 grid times
    assert found["video_seconds"] == pytest.approx(5.0)
    assert found["tier_bytes"] == {
        "cls": 3 * 48 * 2,
        "cls+mean": 3 * 48 * 2 * 17,
        "cls+grid7": 3 * 48 * 2 * 17,
        "full": 3 * 48 * 2 * 65,
        "mean": 3 * 48 * 2 * 16,
        "grid7": 3 * 48 * 2 * 16,
    }
    slowest = max(found["decode_seconds_per_clip"], found["encode_seconds_per_clip"])
    assert found["hours"] == pytest.approx(3 * slowest / 3600)
    assert found["ignored_files"] == {".txt": 1}
    assert sorted(tmp_path.iterdir()) == before
    text = coldframe("plan", tmp_path, "--encoder", bundle.path).stdout
    assert "1 .txt" in text
    assert "3 of 16 frames at 7.5 fps" in text


def test_plan_counts_the_copies_that_share_rows(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    for name in ("a", "b", "c"):
        shutil.copy(barcodes(70, 0), tmp_path / f"{name}.mp4")
    shutil.copy(barcodes(70, 70), tmp_path / "other.mp4")
    found = json.loads(coldframe("plan", tmp_path, "--encoder", bundle.path, "--json").stdout)
    assert (found["videos"], found["copies"]) == (2, 2)
    assert "copies    2 more files hold the bytes" in coldframe("plan", tmp_path, "--encoder", bundle.path).stdout


def test_plan_names_unusable_videos_and_ends_with_3(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    shutil.copy(barcodes(70, 0), tmp_path / "a.mp4")
    (tmp_path / "b.mp4").write_bytes(b"")
    result = coldframe("plan", tmp_path, "--encoder", bundle.path)
    assert result.exit_code == 3
    assert f"unusable  {tmp_path / 'b.mp4'}: " in result.stdout


def test_extract_info_verify(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    store = tmp_path / "s.zarr"
    (tmp_path / "m.csv").write_text(f"path,label,source\n{barcodes(70, 0)},cut,kitchen\n{barcodes(70, 70)},pour,\n")
    result = coldframe("extract", tmp_path / "m.csv", "--encoder", bundle.path, "--store", store, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["ok"] == 4
    opened = open_store(store)
    assert opened.video_column("label") == ["cut", "pour"]
    assert opened.video_column("source")[0] == "kitchen"
    assert coldframe("info", store).exit_code == 0
    assert coldframe("verify", store).exit_code == 0
    shard = next(path for path in (store / "cls").rglob("*") if path.is_file() and "c" in path.parts)
    shard.write_bytes(shard.read_bytes()[:-1])
    assert coldframe("verify", store).exit_code == 1


def test_extract_with_a_bad_file_ends_with_3_and_says_where_to_look(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    (tmp_path / "not_a_video.mp4").write_text("plain text")
    result = coldframe(
        "extract", barcodes(70, 0), tmp_path / "not_a_video.mp4", "--encoder", bundle.path, "--store", tmp_path / "s"
    )
    assert result.exit_code == 3
    assert f"coldframe info {tmp_path / 's'} --failures" in result.stdout
    assert "not_a_video.mp4" in coldframe("info", tmp_path / "s", "--failures").stdout


def one_error_line(result: Result) -> str:
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("coldframe: error: ")
    assert result.stdout == ""
    return lines[0]


def test_bad_requests_get_one_line_and_exit_code_2(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    video, store = barcodes(70, 0), tmp_path / "s.zarr"
    run: tuple[str | Path, ...] = ("extract", video, "--encoder", bundle.path, "--store", store)
    assert coldframe(*run).exit_code == 0
    cases: dict[str, tuple[str | Path, ...]] = {
        "nowhere.mp4 does not exist": ("extract", "nowhere.mp4", "--encoder", bundle.path, "--store", store),
        "no_such_bundle": ("extract", video, "--encoder", tmp_path / "no_such_bundle", "--store", store),
        "fps: 5.0 here, 7.5 in the store": (*run, "--fps", "5"),
        "fps is 0;": (*run, "--fps", "0"),
        "fps is 1e-09;": (*run, "--fps", "1e-9"),
        "fps is nan;": (*run, "--fps", "nan"),
        "frames is 8": (*run, "--frames", "8"),
        "hop is 0": (*run, "--hop", "0"),
        "hop is 1000000000000000000000 frames": (*run, "--hop", str(10**21)),
        "No video found": ("plan", tmp_path / "s.zarr", "--encoder", bundle.path),
    }
    for message, arguments in cases.items():
        result = coldframe(*arguments)
        assert result.exit_code == 2, (message, result.output)
        assert message in one_error_line(result)
    for path in (tmp_path, bundle.path):  # a folder that is something else
        result = coldframe("extract", video, "--encoder", bundle.path, "--store", path)
        assert result.exit_code == 2
        assert str(path) in one_error_line(result)


def test_export_of_an_unknown_encoder_is_one_line(tmp_path: Path) -> None:
    result = coldframe("export", "levjepa-gigantic", "--random-init", "0", "--out", tmp_path / "b")
    assert result.exit_code == 2
    assert "levjepa-gigantic" in one_error_line(result)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("place", ["/proc/s.zarr", "/dev/full/s.zarr"])
def test_place_that_cannot_be_written_is_one_line(place: str, bundle: Bundle, barcodes: Barcodes) -> None:
    result = coldframe("extract", barcodes(70, 0), "--encoder", bundle.path, "--store", place)
    assert result.exit_code in (1, 2)
    assert place.split("/s.zarr")[0] in one_error_line(result)


def test_read_only_folder_is_one_line(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    arguments = ["extract", str(barcodes(70, 0)), "--encoder", str(bundle.path), "--store", str(folder / "s.zarr")]
    run = subprocess.run(
        [sys.executable, "-m", "coldframe.cli", *arguments],
        capture_output=True,
        text=True,
        preexec_fn=_obey_permissions if os.getuid() == 0 else None,
    )
    assert run.returncode in (1, 2), run.stderr
    assert len(run.stderr.strip().splitlines()) == 1, run.stderr
    assert "locked" in run.stderr
    assert not any(folder.iterdir())


def _obey_permissions() -> None:
    """Give up root's right to write where permissions forbid it, for the program that is executed next."""
    drop_from_bounding_set, dac_override = 24, 1
    assert ctypes.CDLL(None).prctl(drop_from_bounding_set, dac_override, 0, 0, 0) == 0


def test_plan_says_what_a_cut_file_still_has(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    whole = write_video(tmp_path / "whole.mkv", 120)
    cut(whole, tmp_path / "cut.mkv", 0.6)
    whole.unlink()
    result = coldframe("plan", tmp_path, "--encoder", bundle.path)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("cut short")]
    assert "cut.mkv: 2." in line  # about 60 % of 4 s
    assert "nan" not in line
