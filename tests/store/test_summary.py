"""The summary counts rows and videos by hand-worked truth, and the seal refuses anything unaccounted for."""

import json
from pathlib import Path

import numpy as np
import pytest

from coldframe.errors import StoreError
from coldframe.store import Reason, Status, Store, create_store, seal, summarise, write_unit
from tests.store.plans import ENCODER, small_geometry, small_plan, small_result


def test_a_complete_store(filled: Store) -> None:
    summary = summarise(filled)
    assert summary["complete"] is True
    assert summary["rows"] == {"planned": 51, "ok": 50, "failed": 1, "absent": 0}
    assert summary["videos"] == {"planned": 5, "ok": 4, "partly_ok": 0, "failed": 1, "pending": 0}
    assert summary["units"] == {"total": 4, "done": 4, "rows": 16}
    assert summary["reasons"] == {"no_video": 1}
    assert summary["flags"] == {"colour_untagged": 50}
    assert (summary["tokens"], summary["dtype"]) == ("full", "float16")
    assert summary["arrays"]["patch"]["shape"] == [51, 4, 4, 4, 8]
    on_disk = sum(entry.stat().st_size for entry in (filled.path / "patch").rglob("*") if entry.is_file())
    assert summary["arrays"]["patch"]["bytes"] == on_disk > 51 * 4 * 4 * 4 * 8 * 2
    assert summary["encoder"]["untrained"] is True
    json.dumps(summary, allow_nan=False)


def test_a_store_under_way(empty: Store) -> None:
    result = small_result(empty, 0)
    result.status[19 - 16], result.reason[19 - 16] = Status.FAILED, Reason.DECODE_ERROR  # row 3, video 0
    write_unit(empty, 0, result)
    write_unit(empty, 1, small_result(empty, 1))
    summary = summarise(empty)
    assert summary["complete"] is False
    assert summary["rows"] == {"planned": 51, "ok": 30, "failed": 2, "absent": 19}
    # video 0 (rows 0-19) is partly ok, 1 (row 20) ok, 2 (row 21) failed, 3 (22-38) and 4 (39-50) still wait
    assert summary["videos"] == {"planned": 5, "ok": 1, "partly_ok": 1, "failed": 1, "pending": 2}
    assert summary["reasons"] == {"no_video": 1, "decode_error": 1}


def test_an_incomplete_store_is_not_sealed(filled: Store) -> None:
    (filled.path / "cls" / "c" / "2" / "0").unlink()
    with pytest.raises(StoreError, match=r"16 of 51 rows are absent \(1 units\). Run the same extraction again"):
        seal(filled)
    assert not (filled.path / "units" / "summary.json").exists()


def test_the_ledger_lists_every_failed_row_once_in_row_order(tmp_path: Path) -> None:
    plan = small_plan((0, 30, 0, 10))
    store = create_store(tmp_path / "s", plan, geometry=small_geometry(), encoder=ENCODER)
    for unit in reversed(range(store.unit_count)):
        result = small_result(store, unit)
        if unit == 1:
            result.tokens["cls"][4, 0] = np.inf  # row 20
        write_unit(store, unit, result)
    assert seal(store) == {"planned": 42, "ok": 39, "failed": 3, "absent": 0}
    lines = (store.path / "units" / "failures.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [(e["row"], e["video"], e["reason"]) for e in entries] == [
        (0, 0, "no_video"),
        (20, 1, "non_finite"),
        (31, 2, "no_video"),
    ]
    assert entries[1]["path"] == plan.videos.path[1]
    assert json.loads((store.path / "units" / "summary.json").read_text()) == summarise(store)


def test_order_of_units_and_workers_leaves_no_trace(tmp_path: Path) -> None:
    sealed = []
    for name, order in (("a", [0, 1, 2, 3]), ("b", [3, 1, 0, 2])):
        store = create_store(tmp_path / name, small_plan(), geometry=small_geometry(), encoder=ENCODER)
        for unit in order:
            write_unit(store, unit, small_result(store, unit))
        seal(store)
        sealed.append({p.relative_to(store.path): p.read_bytes() for p in store.path.rglob("*") if p.is_file()})
    assert sealed[0] == sealed[1]
