"""Many videos: planning and committing them takes time and memory in proportion, and no row is lost."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from coldframe.progress import progress_bar
from coldframe.serve.clips import Answer, VideoClips, read_in_child
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.extract import plan_videos
from coldframe.serve.inputs import InputVideo
from tests.serve import stubs
from tests.serve.test_extract import Barcodes
from tests.store.plans import small_recipe

PLAN_AND_COMMIT = """
import hashlib, json, re, sys, time
from pathlib import Path
import numpy as np
from coldframe.serve import planner
from coldframe.serve.inputs import InputVideo
from coldframe.serve.pts_index import PtsIndex
from coldframe.serve.sampling import SampledClips
from coldframe.serve.survey import Survey
from coldframe.store import Status, UnitResult, create_store, pending_units, seal, write_unit
from tests.store.plans import ENCODER, small_geometry, small_recipe

folder, videos, commit = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "commit"
frames = np.arange(4, dtype=np.int32)[None]


class SurveyedAtOnce:  # as a decode process would answer that takes no time
    def run(self, job, path, recipe, annotations):
        clips = SampledClips(
            start_s=np.zeros(1), end_s=np.ones(1), frame_index=frames.copy(), frame_pts_s=frames / 7.5,
            n_real=np.full(1, 4, np.int16), flags=np.zeros(1, np.uint32),
        )
        yield Survey(sha256=hashlib.sha256(path.encode()).hexdigest(), bytes=len(path), clips=clips)

    def close(self):
        pass


def peak_bytes():
    # not getrusage, whose maximum a child inherits from its parent
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])


planner.DecodeProcess = SurveyedAtOnce
inputs = [InputVideo(path=f"/videos/{number:08d}.mp4") for number in range(videos)]
before, clock = peak_bytes(), time.process_time()
plan = planner.make_plan(inputs, small_recipe(), threads=1)
answer = {"plan_seconds": time.process_time() - clock, "plan_bytes": peak_bytes() - before}
assert plan.clips.video.tolist() == list(range(videos))
if commit:
    clock = time.process_time()
    store = create_store(folder, plan, geometry=small_geometry(), encoder=ENCODER)
    for unit in range(store.unit_count):
        rows = store.unit_range(unit)
        count = np.zeros(len(rows), np.uint8)
        cls = np.ones((len(rows), store.geometry.dim), np.float32)
        cls[:, 0] = np.array(rows) % 1000
        write_unit(store, unit, UnitResult(rows=rows, status=count + Status.OK, reason=count, cls=cls))
    answer["sealed"] = seal(store)
    at = np.array([0, store.rows // 2, store.rows - 1])
    answer["kept"] = store.cls(at)[:, 0].tolist() == (at % 1000).tolist() and not pending_units(store)
    answer |= {"commit_seconds": time.process_time() - clock, "all_bytes": peak_bytes() - before}
print(json.dumps(answer))
"""


def run(folder: Path, videos: int, do: str) -> dict[str, Any]:
    command = [sys.executable, "-c", PLAN_AND_COMMIT, str(folder / str(videos)), str(videos), do]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


def test_planning_takes_time_and_memory_in_proportion(tmp_path: Path) -> None:
    few, many = run(tmp_path, 10_000, "plan"), run(tmp_path, 40_000, "commit")
    assert many["sealed"] == {"planned": 40_000, "ok": 40_000, "failed": 0, "absent": 0}
    assert many["kept"]
    assert many["plan_seconds"] < 8 * few["plan_seconds"]  # 4 if it is linear, 16 if it is quadratic
    assert many["plan_bytes"] < 40_000 * 1_500


def test_decoding_file_after_file_leaves_nothing_behind(barcodes: Barcodes) -> None:
    """In one decode process, which lives for a whole run; 3,000 files are in docs/LOG.md."""
    path = str(barcodes(20, 0))
    plan = plan_videos([InputVideo(path=path)], small_recipe(), progress_bar)
    rows = plan.clips.frame_index
    video = VideoClips(path=path, sha256=plan.videos.sha256[0], rows=np.arange(len(rows)), frame_index=rows)
    process = DecodeProcess()

    def decode(times: int) -> tuple[int, int, int]:
        for _ in range(times):
            clips: list[Answer] = list(process.run(read_in_child, video, 32))
            assert all(isinstance(clip, np.ndarray) for _, clip in clips)
        ((files, threads, resident),) = process.run(stubs.holdings)
        return files, threads, resident

    try:
        before, after = decode(40), decode(160)
    finally:
        process.close()
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 160 * 20_000  # one of its 20 pictures of 64 x 64 would be 12 kB
