"""The frames that the plan asks for are the frames that arrive, once each, whatever the windows."""

import os
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.serve import clips as clips_module
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.serve.container import file_sha256
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


def test_a_row_may_begin_before_the_one_above_it(tmp_path: Path) -> None:
    """As windows of annotations may, by a frame or by many."""
    write_stepped(tmp_path / "v.mp4", 60, 30)
    plan = plan_of(tmp_path / "v.mp4")
    index = np.array([[2, 4], [20, 30], [9, 33], [19, 22], [5, 40]], np.int32)
    video = VideoClips(path=plan.videos.path[0], sha256=plan.videos.sha256[0], rows=np.arange(5), frame_index=index)
    found = [[middle_bits(picture) for picture in clip] for _, clip in read(video) if isinstance(clip, np.ndarray)]
    assert found == (index % 64).tolist()


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


def damaged_after(path: Path, target: Path, packet: int) -> Path:
    """A copy of `path` with the data of one packet replaced by noise."""
    with av.open(str(path)) as container:
        found = [item for item in container.demux(video=0) if item.size][packet]
        start, size = found.pos, found.size
    assert start is not None
    data = bytearray(path.read_bytes())
    data[start + 5 : start + size] = np.random.default_rng(0).bytes(size - 5)
    target.write_bytes(data)
    return target


def test_a_clip_with_damage_between_its_frames_is_not_good(tmp_path: Path) -> None:
    # All frames are key frames, so that only frame 5 is lost, which no clip of every second frame wants.
    options = {"crf": "10", "g": "1", "bf": "0"}
    whole = barcode.write_video(tmp_path / "a.mp4", 40, options=options)
    path = damaged_after(whole, tmp_path / "b.mp4", 5)
    table = np.array([[0, 2, 4], [2, 4, 6], [4, 6, 8], [6, 8, 10]], np.int32)
    video = VideoClips(path=str(path), sha256=file_sha256(str(path))[0], rows=np.arange(4), frame_index=table)
    assert [isinstance(clip, VideoError) for _, clip in read(video)] == [False, True, True, False]


@pytest.mark.parametrize(("codec", "good"), [("libx265", [True, False, True]), ("libx264", [True, True, True])])
def test_damage_later_in_a_group_of_pictures_counts_where_decoders_check_nothing(
    tmp_path: Path, codec: str, good: list[bool]
) -> None:
    x265 = {"x265-params": "keyint=20:min-keyint=20:scenecut=0:open-gop=0:bframes=0:log-level=none:crf=8"}
    options = x265 if codec == "libx265" else {"crf": "10", "g": "20", "bf": "0"}
    whole = barcode.write_video(tmp_path / "a.mp4", 60, codec=codec, options=options)
    data = bytearray(whole.read_bytes())
    with av.open(str(whole)) as container:
        found = [item for item in container.demux(video=0) if item.size][35]
    assert found.pos is not None
    data[found.pos + 4 : found.pos + 6] = b"\xff\xff"  # the head of the unit: damage that every decoder reports
    (tmp_path / "b.mp4").write_bytes(data)
    table = np.array([[0, 4, 8], [20, 24, 28], [40, 44, 48]], np.int32)
    path = str(tmp_path / "b.mp4")
    video = VideoClips(path=path, sha256=file_sha256(path)[0], rows=np.arange(3), frame_index=table)
    assert [not isinstance(clip, VideoError) for _, clip in read(video)] == good
