"""DALI graph: encoded files and frame numbers in, squares out, many files a batch. The one module that imports DALI.

    file bytes -> fn.decoders.video(frames=...) -> colours (dali_colour) -> fn.resize across -> fn.resize down and crop

Two resizes and not one, because the reference (`preprocess.resize_crop`, PIL) rounds and clips between the two
directions; in one pass DALI keeps overshoots there and differs by up to 20 levels at sharp edges (docs/decoding.md).

The CPU form runs in tests. The GPU form, `device="gpu"`, is the same graph with NVDEC in front; it never ran.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import MissingDependency
from coldframe.serve.dali_colour import SUMS, Conversion
from coldframe.serve.device_handover import hand_over
from coldframe.serve.preprocess import CropWindow

DaliDevice = Literal["cpu", "gpu"]

_REGIONS = ("across_size", "across_from", "across_to", "down_from", "down_to")
# At most, of full-size pictures: what is decoded or codes, beside products with and without their fractions.
BYTES_A_PIXEL = 3 + 2 * 4 * len(SUMS[0])


class DaliError(Exception):
    """DALI gave up on a batch, and with it on all batches behind it. `DaliGraph.restart` comes next."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """What to decode of one file.

    Attributes:
        encoded: (bytes,) uint8, the whole file. Must stay unchanged until the result is collected.
        frames: (n,) presentation indices, in any order, repeats allowed.
        height, width: expected picture size in pixels; another one is an error, because it is cropped elsewhere.
        window: how such a picture becomes a square.
        conversion: what makes PyAV's colours of DALI's.
    """

    encoded: NDArray[np.uint8]
    frames: NDArray[np.int64]
    height: int
    width: int
    window: CropWindow
    conversion: Conversion


class DaliGraph:
    """A DALI pipeline that stays built.

    Args:
        device: where decoding and resizing happen.
        size: side of the squares in pixels.
        threads: threads of the CPU parts.
        batch: most samples in one `submit`.
        device_id: which GPU.

    Raises:
        MissingDependency: DALI is not installed.
    """

    def __init__(self, *, device: DaliDevice, size: int, threads: int, batch: int, device_id: int = 0) -> None:
        self._dali = _dali()
        self._device, self._size, self._threads, self._batch = device, size, threads, batch
        self._device_id = device_id if device == "gpu" else None
        self._waiting: deque[Sequence[Sample]] = deque()
        self._failure: DaliError | None = None
        self._pipeline = self._build()

    def submit(self, samples: Sequence[Sample]) -> None:
        """Start decoding `samples` and return. Results, and errors too, come out of `collect` in this order."""
        self._waiting.append(samples)
        feed = self._pipeline.feed_input
        regions = [_regions(sample, self._size) for sample in samples]
        try:
            feed("encoded", [sample.encoded for sample in samples])
            feed("frames", [sample.frames.astype(np.int32) for sample in samples])
            for place, name in enumerate(_REGIONS):
                feed(name, [np.array(of_sample[place], np.float32) for of_sample in regions])
            feed("codes", [sample.conversion.codes for sample in samples])
            feed("products", [sample.conversion.products for sample in samples])
            self._pipeline.schedule_run()
        except Exception as error:  # of whatever type DALI's C++ error is mapped to; perhaps of an earlier batch
            self._failure = self._failure or DaliError(_cause(error))

    def collect(self) -> list[NDArray[np.uint8]]:
        """(n, size, size, 3) squares for each sample of the oldest batch that was not collected.

        Raises:
            DaliError: a file cannot be decoded, has no such frame, or has pictures of another size.
        """
        samples = self._waiting.popleft()
        if self._failure is not None:
            raise self._failure
        try:
            squares, shapes = self._pipeline.share_outputs()
            _require_shapes(samples, [np.array(shapes.at(place)) for place in range(len(samples))])
            answer = [self._on_host(squares, place) for place in range(len(samples))]
            self._pipeline.release_outputs()
        except DaliError:
            raise
        except Exception as error:
            raise DaliError(_cause(error)) from error
        return answer

    def restart(self) -> None:
        """Forget everything that was submitted. DALI's pipelines do not survive an error."""
        self._waiting.clear()
        self._failure = None
        self._pipeline = self._build()

    def _on_host(self, squares: Any, place: int) -> NDArray[np.uint8]:
        if self._device == "cpu":
            return np.array(squares.at(place))
        return hand_over(squares[place]).on_host()

    def _build(self) -> Any:
        fn, types = self._dali.fn, self._dali.types
        pipeline = self._dali.Pipeline(
            batch_size=self._batch,
            num_threads=self._threads,
            device_id=self._device_id,
            prefetch_queue_depth=1,  # at depth 2 the first run waits for a second batch, which there may never be
        )
        resize = {"interp_type": types.INTERP_CUBIC, "antialias": True, "subpixel_scale": False}
        with pipeline:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, no_copy=True)
            frames = fn.external_source(name="frames", dtype=types.INT32, ndim=1)
            size, *roi = (fn.external_source(name=name, dtype=types.FLOAT, ndim=1) for name in _REGIONS)
            maps = [fn.external_source(name=name, dtype=types.FLOAT, ndim=2) for name in ("codes", "products")]
            video = fn.decoders.video(
                encoded,
                device="cpu" if self._device == "cpu" else "mixed",
                frames=frames,
                pad_mode="none",  # any other gives black or repeated pictures for frames that are not there
            )
            across = fn.resize(self._colours(video, *maps), size=size, roi_start=roi[0], roi_end=roi[1], **resize)
            squares = fn.resize(across, size=[self._size] * 2, roi_start=roi[2], roi_end=roi[3], **resize)
            pipeline.set_outputs(squares, video.shape())
        pipeline.build()
        return pipeline

    def _colours(self, video: Any, codes: Any, products: Any) -> Any:
        fn, types = self._dali.fn, self._dali.types
        whole = fn.coord_transform(video, MT=codes, dtype=types.UINT8)  # rounds, and clips to [0, 255]
        dropped = self._dali.math.floor(fn.coord_transform(whole, MT=products, dtype=types.FLOAT))
        sums = [factor for row in SUMS for factor in row]
        return fn.cast(fn.coord_transform(dropped, M=sums), dtype=types.UINT8)


