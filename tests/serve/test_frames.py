import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.errors import UsageError, VideoError
from coldframe.serve import frames as frames_module
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import PtsIndex, build_index
from coldframe.store.schema import Flag
from tests.barcode import (
    X265_OPEN_GOP,
    draw,
    flip_bits,
    read_number,
    set_matrix,
    write_plane,
    write_video,
)

DATA = Path(__file__).parents[1] / "data"


def answers(path: Path, wanted: Sequence[int], *, index: PtsIndex | None = None, threads: int = 1) -> list[int | str]:
    """For each wanted frame the number that its picture shows, or the reason why there is none."""
    index = index or build_index(str(path))
    found: list[int | str] = []
    for (number, frame), asked in zip(read_frames(str(path), index, wanted, threads=threads), wanted, strict=True):
        assert number == asked
        found.append(frame.reason if isinstance(frame, VideoError) else read_number(frame))
    return found


def picture(path: Path, number: int = 0) -> NDArray[np.uint8]:
    ((_, frame),) = read_frames(str(path), build_index(str(path)), [number])
    assert not isinstance(frame, VideoError)
    return frame


OPEN_GOPS: dict[str, Mapping[str, Any]] = {
    "hevc.mp4": {"codec": "libx265", "options": X265_OPEN_GOP},
    "hevc.mkv": {"codec": "libx265", "options": X265_OPEN_GOP},
    "hevc.ts": {"codec": "libx265", "options": X265_OPEN_GOP, "time_base": Fraction(1, 90000)},
    "short_gops.mp4": {
        "codec": "libx265",
        "options": {"x265-params": "keyint=3:bframes=2:log-level=none:crf=8"},
        "fps": 10,
    },
    "h264.mp4": {"options": {"crf": "10", "g": "30", "x264-params": "open-gop=1:bframes=3"}},
    "h264.ts": {
        "options": {"crf": "10", "g": "30", "x264-params": "open-gop=1:bframes=3"},
        "time_base": Fraction(1, 90000),
    },
    "leading.mp4": {
        "codec": "libx265",
        "options": {
            "x265-params": "keyint=30:min-keyint=30:scenecut=0:bframes=3:open-gop=0:radl=2:log-level=none:crf=8"
        },
    },
    "refresh.mp4": {"options": {"crf": "10", "g": "30", "bf": "0", "x264-params": "intra-refresh=1"}},
    "closed.webm": {"codec": "libvpx-vp9", "options": {"crf": "10", "b": "0", "g": "30", "cpu-used": "8"}},
    "program.mpg": {
        "codec": "mpeg2video",
        "options": {"bf": "2", "g": "15", "b": "4000000"},
        "time_base": Fraction(1, 30),
    },
}


@pytest.mark.parametrize("name", OPEN_GOPS)
def test_random_access_gives_the_frame_that_was_asked_for(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "SEEK_GAIN_FRAMES", 0)  # seek whenever a key frame is in between
    path = write_video(tmp_path / name, 161, **OPEN_GOPS[name])
    index = build_index(str(path))
    assert answers(path, range(161), index=index) == list(range(161))
    chance = np.random.default_rng(0)
    for number in chance.permutation(161).tolist():
        assert answers(path, [number], index=index) == [number]
    for count in (4, 16, 40):
        batch = np.sort(chance.choice(161, count, replace=False)).tolist()
        assert answers(path, batch, index=index) == batch
    assert [answers(path, [number], index=index) for number in (159, 35)] == [[159], [35]]


def test_seeking_is_used_where_it_saves_work(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 300, options={"crf": "10", "g": "30", "bf": "2"})
    index = build_index(str(path))
    decoded: list[int] = []
    original = frames_module._Reader._number

    def counted(self: Any, name: int) -> int | None:
        decoded.append(name)
        return original(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module._Reader, "_number", counted)
        assert answers(path, [0, 150, 299], index=index) == [0, 150, 299]
    assert len(decoded) < 60


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threads", [1, 3])
def test_damage_never_passes_as_a_good_frame(tmp_path: Path, seed: int, threads: int) -> None:
    whole = write_video(tmp_path / "whole.mp4", 120, options={"crf": "10", "g": "20", "bf": "2"})
    path = flip_bits(whole, tmp_path / "damaged.mp4", seed=seed)
    index = build_index(str(path))
    assert len(index) == 120
    for wanted in (range(120), range(0, 120, 4), [5, 30, 58, 59, 60, 61, 100]):
        found = answers(path, wanted, index=index, threads=threads)
        assert all(got in (asked, "decode_error") for asked, got in zip(wanted, found, strict=True))
    found = answers(path, range(120), index=index, threads=threads)
    assert "decode_error" in found
    assert found[:20] == list(range(20))
    assert found[100:] == list(range(100, 120))  # whole again behind the damage


