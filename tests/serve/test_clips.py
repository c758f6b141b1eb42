"""The frames that the plan asks for are the frames that arrive, once each, whatever the windows."""

import os
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.serve import clips as clips_module
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.serve.frames import read_frames
from coldframe.serve.inputs import collect_inputs
from coldframe.serve.planner import make_plan
from coldframe.store.plan import Plan
from coldframe.store.recipe import Recipe
from tests import barcode

Barcodes = Callable[[int, int], Path]
SIZE = 96  # the height of a barcode picture: cropped, not resized, so that its middle bars stay readable
MIDDLE_BITS = range(3, 9)  # bars that a centre crop of 96 columns keeps whole


def plan_of(path: Path, **recipe: Any) -> Plan:
    settings = {"encoder": "test", "weights_sha256": "0", "attention": "block_causal", "frames": 16, **recipe}
    return make_plan(collect_inputs([str(path)]).videos, Recipe(**settings))


def request(plan: Plan, rows: list[int] | None = None) -> VideoClips:
    chosen = np.arange(len(plan.clips)) if rows is None else np.array(rows)
    return VideoClips(
        path=plan.videos.path[0],
        sha256=plan.videos.sha256[0],
        rows=chosen,
        frame_index=plan.clips.frame_index[chosen],
    )


def read(video: VideoClips) -> list[tuple[int, NDArray[np.uint8] | VideoError]]:
    return list(read_clips(video, VideoCache(), image_size=SIZE, threads=1))


def middle_bits(picture: NDArray[np.uint8]) -> int:
    """Bits 3 to 8 of a barcode after the centre crop to 96 columns, which cuts three 16-pixel bars off each side."""
    padded = np.full((SIZE, barcode.WIDTH, 3), 90, np.uint8)
    padded[:, 48:144] = picture
    return barcode.read_number(padded) >> 3 & 0b111111


@pytest.mark.parametrize("fps", [24, 25, Fraction(30000, 1001), 30, 50, Fraction(60000, 1001), 60, 5])
def test_frames_of_the_grid_arrive(tmp_path: Path, fps: Fraction | int) -> None:
    # numbers step by 8, so that the bars which survive the crop tell neighbouring frames apart
    path, count = tmp_path / "v.mp4", round(6 * fps)
    write_stepped(path, count, fps)
    plan = plan_of(path)
    times = np.arange(count) / float(fps)
    for row, clip in read(request(plan)):
        assert isinstance(clip, np.ndarray)
        assert clip.shape == (16, SIZE, SIZE, 3)
        covered = int(plan.clips.n_real[row])
        for position in range(covered):
            wanted = (row * 16 + position) / 7.5
            nearest = int(np.argmin(np.abs(times - wanted)))  # the first of equals, as the rule says
            assert middle_bits(clip[position]) == nearest % 64
        for position in range(covered, 16):
            np.testing.assert_array_equal(clip[position], clip[covered - 1])


def write_stepped(path: Path, count: int, fps: Fraction | int) -> None:
    import av

    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=fps, options={"crf": "10", "g": "12", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt = barcode.WIDTH, barcode.HEIGHT, "yuv420p"
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(barcode.draw(number % 64 * 8), format="rgb24")
            frame.pts, frame.time_base = number, 1 / Fraction(fps)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())


@pytest.mark.parametrize("hop", [1, 5, 16, 40])
def test_windows_give_the_same_frames_alone_and_together(tmp_path: Path, hop: int) -> None:
    write_stepped(tmp_path / "v.mp4", 300, 30)
    plan = plan_of(tmp_path / "v.mp4", hop_frames=hop)
    together = dict(read(request(plan)))
    assert list(together) == list(range(len(plan.clips)))
    for row in range(0, len(plan.clips), 3):
        ((_, alone),) = read(request(plan, [row]))
        np.testing.assert_array_equal(alone, together[row])


def test_each_frame_is_decoded_once_for_all_windows(barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(barcodes(150, 0), hop_frames=4)
    asked: list[int] = []

    def counting(path: str, index: Any, wanted: NDArray[np.int32], **options: Any) -> Iterator[Any]:
        asked.extend(int(number) for number in wanted)
        yield from read_frames(path, index, wanted, **options)

    monkeypatch.setattr(clips_module, "read_frames", counting)
    assert len(read(request(plan))) == len(plan.clips) > 5
    assert sorted(asked) == sorted(set(plan.clips.frame_index.ravel().tolist()))


def test_a_file_that_changed_or_vanished_gives_reasons_for_every_row(tmp_path: Path, barcodes: Barcodes) -> None:
    path = tmp_path / "v.mp4"
    shutil.copy(barcodes(150, 0), path)
    video = request(plan_of(path))
    shutil.copy(barcodes(150, 150), path)
    answers = read(video)
    assert [row for row, _ in answers] == video.rows.tolist()
    assert {error.reason for _, error in answers if isinstance(error, VideoError)} == {"changed"}
    path.unlink()
    assert {error.reason for _, error in read(video) if isinstance(error, VideoError)} == {"not_found"}


def test_a_file_that_is_overwritten_while_it_is_read_gives_no_more_clips(tmp_path: Path, barcodes: Barcodes) -> None:
    path = tmp_path / "v.mp4"
    shutil.copy(barcodes(150, 0), path)
    video, whole = request(plan_of(path)), path.read_bytes()
    answers = read_clips(video, VideoCache(), image_size=SIZE, threads=1)
    _, first = next(answers)
    assert isinstance(first, np.ndarray)
    stat = path.stat()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as tools do that keep times
    rest = list(answers)
    assert [row for row, _ in rest] == video.rows[1:].tolist()
    assert {error.reason for _, error in rest if isinstance(error, VideoError)} == {"changed"}


def test_a_file_that_is_only_touched_gives_every_clip(tmp_path: Path, barcodes: Barcodes) -> None:
    path = tmp_path / "v.mp4"
    shutil.copy(barcodes(150, 0), path)
    video, clips = request(plan_of(path)), 0
    for _, clip in read_clips(video, VideoCache(), image_size=SIZE, threads=1):
        path.touch()
        clips += isinstance(clip, np.ndarray)
    assert clips == len(video.rows) > 1


def test_stopping_early_closes_the_file(barcodes: Barcodes) -> None:
    video = request(plan_of(barcodes(150, 0)))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        answers = read_clips(video, VideoCache(), image_size=SIZE, threads=1)
        next(answers)
        answers.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_video_is_hashed_once_for_many_units(barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, cache = plan_of(barcodes(150, 0)), VideoCache()
    hashed: list[str] = []

    def counting(path: str) -> tuple[str, int]:
        hashed.append(path)
        return plan.videos.sha256[0], 0

    monkeypatch.setattr(clips_module, "file_sha256", counting)
    for row in range(len(plan.clips)):
        list(read_clips(request(plan, [row]), cache, image_size=SIZE, threads=1))
    assert len(hashed) == 1