def _regions(sample: Sample, size: int) -> tuple[tuple[float, float], ...]:
    """Output size and (from, to) of the first resize, (from, to) of the second, each as (y, x) in pixels."""
    window, height, width = sample.window, sample.height, sample.width
    left, right = (x * width / window.width for x in (window.left, window.left + size))
    top, bottom = (y * height / window.height for y in (window.top, window.top + size))
    return (height, size), (0, left), (height, right), (top, 0), (bottom, size)


def _require_shapes(samples: Sequence[Sample], shapes: Sequence[NDArray[np.int64]]) -> None:
    for sample, shape in zip(samples, shapes, strict=True):
        expected = [len(sample.frames), sample.height, sample.width, 3]
        if shape.tolist() != expected:
            raise DaliError(f"DALI decoded (frames, height, width, channels) {shape.tolist()}, expected {expected}.")


def _cause(error: Exception) -> str:
    """The line of DALI's message that says what happened; the others say where in the graph."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for place, line in enumerate(lines):
        if line == "encountered:" and place + 1 < len(lines):
            return lines[place + 1]
    return lines[-1] if lines else type(error).__name__


@cache
def _dali() -> Any:
    try:
        import nvidia.dali as dali  # takes a second or two
        import nvidia.dali.fn as _fn  # noqa: F401  not loaded by the line above
    except ImportError as error:
        raise MissingDependency("NVIDIA DALI", "dali") from error
    return dali


def dali_version() -> str:
    """DALI's version.

    Raises:
        MissingDependency: DALI is not installed.
    """
    return str(_dali().__version__)


def gpu_count() -> int:
    """CUDA devices that DALI sees.

    Raises:
        MissingDependency: DALI is not installed.
    """
    return int(_dali().backend.GetCUDADeviceCount())
