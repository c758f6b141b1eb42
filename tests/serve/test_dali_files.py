"""Files whose frames or colours DALI would give differently are refused, each with its reason."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.stream import VideoStream

from coldframe.serve import dali_files
from coldframe.serve.clips import PyAVReader, VideoClips
from coldframe.serve.container import file_sha256
from coldframe.serve.dali_files import Refusal, examine
from coldframe.serve.dali_graph import DaliDevice
from coldframe.serve.dali_reader import DaliReader
from coldframe.serve.pts_index import build_index
from tests import barcode

VP9 = {"b": "0", "crf": "10", "g": "12", "deadline": "realtime", "cpu-used": "8"}
MAKE: dict[str, Any] = {"codec": "libvpx-vp9", "options": VP9}


def reason(path: Path, *, device: DaliDevice = "cpu", size: int = 64) -> str | None:
    found = examine(str(path), build_index(str(path)), device=device, size=size)
    return found.reason if isinstance(found, Refusal) else None


def joined(target: Path, *sources: Path) -> Path:
    """The packets of `sources` one after the other, as the first one's stream."""
    with av.open(str(target), "w") as writing:
        copy, offset = None, 0
        for source in sources:
            with av.open(str(source)) as reading:
                stream = reading.streams.video[0]
                copy = copy or writing.add_stream_from_template(stream)
                last = offset
                for packet in reading.demux(stream):
                    if packet.pts is not None and packet.dts is not None:
                        packet.pts, packet.dts, packet.stream = packet.pts + offset, packet.dts + offset, copy
                        last = packet.pts
                        writing.mux(packet)
                offset = last + 33
    return target


def tagged(path: Path, matrix: int, *, codec: str = "libvpx-vp9", full: bool = False) -> Path:
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=30, options=VP9)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 2 if full else 1
        for number in range(4):
            frame = av.VideoFrame(64, 64, "yuv420p")
            for plane, value in zip(frame.planes, (100, 90, 180), strict=True):
                plane.update(bytes([value]) * plane.buffer_size)
            frame.pts, frame.colorspace, frame.color_range = number, matrix, 2 if full else 1
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def vp9(path: Path, frames: int = 20, **options: Any) -> Path:
    return barcode.write_video(path, frames, **{**MAKE, **options})


REFUSED: dict[str, Callable[[Path], Path]] = {
    "codec": lambda folder: barcode.write_video(folder / "a.mp4", 20),
    "container": lambda folder: vp9(folder / "a.ivf", container="ivf"),
    "rotation": lambda folder: barcode.set_matrix(vp9(folder / "a.mp4"), folder / "b.mp4", 90),
    "truncated": lambda folder: barcode.cut(vp9(folder / "a.webm"), folder / "b.webm", 0.6),
    "hidden_frames": lambda folder: barcode.trim(
        vp9(folder / "a.mp4", 60, options={**VP9, "g": "60"}), folder / "b.mp4", 0.7, 1.5
    ),
    "size_changes": lambda folder: joined(
        folder / "c.mkv", vp9(folder / "a.webm", size=(240, 120)), vp9(folder / "b.webm")
    ),
    "pixel_format": lambda folder: vp9(folder / "a.webm", pixels="yuv440p", options={**VP9, "profile": "1"}),
    "streams": lambda folder: two_streams(folder / "a.mkv"),
    "pts_synthesised": lambda folder: in_pairs(folder / "b.mkv", vp9(folder / "a.webm")),
}


