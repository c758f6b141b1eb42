"""Extraction end to end: right rows, explicit failures, one result whatever the workers, kills or batches."""

import json
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coldframe.errors import ColdframeError, RecipeMismatch, UsageError
from coldframe.export import Bundle, load_reference
from coldframe.progress import progress_bar
from coldframe.serve import clips as clips_module
from coldframe.serve import extract as extract_module
from coldframe.serve import planner as planner_module
from coldframe.serve import unit as unit_module
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.execution import Execution
from coldframe.serve.extract import Extraction, extract, make_recipe
from coldframe.serve.guard import FailureLimits
from coldframe.serve.inputs import collect_inputs
from coldframe.serve.runtime import Backend
from coldframe.serve.unit import RunnerSettings, UnitRunner
from coldframe.store import (
    Status,
    Store,
    UnitResult,
    committed_units,
    open_store,
    summarise,
    verify_store,
    write_unit,
)
from coldframe.store.markers import Marker
from tests.forkserver import CONTEXT
from tests.serve import inline, stubs

Barcodes = Callable[[int, int], Path]


def run(inputs: Path, bundle: Bundle, store: Path, **options: Any) -> Extraction:
    recipe_options = {"tokens": "full", "dtype": "float32"} | {
        name: options.pop(name) for name in ("tokens", "dtype", "fps", "hop_frames", "sampling") if name in options
    }
    videos = options.pop("videos", None) or collect_inputs([str(inputs)]).videos
    recipe = make_recipe(bundle, **recipe_options)
    rest = {name: options.pop(name) for name in ("part", "append") if name in options}
    return extract(videos, bundle, str(store), recipe, progress=progress_bar, how=Execution(**options), **rest)


def corpus(folder: Path, barcodes: Barcodes, videos: int = 10) -> Path:
    """Videos of 70 frames; #4 is random bytes and #7 is empty."""
    folder.mkdir()
    for number in range(videos):
        shutil.copy(barcodes(70, 70 * number), folder / f"{number:02d}.mp4")
    (folder / "04.mp4").write_bytes(np.random.default_rng(0).bytes(5000))
    (folder / "07.mp4").write_bytes(b"")
    return folder


def contents(store: Path) -> dict[str, bytes]:
    """Every byte of the store but the units' records, which hold timings."""
    return {
        str(file.relative_to(store)): file.read_bytes()
        for file in sorted(store.rglob("*"))
        if file.is_file() and file.relative_to(store).parts[0] != "units"
    }


