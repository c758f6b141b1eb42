"""Real pictures in the formats that no small real file covers, and faults that are on nobody's list."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.stream import VideoStream
from numpy.typing import NDArray

from coldframe.demo import packaged_clips
from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import PtsIndex, build_index
from coldframe.store.schema import Flag
from tests.barcode import cut, read_number, write_video

COUNT = 40


@pytest.fixture(scope="session")
def pictures() -> list[NDArray[np.uint8]]:
    """The first frames of a real clip of cyclists, (272, 640, 3)."""
    (path,) = [path for path in packaged_clips() if path.name == "bikes.mp4"]
    with av.open(str(path)) as container:
        return [
            np.asarray(f.to_ndarray(format="rgb24"), np.uint8)
            for _, f in zip(range(COUNT), container.decode(video=0), strict=False)
        ]


KINDS: dict[str, Mapping[str, Any]] = {
    "hevc_main10.mp4": {
        "codec": "libx265",
        "pixels": "yuv420p10le",
        "options": {"x265-params": "log-level=none:crf=12"},
    },
    "av1.mp4": {"codec": "libsvtav1", "options": {"crf": "20", "preset": "12"}},
    "av1_10.mkv": {"codec": "libsvtav1", "pixels": "yuv420p10le", "options": {"crf": "20", "preset": "12"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"crf": "12", "b": "0", "cpu-used": "8"}},
    "prores.mov": {"codec": "prores_ks", "pixels": "yuv422p10le"},
    "dnxhr.mov": {"codec": "dnxhd", "pixels": "yuv422p", "options": {"profile": "dnxhr_sq"}},
    "ffv1.mkv": {"codec": "ffv1", "pixels": "yuv420p"},
    "high10.mp4": {"codec": "libx264", "pixels": "yuv420p10le", "options": {"crf": "12"}},
    "interlaced.ts": {"options": {"crf": "12", "flags": "+ilme+ildct", "x264-params": "tff=1"}},
    "fake_interlaced.ts": {"options": {"crf": "12", "flags": "+ilme+ildct", "x264-params": "tff=1:fake-interlaced=1"}},
    "open_gop.mkv": {"options": {"crf": "12", "g": "12", "x264-params": "open-gop=1:bframes=3"}},
    "raw.h264": {"options": {"crf": "12"}, "container": "h264"},
    "variable.mkv": {"options": {"crf": "12"}, "uneven": True},
    "fragmented.mp4": {"options": {"crf": "12"}, "muxer": {"movflags": "frag_keyframe+empty_moov"}},
    "odd_444.mp4": {"pixels": "yuv444p", "options": {"crf": "12"}, "size": (321, 137)},
    "left_crop.mp4": {"options": {"crf": "12", "x264-params": "crop-rect=6,0,0,0"}, "shown": (634, 272)},
}


def encode(
    path: Path,
    pictures: list[NDArray[np.uint8]],
    *,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    options: Mapping[str, str] | None = None,
    container: str | None = None,
    muxer: Mapping[str, str] | None = None,
    size: tuple[int, int] | None = None,
    uneven: bool = False,
    shown: tuple[int, int] | None = None,
) -> list[int]:
    """Write `pictures` and return their times in milliseconds."""
    times = [1000 * number // 25 + (number // 7 * 60 if uneven else 0) for number in range(len(pictures))]
    with av.open(str(path), "w", format=container, options=dict(muxer or {})) as output:
        stream = output.add_stream(codec, rate=25, options=dict(options or {}))
        assert isinstance(stream, VideoStream)
        width, height = size or (640, 272)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.codec_context.time_base = Fraction(1, 1000)
        for picture, at in zip(pictures, times, strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(width, height)
            frame.pts, frame.time_base = at, Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return times


def shapes_and_pictures(path: Path, index: PtsIndex) -> Iterator[NDArray[np.uint8]]:
    for _, frame in read_frames(str(path), index, range(len(index))):
        assert not isinstance(frame, VideoError), frame
        yield frame


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_gives_every_picture_at_its_time(
    tmp_path: Path, pictures: list[NDArray[np.uint8]], name: str
) -> None:
    path, kind = tmp_path / name, KINDS[name]
    times = encode(path, pictures, **kind)
    index = build_index(str(path))
    assert index.seconds.tolist() == pytest.approx([at / 1000 for at in times], abs=2e-3)
    width, height = kind.get("shown") or kind.get("size") or (640, 272)
    for frame, picture in zip(shapes_and_pictures(path, index), pictures, strict=True):
        assert frame.shape == (height, width, 3)
        if "size" not in kind:
            assert np.abs(frame.astype(int) - picture[:, 640 - width :]).mean() < 8
    assert (Flag.INTERLACED in index.flags) == (name in ("interlaced.ts", "fake_interlaced.ts"))
    assert (Flag.VARIABLE_RATE in index.flags) == (name == "variable.mkv")
    assert (Flag.PTS_SYNTHESISED in index.flags) == (name == "raw.h264")


@pytest.mark.parametrize(
    "name", ["fragmented.mp4", "open_gop.mkv", "interlaced.ts", "vp9.webm", "raw.h264", "ffv1.mkv"]
)
def test_every_kind_cut_in_the_middle_gives_a_whole_beginning(
    tmp_path: Path, pictures: list[NDArray[np.uint8]], name: str
) -> None:
    encode(tmp_path / name, pictures, **KINDS[name])
    path = cut(tmp_path / name, tmp_path / f"cut_{name}", 0.6)
    index = build_index(str(path))
    assert 5 < len(index) < COUNT
    frames = [frame for _, frame in read_frames(str(path), index, range(len(index)))]
    # The cut itself may show as damage; where only decoding orders B-frames, it takes what the decoder may hold along.
    unsure = 20 if name == "raw.h264" else 3
    assert len(frames) > unsure
    assert not any(isinstance(frame, VideoError) for frame in frames[:-unsure])
    for frame, picture in zip(frames, pictures, strict=False):
        assert isinstance(frame, VideoError) or np.abs(frame.astype(int) - picture).mean() < 8


def numbers(path: Path, index: PtsIndex) -> list[int]:
    return [read_number(frame) for frame in shapes_and_pictures(path, index)]


def test_negative_times_are_times(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.nut.mkv", 40, pts=[33 * i for i in range(40)], time_base=Fraction(1, 1000))
    early = tmp_path / "early.mp4"
    with av.open(str(path)) as reading, av.open(str(early), "w", options={"avoid_negative_ts": "disabled"}) as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for packet in reading.demux(video=0):
            if packet.pts is not None and packet.dts is not None:
                packet.pts, packet.dts, packet.stream = packet.pts - 500, packet.dts - 500, stream
                writing.mux(packet)
    index = build_index(str(early))
    shown = numbers(early, index)
    # FFmpeg writes an edit list that hides what is before 0.
    assert shown == list(range(40 - len(shown), 40))
    assert len(shown) > 20


def test_a_jump_of_hours_is_a_gap_and_not_a_rate(tmp_path: Path) -> None:
    times = [33 * i for i in range(200)] + [3 * 3600 * 1000 + 33 * i for i in range(200)]
    path = write_video(tmp_path / "a.mkv", 400, pts=times, time_base=Fraction(1, 1000))
    index = build_index(str(path))
    assert numbers(path, index) == list(range(400))
    assert index.frame_duration == 33
    assert Flag.VARIABLE_RATE in index.flags


def test_two_streams_of_equal_size_give_the_first(tmp_path: Path) -> None:
    path = tmp_path / "two.mp4"
    sources = [write_video(tmp_path / f"{first}.mp4", 30, first=first) for first in (0, 100)]
    with av.open(str(path), "w") as writing:
        readings = [av.open(str(source)) for source in sources]
        streams = [writing.add_stream_from_template(reading.streams.video[0]) for reading in readings]
        for reading, stream in zip(readings, streams, strict=True):
            for packet in reading.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    writing.mux(packet)
            reading.close()
    assert numbers(path, build_index(str(path))) == list(range(30))


def test_vp9_that_changes_its_size_mid_stream(tmp_path: Path) -> None:
    # Two encodings' packets in one track, as adaptive streaming dumps hold them.
    options = {"crf": "10", "b": "0", "g": "12", "cpu-used": "8"}
    parts = [
        write_video(tmp_path / "a.webm", 24, codec="libvpx-vp9", options=options),
        write_video(tmp_path / "b.webm", 24, codec="libvpx-vp9", options=options, first=24, size=(240, 120)),
    ]
    path = tmp_path / "both.webm"
    with av.open(str(path), "w") as writing:
        stream = None
        for turn, part in enumerate(parts):
            with av.open(str(part)) as reading:
                stream = stream or writing.add_stream_from_template(reading.streams.video[0])
                for packet in reading.demux(video=0):
                    if packet.size and packet.pts is not None and packet.dts is not None:
                        packet.pts, packet.dts = packet.pts + 800 * turn, packet.dts + 800 * turn
                        packet.stream = stream
                        writing.mux(packet)
    index = build_index(str(path))
    frames = list(shapes_and_pictures(path, index))
    assert [frame.shape for frame in frames] == [(96, 192, 3)] * 24 + [(120, 240, 3)] * 24
    assert [read_number(frame) for frame in frames] == list(range(48))


def test_one_picture_is_a_video_of_one_frame(tmp_path: Path) -> None:
    for name, fields in {"a.mp4": {}, "a.gif": {"codec": "gif", "pixels": "rgb8", "options": {}}}.items():
        path = write_video(tmp_path / name, 1, **fields)  # type: ignore[arg-type]
        index = build_index(str(path))
        assert (len(index), numbers(path, index)) == (1, [0])
