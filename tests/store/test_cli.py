"""`coldframe info` and `coldframe verify` as a user meets them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coldframe import progress
from coldframe.cli import main
from coldframe.store import Store, pending_units, write_unit
from tests.store.plans import small_result


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def flip(store: Store) -> None:
    shard = store.path / "cls/c/1/0"
    body = bytearray(shard.read_bytes())
    body[9] ^= 1
    shard.write_bytes(body)


def test_info_names_what_matters(filled: Store) -> None:
    result = run("info", filled.path, "--failures")
    assert result.exit_code == 0
    assert "s.zarr: complete" in result.output
    files = [file.stat().st_size for file in filled.path.rglob("*") if file.is_file()]
    assert f"files    {len(files)}, the largest " in result.output
    shown = json.loads(run("info", filled.path, "--json").output)
    assert (shown["files"], shown["largest_file_bytes"], shown["total_bytes"]) == (len(files), max(files), sum(files))
    assert "51 planned = 50 ok + 1 failed + 0 absent" in result.output
    assert "levjepa-nano, untrained (random weights), licence none" in result.output
    assert "(51, 4, 4, 4, 8) float16" in result.output
    assert f"row 21: no_video: {filled.video_column('path')[2]}: only audio" in result.output


def test_info_as_json(filled: Store) -> None:
    result = run("info", filled.path, "--json", "--failures")
    fields = json.loads(result.output)
    assert fields["rows"]["ok"] == 50
    assert [failure["row"] for failure in fields["failures"]] == [21]
    assert "failures" not in json.loads(run("info", filled.path, "--json").output)


def test_info_of_a_store_under_way(empty: Store) -> None:
    result = run("info", empty.path)
    assert (result.exit_code, "NOT complete" in result.output) == (0, True)


def test_verify_passes(filled: Store) -> None:
    result = run("verify", filled.path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.output == (
        "51 rows planned = 50 ok + 1 failed + 0 absent; checked markers, sizes, checksums and rows: no problems\n"
    )


def test_verify_finds_what_fast_cannot_see_and_changes_nothing(filled: Store) -> None:
    flip(filled)
    fast = run("verify", filled.path, "--fast")
    assert (fast.exit_code, "not checksums" in fast.output) == (0, True)
    result = run("verify", filled.path)
    assert result.exit_code == 1
    assert "checksum: unit 1: cls/c/1/0: the object's sha256 is not the recorded one" in result.stdout
    assert "Run `coldframe repair` on the store" in result.stderr
    assert pending_units(filled) == []
    write_unit(filled, 1, small_result(filled, 1))
    assert run("verify", filled.path).exit_code == 0


def test_verify_on_a_terminal_lists_an_altered_plan(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_is_terminal", lambda: True)
    with (filled.path / "video/c/0").open("ab") as file:
        file.write(b"x")
    result = run("verify", filled.path)
    assert result.exit_code == 1
    assert "plan: plan: video/c/0: the object has" in result.stdout


def test_name_with_a_line_break_stays_on_its_line(filled: Store) -> None:
    place = filled.path.rename(filled.path.with_name("a\nb.zarr"))
    assert run("info", place).stdout.splitlines()[0].endswith("a b.zarr: complete")


def test_verify_as_json(empty: Store) -> None:
    result = run("verify", empty.path, "--json")
    assert result.exit_code == 1
    fields = json.loads(result.stdout)
    assert (fields["passed"], fields["absent"], fields["problems"][0]["kind"]) == (False, 51, "absent")


@pytest.mark.parametrize("command", ["info", "verify", "convert"])
def test_an_empty_name_is_not_the_current_folder(
    filled: Store, monkeypatch: pytest.MonkeyPatch, command: str, tmp_path: Path
) -> None:
    monkeypatch.chdir(filled.path)
    more = ("--to", "npy", "--out", tmp_path / "out") if command == "convert" else ()
    result = run(command, "", *more)
    assert (result.exit_code, "The path of the store is empty" in result.stderr) == (2, True)


def test_usage_errors_leave_with_2(filled: Store) -> None:
    assert run("info", filled.path / "cls").exit_code == 2
    missing = run("verify", filled.path / "nothing")
    assert (missing.exit_code, "There is no store at" in missing.stderr) == (2, True)