def test_rows_are_what_the_reference_model_gives_for_the_planned_frames(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    run(barcodes(150, 0), bundle, tmp_path / "s.zarr")
    store, model = open_store(tmp_path / "s.zarr"), load_reference(bundle.path)
    path, sha256 = store.video_column("path")[0], store.video_column("sha256")[0]
    rows, frames = np.arange(store.rows), store.column("frame_index")
    video = VideoClips(path=path, sha256=sha256, rows=rows, frame_index=frames)
    for row, clip in read_clips(video, VideoCache(), image_size=32, threads=1):
        assert isinstance(clip, np.ndarray)
        pixels = torch.from_numpy(clip).permute(3, 0, 1, 2)[None].float() / 255
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        out = model(pixel_values=(pixels - mean.view(1, 3, 1, 1, 1)) / std.view(1, 3, 1, 1, 1))
        np.testing.assert_allclose(store.cls([row])[0], out.pooler_output[0], atol=1e-4)
        patch = out.last_hidden_state[0, 1:].reshape(16, 2, 2, 48)
        np.testing.assert_allclose(store.patch([row])[0], patch, atol=1e-4)


def test_bad_files_are_failed_rows_and_never_a_copy(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    folder = corpus(tmp_path / "c", barcodes)
    done = run(folder, bundle, tmp_path / "s.zarr")
    assert (done.rows, done.ok, done.failed, done.exit_code) == (18, 16, 2, 3)
    store = open_store(tmp_path / "s.zarr")
    status, video = store.column("status"), store.column("video")
    assert video[status == Status.FAILED].tolist() == [4, 7]
    raw = store.cls(np.arange(store.rows), allow_failed=True)
    assert np.isnan(raw[status == Status.FAILED]).all()
    vectors = store.cls()
    assert len(np.unique(vectors, axis=0)) == len(vectors) == 16
    ledger = [json.loads(line) for line in (tmp_path / "s.zarr/units/failures.jsonl").read_text().splitlines()]
    assert [(entry["path"], entry["reason"]) for entry in ledger] == [
        (str(folder / "04.mp4"), "unreadable"),
        (str(folder / "07.mp4"), "empty_file"),
    ]
    assert all(entry["error"] for entry in ledger)


def test_stores_are_byte_identical_whatever_the_workers_decoders_and_order(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    folder = corpus(tmp_path / "c", barcodes, videos=24)
    named = [str(file) for file in sorted(folder.iterdir(), key=lambda file: random.Random(file.name).random())]
    runs: dict[str, dict[str, Any]] = {
        "one": {},
        "shuffled": {"videos": collect_inputs(named).videos},
        "decoders": {"decoders": 3},
        "two": {"workers": 2},
        "four": {"workers": 4},
    }
    for name, options in runs.items():
        run(folder, bundle, tmp_path / name, **options)
        assert not verify_store(tmp_path / name).problems
        assert contents(tmp_path / name) == contents(tmp_path / "one")
    assert len(committed_units(open_store(tmp_path / "four"))) > 1  # or workers would not have met


def test_next_unit_is_encoded_while_one_is_written(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def write_slowly(store: Store, unit: int, result: UnitResult) -> Marker:
        events.append("write")
        time.sleep(0.3)
        events.append("written")
        return write_unit(store, unit, result)

    encode = UnitRunner._encode

    def note_encode(runner: UnitRunner, *arguments: Any) -> None:
        events.append("encode")
        encode(runner, *arguments)

    monkeypatch.setattr(unit_module, "write_unit", write_slowly)
    monkeypatch.setattr(UnitRunner, "_encode", note_encode)
    done = run(corpus(tmp_path / "c", barcodes, videos=24), bundle, tmp_path / "s.zarr")
    assert "encode" in events[events.index("write") : events.index("written")]
    places = [place for place, event in enumerate(events) if event in ("write", "written")]
    assert [events[place] for place in places] == ["write", "written"] * 3  # one at a time
    assert done.stages.write > 0.9
    assert done.stages.busy("write") <= 1


def test_unit_that_cannot_be_written_ends_the_run(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: Store, unit: int, result: UnitResult) -> Marker:
        if unit == 2:  # the last one, which nothing comes after
            raise ColdframeError("the disk is full")
        return write_unit(store, unit, result)

    monkeypatch.setattr(unit_module, "write_unit", refuse)
    with pytest.raises(ColdframeError, match="the disk is full"):
        run(corpus(tmp_path / "c", barcodes, videos=24), bundle, tmp_path / "s.zarr")
    assert committed_units(open_store(tmp_path / "s.zarr")) == [0, 1]
    assert not (tmp_path / "s.zarr/units/summary.json").exists()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_stores_from_any_batch_are_equal_byte_for_byte(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, backend: Backend
) -> None:
    folder = corpus(tmp_path / "c", barcodes)
    for batch_clips in (1, 7, 8):
        run(folder, bundle, tmp_path / str(batch_clips), batch_clips=batch_clips, backend=backend)
    assert contents(tmp_path / "1") == contents(tmp_path / "7") == contents(tmp_path / "8")


def test_batch_mates_change_a_row_of_pytorch_by_rounding_at_most(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    """PyTorch encodes a batch at once; equal bytes have been seen, but its matrix products do not promise them."""
    folder = corpus(tmp_path / "c", barcodes)
    for batch_clips in (1, 8):
        run(folder, bundle, tmp_path / str(batch_clips), batch_clips=batch_clips, backend="torch")
    one, eight = open_store(tmp_path / "1"), open_store(tmp_path / "8")
    np.testing.assert_allclose(one.cls(), eight.cls(), atol=1e-5, rtol=0)
    np.testing.assert_allclose(one.patch(), eight.patch(), atol=1e-5, rtol=0)


def test_both_backends_agree(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    for backend in ("onnxruntime", "torch"):
        run(barcodes(70, 0), bundle, tmp_path / backend, backend=backend)
    stores = [open_store(tmp_path / name) for name in ("onnxruntime", "torch")]
    np.testing.assert_allclose(stores[0].patch(), stores[1].patch(), atol=1e-4)
    assert stores[0].recipe_id == stores[1].recipe_id


def _extract_in_child(inputs: Path, bundle: Path, store: Path) -> None:
    from coldframe.export import open_bundle

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    inline.install()  # kills shall fall into the work, not into the start of a decode process (which has its own test)
    run(inputs, open_bundle(bundle), store)


def test_twenty_kills_and_resumes_give_the_uninterrupted_store(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    folder = corpus(tmp_path / "c", barcodes, videos=24)
    run(folder, bundle, tmp_path / "whole")
    wanted = contents(tmp_path / "whole")
    # forkserver: a child starts in milliseconds, so that kills fall into the work and not into imports

    def start(store: Path) -> multiprocessing.process.BaseProcess:
        child = CONTEXT.Process(target=_extract_in_child, args=(folder, bundle.path, store))
        child.start()
        return child

    start(tmp_path / "first").join()  # starts the server and its imports
    clock = time.perf_counter()
    start(tmp_path / "timed").join()
    whole_seconds = time.perf_counter() - clock
    chance, kills, store, attempt = random.Random(0), 0, tmp_path / "killed0", 0
    while kills < 20:
        child = start(store)
        child.join(chance.uniform(0.1, 0.9) * whole_seconds)
        child.kill()
        child.join()
        kills += child.exitcode != 0
        if store.exists():
            problems = verify_store(store).problems
            assert {problem.kind for problem in problems} <= {"absent", "uncommitted", "unexpected"}, problems
            if open_store(store).column("status").min() != Status.ABSENT:
                attempt += 1
                store = tmp_path / f"killed{attempt}"
    for number in range(attempt + 1):
        store = tmp_path / f"killed{number}"
        run(folder, bundle, store)
        assert contents(store) == wanted
        assert not verify_store(store).problems
    assert not [path for path in tmp_path.iterdir() if ".partial" in path.name]


def test_finished_store_is_not_touched_again(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    run(barcodes(70, 0), bundle, tmp_path / "s.zarr")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s.zarr").rglob("c/*")}
    again = run(barcodes(70, 0), bundle, tmp_path / "s.zarr")
    assert again.resumed_rows == again.rows == 2
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s.zarr").rglob("c/*")} == before


def test_damaged_unit_is_extracted_again(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    folder = corpus(tmp_path / "c", barcodes)
    run(folder, bundle, tmp_path / "s.zarr")
    wanted = contents(tmp_path / "s.zarr")
    shard = next(path for path in (tmp_path / "s.zarr" / "patch").rglob("*") if path.is_file() and "c" in path.parts)
    for damage in (b"", shard.read_bytes()[: shard.stat().st_size // 2]):
        shard.write_bytes(damage)
        assert verify_store(tmp_path / "s.zarr").problems
        run(folder, bundle, tmp_path / "s.zarr")
        assert contents(tmp_path / "s.zarr") == wanted


def test_another_recipe_is_refused_with_the_difference(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    run(barcodes(70, 0), bundle, tmp_path / "s.zarr")
    with pytest.raises(RecipeMismatch, match=r"fps: 8\.0 here, 7\.5 in the store .*s\.zarr"):
        run(barcodes(70, 0), bundle, tmp_path / "s.zarr", fps=8.0)
    with pytest.raises(RecipeMismatch, match=r"tokens: 'cls' here, 'full' in the store"):
        run(barcodes(70, 0), bundle, tmp_path / "s.zarr", tokens="cls")


def test_other_videos_are_refused_by_name(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    folder = corpus(tmp_path / "c", barcodes)
    run(folder, bundle, tmp_path / "s.zarr")
    shutil.copy(barcodes(20, 7), folder / "new.mp4")
    (folder / "09.mp4").unlink()
    with pytest.raises(UsageError, match=r"new\.mp4 is new, .*09\.mp4 is missing"):
        run(folder, bundle, tmp_path / "s.zarr")


def test_video_that_changes_after_planning_fails_and_says_so(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpus(tmp_path / "c", barcodes)
    make = extract_module.plan_videos

    def plan_then_change(*arguments: Any) -> Any:
        plan = make(*arguments)
        shutil.copy(barcodes(70, 2000), folder / "02.mp4")
        return plan

    monkeypatch.setattr(extract_module, "plan_videos", plan_then_change)
    done = run(folder, bundle, tmp_path / "s.zarr")
    assert done.failed == 4
    assert summarise(open_store(tmp_path / "s.zarr"))["reasons"] == {"changed": 2, "empty_file": 1, "unreadable": 1}


def test_disk_that_is_too_small_is_refused_before_any_work(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ColdframeError, match=r"needs 25\.0 kB, .* has 10 B free"):
        run(barcodes(70, 0), bundle, tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr").exists()


def test_videos_that_hang_or_crash_the_decoder_cost_their_own_rows(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpus(tmp_path / "c", barcodes)
    run(folder, bundle, tmp_path / "whole")
    monkeypatch.setattr(clips_module, "read_in_child", stubs.read_badly)
    monkeypatch.setattr(extract_module, "RunnerSettings", partial(RunnerSettings, stall_seconds=4.0))
    done = run(folder, bundle, tmp_path / "s.zarr")
    assert (done.rows, done.ok, done.failed) == (18, 14, 4)
    store, whole = open_store(tmp_path / "s.zarr"), open_store(tmp_path / "whole")
    assert summarise(store)["reasons"] == {"empty_file": 1, "unreadable": 1, "timeout": 1, "decode_error": 1}
    # of two rows a video, the second ones of 02.mp4 and 03.mp4
    lost = np.setdiff1d(np.flatnonzero(store.column("reason")), np.flatnonzero(whole.column("reason")))
    assert lost.tolist() == [5, 7]
    np.testing.assert_array_equal(store.cls(), whole.cls(np.setdiff1d(whole.ok_rows(), lost)))


def test_videos_that_hang_or_crash_the_demuxer_keep_one_row(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpus(tmp_path / "c", barcodes)
    monkeypatch.setattr(planner_module, "survey", stubs.survey_badly)
    monkeypatch.setattr(planner_module, "DecodeProcess", partial(DecodeProcess, stall_seconds=4.0))
    done = run(folder, bundle, tmp_path / "s.zarr")
    assert (done.rows, done.ok) == (16, 12)
    reasons = summarise(open_store(tmp_path / "s.zarr"))["reasons"]
    assert reasons == {"timeout": 1, "decode_error": 1, "empty_file": 1, "unreadable": 1}


def test_defect_in_the_decode_process_ends_the_run_and_keeps_finished_units(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpus(tmp_path / "c", barcodes, videos=24)
    monkeypatch.setattr(clips_module, "read_in_child", stubs.fail_on_15)
    with pytest.raises(RuntimeError, match=r"a defect"):
        run(folder, bundle, tmp_path / "s.zarr")
    store = open_store(tmp_path / "s.zarr")
    assert 0 < len(committed_units(store)) < store.unit_count


def test_frames_must_be_what_the_graph_takes(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match=r"frames is 8, but .* was exported for clips of 16 frames"):
        make_recipe(bundle, frames=8)
    assert make_recipe(bundle).hop_frames == 16
    assert replace(make_recipe(bundle), hop_frames=3).recipe_id != make_recipe(bundle).recipe_id


def test_plan_columns_are_read_once_however_many_videos_fail(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.csv").write_text("path\n" + "".join(f"gone{number}.mp4\n" for number in range(100)))
    read: list[str] = []
    plan_array = Store._plan_array

    def counting(store: Store, name: str) -> Any:
        read.append(name)
        return plan_array(store, name)

    monkeypatch.setattr(Store, "_plan_array", counting)
    no_limit = FailureLimits(in_a_row=0)
    assert run(tmp_path / "m.csv", bundle, tmp_path / "s.zarr", limits=no_limit).failed == 100
    assert read.count("video_path") == read.count("video_reason") == 1


def test_several_decoders_are_pyavs(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    with pytest.raises(UsageError, match="decoders is 2, but dali-cpu reads many videos at once"):
        run(barcodes(70, 0), bundle, tmp_path / "s", decoder="dali-cpu", decoders=2)
    assert not (tmp_path / "s").exists()
