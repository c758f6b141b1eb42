"""Many rows: memory does not follow their number, and no row of them is lost."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

from coldframe.store import Store, open_store

WRITE_ALL = """
import json, re, sys
from pathlib import Path
import numpy as np
from coldframe.store import Status, UnitResult, create_store, pending_units, seal, write_unit
from tests.store.plans import ENCODER, small_geometry, small_plan

path, videos, clips = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = create_store(path, small_plan([clips] * videos), geometry=small_geometry(), encoder=ENCODER)
for unit in range(store.unit_count):
    rows = store.unit_range(unit)
    count = np.zeros(len(rows), np.uint8)
    cls = np.ones((len(rows), store.geometry.dim), np.float32)
    cls[:, 0] = np.array(rows) % 1000
    write_unit(store, unit, UnitResult(rows=rows, status=count + Status.OK, reason=count, cls=cls))
told = seal(store)
at = np.array([0, store.rows // 2, store.rows - 1])
kept = store.cls(at)[:, 0].tolist() == (at % 1000).tolist() and not pending_units(store)
# not getrusage, whose maximum a child inherits from its parent
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(json.dumps({"told": told, "kept": kept, "peak_bytes": 1024 * peak, "units": store.unit_count}))
"""


def written(path: Path, videos: int, clips: int) -> dict[str, object]:
    command = [sys.executable, "-c", WRITE_ALL, str(path), str(videos), str(clips)]
    answer: dict[str, object] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def test_two_hundred_thousand_rows_take_the_memory_of_their_plan(tmp_path: Path) -> None:
    few, many = written(tmp_path / "few.zarr", 200, 100), written(tmp_path / "many.zarr", 2_000, 100)
    assert many["told"] == {"planned": 200_000, "ok": 200_000, "failed": 0, "absent": 0}
    assert many["kept"]
    plan_bytes = 200_000 * 4 * 16  # frame numbers and times, four a row, and what else a row has in the plan
    assert int(str(many["peak_bytes"])) - int(str(few["peak_bytes"])) < 8 * plan_bytes


def test_opening_reading_and_closing_leaves_nothing_behind(filled: Store) -> None:
    """3,000 cycles are in docs/LOG.md."""

    def held() -> tuple[int, int, int]:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident

    def cycle() -> None:
        store = open_store(filled.path)
        assert len(store.cls()) == 50
        assert store.patch([3]).shape == (1, 4, 4, 4, 8)
        assert len(store.video_column("path")) == 5

    for _ in range(40):
        cycle()
    before = held()
    for _ in range(160):
        cycle()
    after = held()
    assert after[0] <= before[0]
    assert after[1] <= before[1]
    assert after[2] - before[2] < 160 * 8192  # a store that stayed would keep its arrays and the caches of zarr
