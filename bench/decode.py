"""Decoding: wanted frames, clips, resize, indexing and memory, each beside the bare decoder on the same file.

Work of one thread is compared by the processor time that it takes, in all processes together: wall time on a busy
machine says more about the neighbours.

Bare PyAV is: decode every frame with one thread, and convert only the wanted ones to RGB. Wanted are those of dense
windows: 16 frames at 7.5 of 30 frames a second, no gap, so one frame in four.
"""

import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coldframe.bench.clips_720p import FPS, repeat, write_moving
from coldframe.bench.report import Result, Target, Timing, interleave
from coldframe.errors import VideoError
from coldframe.serve.clips import VideoCache, VideoClips, read_clips, read_in_child
from coldframe.serve.container import file_sha256, pyav
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.frames import read_frames
from coldframe.serve.preprocess import resize_crop
from coldframe.serve.pts_index import PtsIndex, build_index

SIZE, STEP, FRAMES = 224, 4, 16
LONG_HOURS = 10
MEMORY_BYTES = 1 << 30


def measure(quick: bool) -> tuple[list[Result], list[Target]]:
    """Rates against bare PyAV, sparse sampling against decoding everything, indexing against decoding, memory."""
    runs = 2 if quick else 7
    with tempfile.TemporaryDirectory(prefix="coldframe-bench-") as folder:
        dense = Path(folder, "dense.mp4")
        write_moving(dense, 300 if quick else 900)
        index = build_index(str(dense))
        wanted = np.arange(0, len(index) - len(index) % (STEP * FRAMES), STEP)
        _check_equal(dense, index, wanted)
        results = _dense(dense, index, wanted, runs)
        results += [_resize(dense, index, runs), _sparse(dense, Path(folder, "sparse.mp4"), quick)]
        results.append(_memory(Path(folder), fps=5 if quick else 30))
    ratio = {result.name: result.ratio or 0.0 for result in results}
    return results, [
        Target(name="frames / bare PyAV", value=ratio["wanted frames, 720p H.264"], wants=0.95),
        Target(name="clips / bare PyAV", value=ratio["clips of 224 px"], wants=0.75),
        Target(name="resize / PyTorch alone", value=ratio["resize and crop to 224 px"], wants=0.90),
        Target(name="sparse clips / decoding everything", value=ratio["one clip a minute"], wants=5.0),
        Target(name="decoding / 10 x hash and index", value=ratio["hash and index"] / 10, wants=1.0),
        Target(name="1 GiB / memory for 10 hours", value=ratio["memory, 10 hours"], wants=1.0),
    ]


