"""Every kind of damage is found, named and counted."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldframe.store import Status, Store, VerifyReport, seal, verify_store, write_unit
from coldframe.store.files import write_pieces
from coldframe.store.markers import read_sealed_json, write_sealed_json
from coldframe.store.shards import encode_object
from tests.store.plans import small_result

SHARD = "cls/c/1/0"


def kinds(report: VerifyReport) -> set[tuple[str, int | None, str]]:
    return {(problem.kind, problem.unit, problem.object) for problem in report.problems}


def flip(path: Path, position: int = 10) -> None:
    body = bytearray(path.read_bytes())
    body[position] ^= 16
    path.write_bytes(body)


def test_a_sound_store_passes(filled: Store) -> None:
    seal(filled)
    calls: list[tuple[int, int]] = []
    report = verify_store(filled.path, on_unit=lambda done, total: calls.append((done, total)))
    assert report.passed
    assert (report.planned, report.ok, report.failed, report.absent) == (51, 50, 1, 0)
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("damage", "kind", "fast"),
    [
        (lambda p: p.unlink(), "missing", True),
        (lambda p: p.write_bytes(b""), "size", True),
        (lambda p: p.write_bytes(p.read_bytes()[:100]), "size", True),
        (flip, "checksum", False),
        (lambda p: shutil.copy(p.parents[1] / "0" / "0", p), "checksum", False),
    ],
    ids=["deleted", "empty", "half", "flipped bit", "shard of another unit"],
)
def test_damaged_objects(filled: Store, damage: Callable[[Path], Any], kind: str, fast: bool) -> None:
    damage(filled.path / SHARD)
    report = verify_store(filled.path)
    assert kinds(report) == {(kind, 1, SHARD)}
    assert report.damaged_units == (1,)
    assert (report.ok, report.failed, report.absent) == (35, 0, 16)
    assert verify_store(filled.path, deep=False).passed is not fast


def test_swapped_shards_are_found_in_both_units(filled: Store) -> None:
    first, second = filled.path / "patch/c/0/0/0/0/0", filled.path / "patch/c/2/0/0/0/0"
    assert first.stat().st_size == second.stat().st_size
    first.rename(filled.path / "aside")
    second.rename(first)
    (filled.path / "aside").rename(second)
    assert verify_store(filled.path).damaged_units == (0, 2)


def test_data_without_a_marker_and_markers_without_data(filled: Store) -> None:
    (filled.path / "units" / "0.json").unlink()
    for name in filled.unit_arrays.values():
        (filled.path / name.object_key(2)).unlink()
    report = verify_store(filled.path)
    assert ("uncommitted", 0, "patch/c/0/0/0/0/0") in kinds(report)
    assert {kind for kind, unit, _ in kinds(report) if unit == 2} == {"missing"}
    assert report.damaged_units == (2,)


def test_units_that_were_not_extracted_are_listed_as_runs(empty: Store) -> None:
    write_unit(empty, 2, small_result(empty, 2))
    report = verify_store(empty.path)
    messages = [problem.message for problem in report.problems]
    assert messages == [
        "units 0 to 1 (rows 0 to 31) have not been extracted",
        "unit 3 (rows 48 to 50) has not been extracted",
    ]
    assert (report.ok, report.failed, report.absent, report.damaged_units) == (16, 0, 35, ())


@pytest.mark.parametrize("key", ["recipe_id", "plan_id"])
def test_a_marker_of_another_plan_or_recipe(filled: Store, key: str) -> None:
    path = filled.path / "units" / "3.json"
    write_sealed_json(path, {**read_sealed_json(path), key: "0" * 64})
    report = verify_store(filled.path)
    assert kinds(report) == {("marker", 3, "units/3.json")}
    assert "another recipe or plan" in report.problems[0].message


def test_every_flipped_bit_in_a_marker_is_found(filled: Store) -> None:
    path = filled.path / "units" / "1.json"
    good = path.read_bytes()
    for position in range(0, len(good) - 1, 7):  # the last byte is a line break outside of the JSON
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        assert kinds(verify_store(filled.path, deep=False)) == {("marker", 1, "units/1.json")}, position


@pytest.mark.parametrize("key", ["video/c/0", "video_path/c/0", "frame_index/zarr.json", "cls/zarr.json", "units/c/0"])
def test_an_altered_plan_is_found(filled: Store, key: str) -> None:
    flip(filled.path / key, 2)
    report = verify_store(filled.path)
    assert kinds(report) == {("plan", None, key)}
    assert report.ok == 50


def test_an_altered_record_or_attribute_is_found(filled: Store) -> None:
    root = filled.path / "zarr.json"
    text = root.read_text()
    root.write_text(text.replace('"untrained": true', '"untrained": false'))
    assert "root attributes" in verify_store(filled.path).problems[0].message
    root.write_text(text)
    flip(filled.path / "units" / "plan.json")
    assert kinds(verify_store(filled.path)) == {("plan", None, "units/plan.json")}


def _forge(store: Store, name: str, values: np.ndarray[Any, Any]) -> None:
    """Replace an array's object of unit 1 and sign it, as a faulty writer would."""
    spec = store.unit_arrays[name]
    key = spec.object_key(1)
    pieces = encode_object(spec, 16, lambda start, stop, out: np.copyto(out, values[start:stop], casting="unsafe"))
    written = write_pieces(store.path / key, pieces)
    path = store.path / "units" / "1.json"
    marker = read_sealed_json(path)
    marker["objects"][key] = written.to_dict()
    write_sealed_json(path, marker)


