"""The plan: every input has rows, rows never depend on how the plan was made, copies are extracted once."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldframe.errors import UsageError
from coldframe.serve.inputs import InputVideo, collect_inputs
from coldframe.serve.planner import make_plan
from coldframe.store.plan import Plan
from coldframe.store.recipe import Recipe
from coldframe.store.schema import Flag, Reason, Status

Barcodes = Callable[[int, int], Path]
RECIPE = Recipe(encoder="test", weights_sha256="0" * 64, attention="block_causal", frames=16)


def plan_of(*paths: Path | str, recipe: Recipe = RECIPE, threads: int = 1) -> Plan:
    return make_plan(collect_inputs(map(str, paths)).videos, recipe, threads=threads)


def corpus(folder: Path, barcodes: Barcodes) -> Path:
    """Ten videos, of which #4 is random bytes and #7 is empty."""
    folder.mkdir()
    for number in range(10):
        shutil.copy(barcodes(70, 70 * number), folder / f"{number}.mp4")
    (folder / "4.mp4").write_bytes(np.random.default_rng(0).bytes(5000))
    (folder / "7.mp4").write_bytes(b"")
    return folder


def test_unusable_videos_keep_one_row_each_that_says_why(tmp_path: Path, barcodes: Barcodes) -> None:
    plan = plan_of(corpus(tmp_path / "c", barcodes))
    clips_per_video = np.bincount(plan.clips.video)
    assert clips_per_video.tolist() == [2, 2, 2, 2, 1, 2, 2, 1, 2, 2]  # 70 frames are 2.3 s: 16 + 2 grid times
    failed = [number for number, status in enumerate(plan.videos.status) if status != Status.OK]
    assert failed == [4, 7]
    assert plan.videos.reason[[4, 7]].tolist() == [Reason.UNREADABLE, Reason.EMPTY_FILE]
    assert plan.videos.error[4]
    assert "4.mp4" in plan.videos.path[4]
    for row in np.flatnonzero(plan.clips.reason):
        assert plan.clips.video[row] in (4, 7)
        assert np.isnan(plan.clips.start_s[row])
        assert plan.clips.frame_index[row].tolist() == [-1] * 16
        assert plan.clips.n_real[row] == 0


def test_plan_is_the_same_however_it_is_made(tmp_path: Path, barcodes: Barcodes) -> None:
    folder = corpus(tmp_path / "c", barcodes)
    files = sorted(folder.iterdir(), reverse=True)
    assert plan_of(folder).plan_id == plan_of(folder, threads=4).plan_id == plan_of(*files).plan_id


@pytest.mark.parametrize(
    "change", [{"fps": 8.0}, {"hop_frames": 8}, {"tokens": "full"}, {"sampling": "stride"}, {"weights_sha256": "1"}]
)
def test_another_recipe_is_another_plan(barcodes: Barcodes, change: dict[str, Any]) -> None:
    video = barcodes(70, 0)
    assert plan_of(video).plan_id != plan_of(video, recipe=replace(RECIPE, **change)).plan_id


def test_changed_label_is_another_plan(tmp_path: Path, barcodes: Barcodes) -> None:
    ids = set()
    for label in ("a", "b"):
        (tmp_path / "m.csv").write_text(f"path,label\n{barcodes(70, 0)},{label}\n")
        ids.add(plan_of(tmp_path / "m.csv").plan_id)
    assert len(ids) == 2


def test_copies_share_one_entry_that_lists_every_path(tmp_path: Path, barcodes: Barcodes) -> None:
    for name in ("b/x.mp4", "a/x.mp4", "c.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(barcodes(20, 0), tmp_path / name)
    (tmp_path / "link.mp4").symlink_to(tmp_path / "c.mp4")
    shutil.copy(barcodes(20, 20), tmp_path / "other.mp4")
    plan = plan_of(tmp_path)
    assert [os.path.relpath(path, tmp_path) for path in plan.videos.path] == ["a/x.mp4", "other.mp4"]
    copies = [os.path.relpath(path, tmp_path) for path in json.loads(plan.videos.duplicates[0])]
    assert copies == ["b/x.mp4", "c.mp4", "link.mp4"]
    assert json.loads(plan.videos.duplicates[1]) == []


def test_copies_with_different_labels_are_refused(tmp_path: Path, barcodes: Barcodes) -> None:
    shutil.copy(barcodes(20, 0), tmp_path / "a.mp4")
    shutil.copy(barcodes(20, 0), tmp_path / "b.mp4")
    (tmp_path / "m.csv").write_text("path,label\na.mp4,x\nb.mp4,y\n")
    with pytest.raises(UsageError, match=r"a\.mp4 and .*b\.mp4 have the same content but different columns"):
        plan_of(tmp_path / "m.csv")


def test_source_is_the_content_unless_the_manifest_says_otherwise(tmp_path: Path, barcodes: Barcodes) -> None:
    plan = make_plan(
        [
            InputVideo(path=str(barcodes(20, 0))),
            InputVideo(path=str(barcodes(20, 20)), source="kitchen"),
            InputVideo(path=str(tmp_path / "gone.mp4")),
        ],
        RECIPE,
    )
    assert plan.videos.source == [plan.videos.sha256[0], "kitchen", str(tmp_path / "gone.mp4")]
    assert plan.videos.reason[2] == Reason.NOT_FOUND


def test_manifest_columns_keep_their_type_where_every_row_has_it(barcodes: Barcodes) -> None:
    columns: list[dict[str, Any]] = [
        {"n": 1, "x": 0.5, "ok": True, "label": "a", "huge": 2**63, "gaps": 0.5},
        {"n": None, "x": 1.5, "ok": False, "huge": 1, "gaps": None},
    ]
    videos = [InputVideo(path=str(barcodes(20, 20 * i)), columns=row) for i, row in enumerate(columns)]
    table = make_plan(videos, RECIPE).videos.columns
    assert table["n"] == ["1", ""]
    assert table["label"] == ["a", ""]
    assert table["huge"] == [str(2**63), "1"]  # beyond int64
    np.testing.assert_array_equal(table["gaps"], [0.5, np.nan])
    assert np.asarray(table["x"]).dtype == np.float64
    assert np.asarray(table["ok"]).dtype == np.bool_


def test_flags_of_the_video_reach_its_rows(barcodes: Barcodes) -> None:
    plan = plan_of(barcodes(70, 0))
    assert plan.clips.n_real.tolist() == [16, 2]
    assert [bool(flags & Flag.PADDED) for flags in plan.clips.flags] == [False, True]
    assert all(flags & Flag.COLOUR_UNTAGGED for flags in plan.clips.flags)
