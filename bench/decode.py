"""Decoding: wanted frames, clips, resize, indexing and memory, each beside the bare decoder on the same file.

Contenders run in turns and are compared twice: by wall time, and by the processor time of all processes together, which
neighbours on the machine stretch less. A target takes the worse of the two.

Bare PyAV is: decode every frame of 720p H.264 with one thread, and convert only the wanted ones to RGB. Wanted are
those of dense windows: 16 frames at 7.5 of 30 frames a second, no gap, so one frame in four.
"""

import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
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
from coldframe.serve.preprocess import resize_crop, use_one_thread
from coldframe.serve.pts_index import PtsIndex, build_index

SIZE, STEP, FRAMES = 224, 4, 16
LONG_HOURS = 10
MEMORY_BYTES = 1 << 30
_INDEXING = "hash and index, "
_PLAIN = ", no B-frames"
_CONTAINERS = (".mp4", ".mkv", ".ts")  # the last two with checks of their own, each byte of which is looked at


def measure(quick: bool) -> tuple[list[Result], list[Target]]:
    """Rates against bare PyAV, sparse sampling against decoding everything, indexing against decoding, memory."""
    runs, frames = (2, 320) if quick else (7, 896)  # whole windows
    with tempfile.TemporaryDirectory(prefix="coldframe-bench-") as folder, _one_torch_thread():
        dense, plain = Path(folder, "dense.mp4"), Path(folder, "plain.mp4")
        write_moving(dense, frames)
        write_moving(plain, frames, b_frames=0)
        results = _dense(dense, runs) + _without_b_frames(plain, runs)
        results += [_resize(dense, runs), _sparse(dense, Path(folder, "sparse.mp4"), quick)]
        results.append(_memory(Path(folder), fps=5 if quick else 30))
    ratio = {result.name: min(result.ratio or 0.0, result.cpu_ratio or np.inf) for result in results}
    wants = [(f"frames{kind}", ratio[f"wanted frames{kind}"], 0.95) for kind in ("", _PLAIN)]
    wants += [(f"clips{kind}", ratio[f"clips of 224 px{kind}"], 0.75) for kind in ("", _PLAIN)]
    return results, [
        *(Target(name=f"{name} / bare PyAV", value=value, wants=wanted) for name, value, wanted in wants),
        Target(name="resize / PyTorch alone", value=ratio["resize and crop to 224 px"], wants=0.90),
        Target(name="sparse clips / decoding everything", value=ratio["one clip a minute"], wants=5.0),
        *(
            Target(name=f"decoding / 10 x hash and index, {suffix}", value=ratio[_INDEXING + suffix] / 10, wants=1.0)
            for suffix in _CONTAINERS
        ),
        Target(name="1 GiB / memory for 10 hours", value=ratio["memory, 10 hours"], wants=1.0),
    ]


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    use_one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bare(path: Path, wanted: frozenset[int], threads: int = 1) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Every frame decoded by PyAV; the wanted ones, by their number, in RGB. `threads` decode and convert."""
    with pyav().open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = threads
        stream.codec_context.thread_type = "FRAME" if threads > 1 else "SLICE"
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                yield number, frame.to_ndarray(format="rgb24", threads=threads)


def _drain(items: Iterator[object]) -> None:
    for _ in items:
        continue


def _dense(path: Path, runs: int) -> list[Result]:
    index, wanted = _windows(path)
    few = frozenset(wanted.tolist())
    contenders: dict[str, Callable[[], object]] = {
        "bare PyAV, 2 threads": lambda: _drain(bare(path, few, 2)),
        "wanted frames, 2 threads": lambda: _drain(read_frames(str(path), index, wanted, threads=2)),
    }
    for suffix in _CONTAINERS:
        copy = path.with_suffix(suffix)
        if copy != path:
            repeat(path, copy, 1)
        contenders[_INDEXING + suffix] = partial(_hash_and_index, str(copy))
    return _beside_bare(path, index, wanted, contenders, runs)


def _without_b_frames(path: Path, runs: int) -> list[Result]:
    results = _beside_bare(path, *_windows(path), {}, runs)
    return [
        replace(result, name=result.name + _PLAIN, reference=result.reference and result.reference + _PLAIN)
        for result in results
    ]


def _windows(path: Path) -> tuple[PtsIndex, NDArray[np.int64]]:
    """The video's index, and the frames of dense windows, which bare PyAV gives alike."""
    index = build_index(str(path))
    wanted = np.arange(0, len(index), STEP)
    ours = read_frames(str(path), index, wanted)
    for (number, picture), (other, plain) in zip(ours, bare(path, frozenset(wanted.tolist())), strict=True):
        assert number == other
        assert not isinstance(picture, VideoError)
        np.testing.assert_array_equal(picture, plain)
    return index, wanted


def _beside_bare(
    path: Path, index: PtsIndex, wanted: NDArray[np.int64], further: dict[str, Callable[[], object]], runs: int
) -> list[Result]:
    few, sha256 = frozenset(wanted.tolist()), file_sha256(str(path))[0]
    clips, process = _request(path, sha256, wanted), DecodeProcess()
    contenders: dict[str, Callable[[], object]] = {
        "bare PyAV": lambda: _drain(bare(path, few)),
        "wanted frames": lambda: _drain(read_frames(str(path), index, wanted)),
        "clips of 224 px": lambda: _drain(process.run(read_in_child, clips, SIZE)),
        **further,
    }
    timings = interleave(list(contenders.values()), runs=runs, processor_seconds=lambda: _processor_seconds(process))
    process.close()
    by_name = dict(zip(contenders, timings, strict=True))
    floors = {"wanted frames, 2 threads": "bare PyAV, 2 threads"}
    return [_rate(name, len(index), by_name, floors.get(name, "bare PyAV")) for name in contenders]


def _hash_and_index(path: str) -> None:
    file_sha256(path)
    build_index(path)


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


def _rate(name: str, frames: int, timings: dict[str, Timing], floor: str) -> Result:
    timing, is_floor = timings[name], name.startswith("bare")
    return Result(
        name=name,
        value=frames / timing.median,
        unit="frames/s",
        spread=timing.spread,
        reference="" if is_floor else floor,
        ratio=None if is_floor else timings[floor].median / timing.median,
        cpu_ratio=None if is_floor else timings[floor].cpu_median / timing.cpu_median,
    )


def _resize(path: Path, runs: int) -> Result:
    """Our resize and crop beside the one PyTorch call that it is made of."""
    index = build_index(str(path))
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
        cpu_ratio=floor.cpu_median / ours.cpu_median,
    )


def _sparse(dense: Path, path: Path, quick: bool) -> Result:
    """One clip in the middle of each minute, against decoding the whole video."""
    minutes = 1 if quick else 5
    frames = len(build_index(str(dense)))
    repeat(dense, path, -(-minutes * 60 * FPS // frames))
    index = build_index(str(path))
    assert len(index) >= minutes * 60 * FPS
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
        cpu_ratio=floor.cpu_median / ours.cpu_median,
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