def bare(path: Path, wanted: frozenset[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Every frame decoded by PyAV with one thread; the wanted ones, by their number, in RGB."""
    with pyav().open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                yield number, frame.to_ndarray(format="rgb24")


def _check_equal(path: Path, index: PtsIndex, wanted: NDArray[np.int64]) -> None:
    ours = read_frames(str(path), index, wanted)
    for (number, picture), (other, plain) in zip(ours, bare(path, frozenset(wanted.tolist())), strict=True):
        assert number == other
        assert not isinstance(picture, VideoError)
        np.testing.assert_array_equal(picture, plain)


def _drain(items: Iterator[object]) -> None:
    for _ in items:
        continue


def _dense(path: Path, index: PtsIndex, wanted: NDArray[np.int64], runs: int) -> list[Result]:
    few, sha256 = frozenset(wanted.tolist()), file_sha256(str(path))[0]
    clips, process = _request(path, sha256, wanted), DecodeProcess()
    contenders: dict[str, Callable[[], object]] = {
        "bare PyAV, 720p H.264": lambda: _drain(bare(path, few)),
        "wanted frames, 720p H.264": lambda: _drain(read_frames(str(path), index, wanted)),
        "clips of 224 px": lambda: _drain(process.run(read_in_child, clips, SIZE)),
        "hash and index": lambda: (file_sha256(str(path)), build_index(str(path))),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(1 + runs):
        for name, run in contenders.items():
            before = _processor_seconds(process)
            run()
            if turn:
                seconds[name].append(_processor_seconds(process) - before)
    process.close()
    timings = {name: Timing(seconds=tuple(values)) for name, values in seconds.items()}
    floor = timings["bare PyAV, 720p H.264"]
    return [_rate(name, len(index), timing, floor) for name, timing in timings.items()]


def _processor_seconds(process: DecodeProcess) -> float:
    """Processor time of this process and of the decode process."""
    (child,) = process.run(processor_seconds)
    return time.process_time() + child


def processor_seconds() -> Iterator[float]:
    """Job of a decode process."""
    yield time.process_time()


def _request(path: Path, sha256: str, wanted: NDArray[np.int64]) -> VideoClips:
    table = wanted.reshape(-1, FRAMES).astype(np.int32)
    return VideoClips(path=str(path), sha256=sha256, rows=np.arange(len(table)), frame_index=table)


def _rate(name: str, frames: int, timing: Timing, floor: Timing) -> Result:
    return Result(
        name=name,
        value=frames / timing.median,
        unit="frames/s",
        spread=timing.spread,
        reference="" if timing is floor else "bare PyAV",
        ratio=None if timing is floor else floor.median / timing.median,
    )


def _resize(path: Path, index: PtsIndex, runs: int) -> Result:
    """Our resize and crop beside the one PyTorch call that it is made of."""
    pictures = [
        picture for _, picture in read_frames(str(path), index, range(8)) if not isinstance(picture, VideoError)
    ]
    height, width, _ = pictures[0].shape
    to = (SIZE, round(Fraction(width * SIZE, height)))
    tensors = [torch.from_numpy(picture).permute(2, 0, 1)[None] for picture in pictures]

    def alone() -> None:
        for tensor in tensors:
            torch.nn.functional.interpolate(tensor, size=to, mode="bicubic", align_corners=False, antialias=True)

    ours, floor = interleave([lambda: [resize_crop(picture, SIZE) for picture in pictures], alone], runs=5 * runs)
    return Result(
        name="resize and crop to 224 px",
        value=len(pictures) / ours.median,
        unit="frames/s",
        spread=ours.spread,
        reference="PyTorch alone",
        ratio=floor.median / ours.median,
    )


def _sparse(dense: Path, path: Path, quick: bool) -> Result:
    """One clip in the middle of each minute, against decoding the whole video."""
    minutes = 1 if quick else 5
    frames = len(build_index(str(dense)))
    repeat(dense, path, minutes * 60 * FPS // frames)
    index = build_index(str(path))
    assert len(index) == minutes * 60 * FPS
    starts = np.arange(minutes) * 60 * FPS + 30 * FPS
    wanted = (starts[:, None] + STEP * np.arange(FRAMES)).ravel()
    cache, sha256 = VideoCache(), file_sha256(str(path))[0]
    clips = _request(path, sha256, wanted)
    cache.index(str(path), sha256)
    ours, floor = interleave(
        [
            lambda: _drain(read_clips(clips, cache, image_size=SIZE, threads=1)),
            lambda: _drain(bare(path, frozenset(wanted.tolist()))),
        ],
        runs=1 if quick else 3,
        warmups=0,
    )
    return Result(
        name="one clip a minute",
        value=minutes / ours.median,
        unit="clips/s",
        spread=ours.spread,
        reference="decoding everything",
        ratio=floor.median / ours.median,
    )


def _memory(folder: Path, fps: int) -> Result:
    """Resident memory that hashing, indexing and sampling a 10-hour file adds at its peak."""
    short, path = folder / "second.mp4", folder / "hours.mp4"
    _write_tiny(short, fps)
    repeat(short, path, LONG_HOURS * 60)
    process = DecodeProcess()
    (added,) = process.run(added_peak_bytes, str(path), fps)
    process.close()
    return Result(
        name="memory, 10 hours",
        value=added / 1e6,
        unit="MB",
        spread=0.0,
        reference="within 1 GiB",
        ratio=MEMORY_BYTES / max(added, 1),
    )


def _write_tiny(path: Path, fps: int) -> None:
    """A minute of 64 x 48 pixels."""
    av = pyav()
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=fps, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(60 * fps):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), number % 256, np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())


def added_peak_bytes(path: str, fps: int) -> Iterator[int]:
    """Job of a decode process: the growth of its peak memory over one clip an hour of a long file."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sha256, _ = file_sha256(path)
    index = build_index(path)
    assert len(index) == LONG_HOURS * 3600 * fps, len(index)
    starts = np.arange(LONG_HOURS) * 3600 * fps
    clips = _request(Path(path), sha256, (starts[:, None] + STEP * np.arange(FRAMES)).ravel())
    for _, clip in read_clips(clips, VideoCache(), image_size=SIZE, threads=1):
        assert not isinstance(clip, VideoError), clip
    yield 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