@pytest.mark.parametrize(
    ("row", "value", "message"),
    [
        (3, np.nan, "row 19 is ok, but its cls is not finite or all zero"),
        (3, 0.0, "row 19 is ok, but its cls is not finite or all zero"),
        (5, 1.0, "row 21 is failed, but its cls is not NaN"),
    ],
)
def test_values_that_contradict_their_status(filled: Store, row: int, value: float, message: str) -> None:
    values = filled.cls(np.arange(16, 32), allow_failed=True)
    values[row] = value
    _forge(filled, "cls", values)
    report = verify_store(filled.path)
    assert [problem.message for problem in report.problems] == [message]
    assert report.damaged_units == (1,)


def test_rows_that_nobody_accounts_for(filled: Store) -> None:
    status = filled.column("status")[16:32].copy()
    status[7] = Status.ABSENT
    _forge(filled, "status", status)
    messages = [problem.message for problem in verify_store(filled.path).problems]
    assert "row 23 is neither ok nor failed" in messages
    assert "1 failed and 14 ok rows were found, the marker says 1 failed, 15 ok" in messages


def test_an_object_that_cannot_be_decoded_despite_its_digest(filled: Store) -> None:
    key = "cls/c/1/0"
    body = np.frombuffer((filled.path / key).read_bytes(), np.uint8).copy()
    body[3] ^= 1
    written = write_pieces(filled.path / key, [body])
    path = filled.path / "units" / "1.json"
    marker = read_sealed_json(path)
    marker["objects"][key] = written.to_dict()
    write_sealed_json(path, marker)
    report = verify_store(filled.path)
    assert kinds(report) == {("rows", 1, "")}
    assert "does not match its checksum" in report.problems[0].message


def test_files_of_units_that_the_plan_does_not_have(filled: Store) -> None:
    shutil.copy(filled.path / "units" / "3.json", filled.path / "units" / "4.json")
    shutil.copytree(filled.path / "cls" / "c" / "3", filled.path / "cls" / "c" / "9")
    assert kinds(verify_store(filled.path)) == {
        ("unexpected", 4, "units/4.json"),
        ("unexpected", 9, "cls/c/9"),
    }


def test_the_report_is_json(empty: Store) -> None:
    fields = json.loads(json.dumps(verify_store(empty.path).to_dict()))
    assert fields["planned"] == fields["ok"] + fields["failed"] + fields["absent"] == 51
    assert fields["passed"] is False