def test_a_damaged_span_ends_at_the_next_key_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 60, options={"crf": "10", "g": "12", "bf": "0"})
    index = build_index(str(path))
    import av

    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        start, size = packets[15].pos, packets[15].size
    assert start is not None
    data = bytearray(path.read_bytes())
    data[start + 5 : start + size] = os.urandom(size - 5)
    path.write_bytes(data)
    assert answers(path, range(60), index=index) == [*range(15), *["decode_error"] * 9, *range(24, 60)]


def test_timestamps_that_contradict_the_pictures_are_noticed(tmp_path: Path) -> None:
    path = write_video(tmp_path / "packed.avi", 60, codec="mpeg4", options={"bf": "2", "g": "12", "qscale": "2"})
    right = build_index(str(path))
    swapped = right.packet.copy()
    swapped[[20, 21]] = swapped[[21, 20]]
    wrong = PtsIndex(**{**{name: getattr(right, name) for name in right.__dataclass_fields__}, "packet": swapped})
    found = answers(path, range(60), index=wrong)
    assert found[:20] == list(range(20))
    assert found[22:] == ["frame_mismatch"] * 38


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_is_applied_once_and_the_right_way(tmp_path: Path, degrees: int) -> None:
    plain = write_video(tmp_path / "plain.mp4", 12)
    turned = picture(set_matrix(plain, tmp_path / "turned.mp4", degrees), 5)
    assert (turned == np.rot90(picture(plain, 5), k=-degrees // 90)).all()
    assert read_number(np.rot90(turned, k=degrees // 90)) == 5


def test_a_mirrored_picture_is_mirrored_back(tmp_path: Path) -> None:
    plain = write_video(tmp_path / "plain.mp4", 12)
    assert (picture(set_matrix(plain, tmp_path / "m.mp4", "mirrored"), 5) == picture(plain, 5)[:, ::-1]).all()


def test_a_phone_clip_stands_upright() -> None:
    path = DATA / "pens.mp4"
    frames = [frame for _, frame in read_frames(str(path), build_index(str(path)), range(64))]
    assert [getattr(frame, "shape", None) for frame in frames] == [(176, 144, 3)] * 64


def yuv(red_weight: float, blue_weight: float, full: bool) -> tuple[int, int, int]:
    """RGB (200, 40, 60) in 8-bit YUV, by the defining equations of BT.709 and BT.601."""
    luma = red_weight * 200 + (1 - red_weight - blue_weight) * 40 + blue_weight * 60
    blue, red = (60 - luma) / (2 - 2 * blue_weight), (200 - luma) / (2 - 2 * red_weight)
    scale, offset, chroma = (1.0, 0, 1.0) if full else (219 / 255, 16, 224 / 255)
    return round(offset + scale * luma), round(128 + chroma * blue), round(128 + chroma * red)


COLOURS = {
    "709-limited": (yuv(0.2126, 0.0722, False), 1, False),
    "709-full": (yuv(0.2126, 0.0722, True), 1, True),
    "601-limited": (yuv(0.299, 0.114, False), 6, False),
    "601-full": (yuv(0.299, 0.114, True), 6, True),
}


@pytest.mark.parametrize("name", COLOURS)
def test_tagged_colour_is_read_as_tagged(tmp_path: Path, name: str) -> None:
    planes, matrix, full = COLOURS[name]
    path = write_plane(tmp_path / "a.mp4", planes, matrix=matrix, full=full, tagged=True)
    assert picture(path)[30, 30].tolist() == pytest.approx([200, 40, 60], abs=3)
    assert Flag.COLOUR_UNTAGGED not in build_index(str(path)).flags


@pytest.mark.parametrize(
    ("name", "rgb"),
    [
        ("709-limited", [185, 20, 60]),
        ("709-full", [194, 6, 51]),
        ("601-limited", [199, 37, 58]),
        ("601-full", [210, 28, 51]),
    ],
)
def test_untagged_colour_is_read_as_bt601_limited(tmp_path: Path, name: str, rgb: list[int]) -> None:
    planes, _, full = COLOURS[name]
    path = write_plane(tmp_path / "a.mp4", planes, matrix=None, full=full, tagged=False)
    assert picture(path)[30, 30].tolist() == pytest.approx(rgb, abs=3)
    assert Flag.COLOUR_UNTAGGED in build_index(str(path)).flags


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ten_bits.mp4", {"codec": "libx265", "pixels": "yuv420p10le", "options": X265_OPEN_GOP}),
        ("full_chroma.mp4", {"pixels": "yuv444p", "size": (191, 95)}),
        (
            "odd.webm",
            {"codec": "libvpx-vp9", "size": (191, 95), "options": {"crf": "10", "b": "0", "cpu-used": "8"}},
        ),
        ("odd.mkv", {"codec": "ffv1", "size": (191, 95), "options": {}}),
        ("odd.avi", {"codec": "mjpeg", "pixels": "yuvj420p", "size": (191, 95), "options": {"q": "2"}}),
        ("padded.mp4", {"size": (2448, 96), "options": {"crf": "10", "preset": "ultrafast"}}),
        ("alpha.mov", {"codec": "qtrle", "pixels": "argb", "options": {}}),
    ],
)
def test_pixel_formats_and_odd_sizes_give_the_same_picture(
    tmp_path: Path, name: str, fields: Mapping[str, Any]
) -> None:
    path = write_video(tmp_path / name, 6, **fields)
    width, height = fields.get("size", (192, 96))
    frame = picture(path, 5)
    assert frame.shape == (height, width, 3)
    difference = np.abs(frame.astype(int) - draw(5, width, height))
    assert np.median(difference) <= 3
    # Plain grey down to the last row and column: no padding shows.
    assert np.abs(frame[-8:, :].astype(int) - 90).max() <= 3
    assert np.abs(frame[height // 2 + 8 :, -2:].astype(int) - 90).max() <= 3


def test_millisecond_times_give_every_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", 161, time_base=Fraction(1, 1000))
    index = build_index(str(path))
    nearest = [int(np.abs(index.seconds - i / 30).argmin()) for i in range(161)]
    assert nearest == list(range(161))
    assert answers(path, nearest, index=index) == nearest


def test_pictures_may_change_their_size(tmp_path: Path) -> None:
    base = Fraction(1, 90000)
    wide = write_video(tmp_path / "a.ts", 24, time_base=base)
    pts = [3000 * i for i in range(24, 48)]
    high = write_video(tmp_path / "b.ts", 24, time_base=base, pts=pts, first=24, size=(240, 320))
    path = tmp_path / "both.ts"
    path.write_bytes(wide.read_bytes() + high.read_bytes())
    index = build_index(str(path))
    assert len(index) == 48
    shapes = [getattr(frame, "shape", None) for _, frame in read_frames(str(path), index, range(48))]
    assert shapes[:20] == [(96, 192, 3)] * 20
    assert shapes[24:] == [(320, 240, 3)] * 24
    assert answers(path, range(24, 48), index=index) == list(range(24, 48))


def test_a_file_that_is_gone_answers_every_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 12)
    index = build_index(str(path))
    path.rename(tmp_path / "b.mp4")
    assert answers(path, [0, 5, 11], index=index) == ["not_found"] * 3


def test_pictures_beyond_the_limit_are_answered_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", 12)
    index = build_index(str(path))
    monkeypatch.setattr("coldframe.serve.container.MAX_PIXELS", 1000)
    assert answers(path, [0, 5], index=index) == ["limit", "limit"]


@pytest.mark.parametrize("wanted", [[3, 2], [2, 2], [-1, 2], [5, 12]])
def test_wanted_frames_must_increase_within_the_video(tmp_path: Path, wanted: list[int]) -> None:
    path = write_video(tmp_path / "a.mp4", 12)
    with pytest.raises(UsageError, match="Wanted frames are"):
        read_frames(str(path), build_index(str(path)), wanted)


def test_nothing_wanted_is_nothing_answered(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 12)
    assert answers(path, []) == []


def _divide_by_zero(frames: Iterable[object]) -> None:
    for number, _ in enumerate(frames):
        number / 0


@pytest.mark.parametrize("threads", [1, 4])
def test_stopping_early_leaves_no_file_and_no_thread(tmp_path: Path, threads: int) -> None:
    good = write_video(tmp_path / "a.mp4", 30)
    hevc = write_video(tmp_path / "b.mp4", 30, codec="libx265", options=X265_OPEN_GOP)
    bad = flip_bits(good, tmp_path / "c.mp4", seed=1)
    indices = {path: build_index(str(path)) for path in (good, hevc, bad)}
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(40):
        for path, index in indices.items():
            reading = read_frames(str(path), index, range(len(index)), threads=threads)
            next(reading)
            reading.close()
            with pytest.raises(ZeroDivisionError):
                _divide_by_zero(read_frames(str(path), index, range(len(index)), threads=threads))
    gc.collect()
    after = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    assert after[0] == before[0]
    assert after[1] <= before[1]  # threads of the encoder that wrote the files may end meanwhile