def two_streams(path: Path) -> Path:
    with av.open(str(path), "w") as output:
        streams = [output.add_stream("libvpx-vp9", rate=30, options=VP9) for _ in range(2)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = barcode.WIDTH, barcode.HEIGHT, "yuv420p"
        for number in range(8):
            for place, stream in enumerate(streams):
                frame = av.VideoFrame.from_ndarray(barcode.draw(number + 100 * place), format="rgb24")
                frame.pts = number
                output.mux(stream.encode(frame))
        for stream in streams:
            output.mux(stream.encode())
    return path


def in_pairs(target: Path, source: Path) -> Path:
    """The same packets, two of them at each time."""
    with av.open(str(target), "w") as writing, av.open(str(source)) as reading:
        stream = reading.streams.video[0]
        copy = writing.add_stream_from_template(stream)
        for number, packet in enumerate(reading.demux(stream)):
            if packet.dts is not None:
                packet.pts = packet.dts = 66 * (number // 2)
                packet.stream = copy
                writing.mux(packet)
    return target


@pytest.mark.parametrize("expected", REFUSED)
def test_refused_files_are_decoded_by_pyav(tmp_path: Path, expected: str) -> None:
    path = REFUSED[expected](tmp_path)
    assert reason(path) == expected
    index = build_index(str(path))
    video = VideoClips(
        path=str(path),
        sha256=file_sha256(str(path))[0],
        rows=np.arange(len(index)),
        frame_index=np.arange(len(index), dtype=np.int32)[:, None],
    )
    reader = DaliReader(image_size=64, device="cpu", threads=2)
    mine, theirs = list(reader.read(video)), list(PyAVReader(image_size=64).read(video))
    assert [row for row, _ in mine] == [row for row, _ in theirs]
    for (_, left), (_, right) in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(left, right)
    assert reader.provenance()["decoder_fallbacks"] == {expected: {"videos": 1, "rows": len(index)}}


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: vp9(folder / "a.webm"),
        lambda folder: vp9(folder / "a.webm", time_base=Fraction(1, 1000), pts=[i * i for i in range(20)]),
        lambda folder: tagged(folder / "a.webm", 6),
        lambda folder: tagged(folder / "a.webm", 5, full=True),
        lambda folder: barcode.write_video(folder / "a.avi", 8, codec="mjpeg", pixels="yuvj422p", options={"q:v": "2"}),
    ],
    ids=["plain", "uneven rate", "tagged BT.601", "full range", "mjpeg 4:2:2"],
)
def test_files_that_dali_reads_alike_are_accepted(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    assert reason(make(tmp_path)) is None


@pytest.mark.parametrize(("matrix", "full"), [(6, False), (6, True), (2, False), (5, False)])
def test_solid_colours_agree(tmp_path: Path, matrix: int, full: bool) -> None:
    path = tagged(tmp_path / "a.webm", matrix, full=full)
    video = VideoClips(
        path=str(path), sha256=file_sha256(str(path))[0], rows=np.arange(1), frame_index=np.zeros((1, 1), np.int32)
    )
    reader = DaliReader(image_size=64, device="cpu", threads=1)
    ((_, mine),), ((_, theirs),) = reader.read(video), PyAVReader(image_size=64).read(video)
    assert reader.provenance()["decoder_rows"] == {"dali": [[0, 1]]}
    assert np.abs(np.asarray(mine, np.int16) - np.asarray(theirs, np.int16)).max() <= 1


def test_small_pictures_are_refused_because_enlarging_differs(tmp_path: Path) -> None:
    path = vp9(tmp_path / "a.webm")
    assert reason(path, size=96) is None
    assert reason(path, size=97) == "enlarged"


def test_odd_numbers_of_even_rows_are_refused_because_their_colours_differ(tmp_path: Path) -> None:
    assert reason(vp9(tmp_path / "a.webm", size=(192, 95))) == "pixel_format"
    assert reason(vp9(tmp_path / "b.webm", size=(191, 95))) is None


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = vp9(tmp_path / "a.webm")
    monkeypatch.setattr(dali_files, "MAX_ENCODED_BYTES", path.stat().st_size - 1)
    assert reason(path) == "size"


# For the GPU these rules were never tried; what can be tested here is that they refuse what they should.


def test_gpu_takes_closed_and_refuses_open_groups(tmp_path: Path) -> None:
    closed = barcode.write_video(
        tmp_path / "a.mp4", 90, codec="libx265",
        options={"x265-params": "keyint=30:bframes=3:open-gop=0:log-level=none:crf=8"},
    )  # fmt: skip
    opened = barcode.write_video(tmp_path / "b.mp4", 90, codec="libx265", options=barcode.X265_OPEN_GOP)
    assert reason(closed, device="gpu") is None
    assert reason(opened, device="gpu") == "open_gop"


@pytest.mark.parametrize("matrix", [1, 7, 9])
def test_other_matrices_than_the_one_that_dali_reads_by_are_refused(tmp_path: Path, matrix: int) -> None:
    # a green of BT.709, read by BT.601, is clipped; turned back it was up to 93 levels off
    assert reason(tagged(tmp_path / "a.webm", matrix)) == "colour_matrix"
    assert reason(tagged(tmp_path / "a.webm", matrix), device="gpu") == "colour_matrix"


def test_matrices_that_are_not_known_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    barcode.write_plane(path, (100, 90, 180), matrix=8, full=False, tagged=True)  # YCgCo
    assert reason(path, device="gpu", size=32) == "colour_matrix"


def test_gpu_takes_b_frames(tmp_path: Path) -> None:
    assert reason(barcode.write_video(tmp_path / "a.mp4", 40), device="gpu") is None


@pytest.mark.parametrize("pixels", ["yuv444p", "yuv420p10le"])
def test_gpu_refuses_what_nv12_does_not_hold(tmp_path: Path, pixels: str) -> None:
    path = barcode.write_video(tmp_path / "a.mp4", 12, pixels=pixels)
    assert reason(path, device="gpu") == "pixel_format"


def test_gpu_refuses_interlaced_pictures(tmp_path: Path) -> None:
    options = {**barcode.X264, "flags": "+ildct+ilme", "x264-params": "tff=1"}
    assert reason(barcode.write_video(tmp_path / "a.mp4", 12, options=options), device="gpu") == "interlaced"
