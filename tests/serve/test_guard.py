"""A run whose failures have one cause stops before they are taken for facts, and goes on where it stopped."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.errors import ColdframeError
from coldframe.export import Bundle
from coldframe.serve import clips as clips_module
from coldframe.serve import extract as extract_module
from coldframe.serve import watch as watch_module
from coldframe.serve.guard import FailureGuard, FailureLimits
from coldframe.store import Reason, Status, create_store, open_store, summarise, verify_store, write_unit
from tests.serve import inline
from tests.serve.test_extract import Barcodes
from tests.store.plans import ENCODER, small_geometry, small_plan, small_result


def coldframe(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def _decode_here(monkeypatch: pytest.MonkeyPatch) -> None:
    inline.use(monkeypatch)


def test_failures_in_a_row_are_counted_by_video_and_a_good_one_ends_them() -> None:
    guard = FailureGuard(FailureLimits(in_a_row=3))
    for path in ("a", "b", "b", "b"):
        guard.failed(path, "timeout")
    guard.succeeded()
    for path in ("c", "d"):
        guard.failed(path, "not_found")
    with pytest.raises(
        ColdframeError, match=r"3 videos in a row failed, 2 of them with the reason not_found.*one is e"
    ):
        guard.failed("e", "timeout")


def test_all_failures_are_counted_once_a_video() -> None:
    guard = FailureGuard(FailureLimits(in_a_row=0, videos=2), failed=["old"])
    for path in ("old", "a", "a"):
        guard.failed(path, "decode_error")
    with pytest.raises(ColdframeError, match=r"3 videos failed, --max-failures allows 2; of this run's, 2 of them"):
        guard.failed("b", "decode_error")


def videos(folder: Path, barcodes: Barcodes, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        shutil.copy(barcodes(70, 70 * number), folder / f"{number:02d}.mp4")
    return folder


@pytest.mark.usefixtures("_decode_here")
def test_a_disk_that_goes_away_stops_the_run_and_costs_no_row(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = videos(tmp_path / "v", barcodes, 24), tmp_path / "s.zarr"
    options = (folder, "--encoder", bundle.path, "--store", store)
    real = clips_module.read_in_child

    def unmount(video: clips_module.VideoClips, size: int) -> object:
        if video.path.endswith("12.mp4") and folder.exists():
            folder.rename(tmp_path / "away")
        return real(video, size)

    with monkeypatch.context() as patched:
        patched.setattr(clips_module, "read_in_child", unmount)
        result = coldframe("extract", *options, "--max-failures-in-a-row", "3")
    assert result.exit_code == 1
    assert "3 videos in a row failed, 3 of them with the reason not_found" in result.stderr
    assert summarise(open_store(store))["rows"] == {"planned": 48, "ok": 16, "failed": 0, "absent": 32}
    (tmp_path / "away").rename(folder)
    assert coldframe("extract", *options).exit_code == 0
    assert verify_store(store).passed


@pytest.mark.usefixtures("_decode_here")
def test_rows_that_failed_while_a_disk_was_away_come_back(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = videos(tmp_path / "v", barcodes, 24), tmp_path / "s.zarr"
    (folder / "05.mp4").write_bytes(b"never a video")
    run = ("extract", folder, "--encoder", bundle.path, "--store")
    assert coldframe(*run, tmp_path / "whole", "--tokens", "full").exit_code == 3
    real = clips_module.read_in_child

    def flicker(video: clips_module.VideoClips, size: int) -> object:
        away = video.path[-6:-4] in ("12", "13")
        return real(replace(video, path=f"/away/{video.path}") if away else video, size)

    with monkeypatch.context() as patched:
        patched.setattr(clips_module, "read_in_child", flicker)
        assert coldframe(*run, store, "--tokens", "full").exit_code == 3
    assert summarise(open_store(store))["reasons"] == {"not_found": 4, "unreadable": 1}
    untouched = {unit: (store / f"units/{unit}.json").read_bytes() for unit in (0, 2)}
    result = coldframe("retry-failed", store, "--encoder", bundle.path)
    assert result.exit_code == 3, result.output
    assert "4 rows tried again, 4 of them ok now" in result.stdout
    assert "1 of them are videos that could not be used when they were planned" in result.stdout
    assert {unit: (store / f"units/{unit}.json").read_bytes() for unit in untouched} == untouched
    assert verify_store(store).passed
    for name in ("patch", "cls", "status", "reason"):
        for file in (store / name).rglob("*"):
            if file.is_file():
                assert file.read_bytes() == (tmp_path / "whole" / file.relative_to(store)).read_bytes()
    assert (store / "units/failures.jsonl").read_bytes() == (tmp_path / "whole/units/failures.jsonl").read_bytes()
    nothing = coldframe("retry-failed", store, "--encoder", bundle.path, "--json")
    assert (nothing.exit_code, '"tried": 0' in nothing.stdout) == (3, True)


@pytest.mark.usefixtures("_decode_here")
def test_rows_that_fail_again_keep_a_reason_and_the_rest_keeps_its_bits(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = videos(tmp_path / "v", barcodes, 8), tmp_path / "s.zarr"
    whole = videos(tmp_path / "copy", barcodes, 8)
    make = ("extract", folder, "--encoder", bundle.path, "--store", store, "--tokens", "full")
    real = clips_module.read_in_child

    def change_one(video: clips_module.VideoClips, size: int) -> object:
        if video.path.endswith("03.mp4"):
            shutil.copy(whole / "04.mp4", video.path)
        return real(video, size)

    with monkeypatch.context() as patched:
        patched.setattr(clips_module, "read_in_child", change_one)
        assert coldframe(*make).exit_code == 3
    before = open_store(store).patch()
    (folder / "03.mp4").unlink()
    assert coldframe("retry-failed", store, "--encoder", bundle.path, "--reason", "timeout").exit_code == 3
    assert summarise(open_store(store))["reasons"] == {"changed": 2}
    assert coldframe("retry-failed", store, "--encoder", bundle.path, "--reason", "changed").exit_code == 3
    assert summarise(open_store(store))["reasons"] == {"not_found": 2}
    assert (open_store(store).patch() == before).all()
    shutil.copy(whole / "03.mp4", folder / "03.mp4")
    assert coldframe("retry-failed", store, "--encoder", bundle.path).exit_code == 0
    assert verify_store(store).passed
    assert (store / "units/failures.jsonl").read_text() == ""


def test_max_failures_counts_the_whole_store_and_all_workers(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = videos(tmp_path / "v", barcodes, 24), tmp_path / "s.zarr"
    for number in (2, 9, 20):
        (folder / f"{number:02d}.mp4").write_bytes(b"no video")
    options = (folder, "--encoder", bundle.path, "--store", store)
    planned = coldframe("extract", *options, "--max-failures", "2")
    assert (planned.exit_code, "3 videos failed, --max-failures allows 2" in planned.stderr) == (1, True)
    assert not store.exists()
    monkeypatch.setattr(watch_module, "_SECONDS_BETWEEN_LOOKS", 0.0)
    real = extract_module.plan_videos

    def plan_then_change(*arguments: Any) -> Any:
        plan = real(*arguments)
        for number in (0, 1, 12, 13):
            shutil.copy(barcodes(70, 7000), folder / f"{number:02d}.mp4")
        return plan

    monkeypatch.setattr(extract_module, "plan_videos", plan_then_change)
    result = coldframe("extract", *options, "--max-failures", "5", "--workers", "2")
    assert result.exit_code == 1, result.output
    assert "6 videos failed, --max-failures allows 5; of this run's" in result.stderr
    assert "the reason changed" in result.stderr


@pytest.mark.usefixtures("_decode_here")
def test_a_store_with_too_many_failures_already_is_not_gone_on_with(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = videos(tmp_path / "v", barcodes, 8), tmp_path / "s.zarr"
    options = (folder, "--encoder", bundle.path, "--store", store)
    real = clips_module.read_in_child

    def away(video: clips_module.VideoClips, size: int) -> object:
        return real(replace(video, path="/away") if video.path[-5] in "123" else video, size)

    with monkeypatch.context() as patched:
        patched.setattr(clips_module, "read_in_child", away)
        assert coldframe("extract", *options).exit_code == 3
        again = coldframe("extract", *options, "--max-failures", "2")
        assert (again.exit_code, again.stderr.count("\n")) == (1, 1)
        assert "3 videos failed, --max-failures allows 2 (before this run)" in again.stderr
        retried = coldframe("retry-failed", store, "--encoder", bundle.path, "--max-failures", "2")
        assert (retried.exit_code, "allows 2; of this run's, 3 of them" in retried.stderr) == (1, True)
    assert coldframe("retry-failed", store, "--encoder", bundle.path, "--max-failures", "2").exit_code == 0


def test_known_failures_that_fail_again_are_told_without_new_ones() -> None:
    guard = FailureGuard(FailureLimits(videos=1), failed=["a", "b"])
    with pytest.raises(ColdframeError, match=r"2 videos failed, --max-failures allows 1; of this run's, none is new"):
        guard.counted("a", "timeout")


def test_failures_of_other_parts_count_while_they_run(tmp_path: Path) -> None:
    plan = small_plan([16] * 6)
    store = create_store(tmp_path / "s", plan, geometry=small_geometry(), encoder=ENCODER)

    def fail(unit: int) -> None:
        result = small_result(store, unit)
        result.status[:], result.reason[:] = Status.FAILED, Reason.TIMEOUT
        write_unit(open_store(store.path, writable=True), unit, result)

    fail(0)
    watch = watch_module.StoreWatch(store, range(1, 6), FailureLimits(videos=2))
    fail(4)  # which another part has
    watch.look()
    fail(5)
    with pytest.raises(ColdframeError, match=r"3 videos failed, --max-failures allows 2; of this run's, 2 of them"):
        watch.look()
