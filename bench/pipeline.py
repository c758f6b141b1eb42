"""Pipeline: whole extractions beside their own stages, each measured alone on the same clips in the same run.

The floor of a pipeline is its slowest stage. On a processor whose cores decode and encode at the same time there is a
second one, which no overlap can beat: the processor seconds of all stages, shared out over the cores. Both ratios are
shown, each with the target of 0.90. Where decoding takes more than a ninth of the encoder's processor time, the first
cannot be met by any schedule; where cores are left over, as with a GPU, the two are the same.

Videos are 720p H.264 made here, tokens are all of them (`full`) in float16, encoding is ONNX Runtime in float32 with
one worker, as `coldframe extract` does it. With `quick` base and large have one block, so that decoding weighs more
than it does in use, and the memory of large says nothing. A run is short, and its first decoding and last writing
overlap nothing: a long one is nearer to its floor.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.bench.clips_720p import write_moving
from coldframe.bench.decode import processor_seconds
from coldframe.bench.memory import peak_bytes
from coldframe.bench.report import Result, Target, Timing, interleave
from coldframe.bench.scale import resume_seconds
from coldframe.errors import VideoError
from coldframe.export import SIZES, Bundle, LeVJEPAConfig, export_bundle, save_reference
from coldframe.export.checkpoint import load_random
from coldframe.progress import progress_bar
from coldframe.serve.clips import VideoClips, read_in_child
from coldframe.serve.cores import share_cores
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.extract import encoder_identity, make_recipe, plan_videos, token_geometry
from coldframe.serve.inputs import InputVideo
from coldframe.serve.stages import STAGES
from coldframe.serve.unit import RunnerSettings, UnitRunner
from coldframe.store import (
    Status,
    Store,
    UnitResult,
    create_store,
    discard_units,
    write_unit,
)

FRAMES_A_VIDEO = 256  # at 30 frames a second: four clips
MEMORY_BYTES = 6e9
RESUME_SECONDS = 10.0
MILLION = 1_000_000

Clip = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One encoder and how much it is given; `clips` is a multiple of four.

    Attributes:
        name, config: the encoder.
        clips: of the whole pipeline, and of decoding and writing alone.
        encoded_alone: clips of the encoder alone, which takes long where it is large.
        batch_clips: clips encoded together.
        runs: of each, in turns.
    """

    name: str
    config: LeVJEPAConfig
    clips: int
    encoded_alone: int
    batch_clips: int = 4
    runs: int = 2


def cases(quick: bool) -> list[Case]:
    """Nano, base and large; of the latter two one block if `quick`."""
    sizes = {name: SIZES[f"levjepa-{name}"] for name in ("nano", "base", "large")}
    if quick:
        one_block = {name: replace(config, depth=1) for name, config in sizes.items()}
        return [
            Case(name="nano", config=sizes["nano"], clips=16, encoded_alone=16),
            Case(name="base, 1 block", config=one_block["base"], clips=8, encoded_alone=8),
            Case(name="large, 1 block", config=one_block["large"], clips=8, encoded_alone=8),
        ]
    return [
        Case(name="nano", config=sizes["nano"], clips=32, encoded_alone=32, runs=3),
        Case(name="base", config=sizes["base"], clips=8, encoded_alone=4, runs=1),
        Case(name="large", config=sizes["large"], clips=8, encoded_alone=4, batch_clips=8, runs=1),
    ]


def measure(quick: bool) -> tuple[list[Result], list[Target]]:
    """Every case beside its stages, the memory of the large one, and how long a resume takes to find what is left."""
    results: list[Result] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".bench-") as folder:
        source = Path(folder, "source.mp4")
        write_moving(source, FRAMES_A_VIDEO)
        for case in cases(quick):
            place = Path(folder, case.name)
            place.mkdir()
            measured, shares, memory = _measure_case(case, source, place)
            results += measured
            targets += [
                Target(name=f"{case.name}: pipeline / {what}", value=share, wants=0.9) for what, share in shares
            ]
            if not quick and case.name == "large":
                targets.append(Target(name="6 GB / memory, large", value=MEMORY_BYTES / memory, wants=1.0))
            shutil.rmtree(place)
        for small_units in (False, True):
            rows = MILLION // 10 if quick else MILLION
            seconds, units = resume_seconds(Path(folder, f"million{small_units}"), rows, small_units=small_units)
            name = f"resume check, {rows:,} rows, {units:,} units"
            results.append(Result(name=name, value=seconds, unit="s", spread=0.0))
            targets.append(Target(name=f"10 s / {name}", value=RESUME_SECONDS / seconds, wants=1.0))
    return results, targets


def _measure_case(case: Case, source: Path, folder: Path) -> tuple[list[Result], list[tuple[str, float]], float]:
    """Rates, the pipeline's shares of what could bound it, and the memory at its peak in bytes."""
    bundle = _export(case, folder)
    store = _planned_store(case, bundle, source, folder)
    settings = RunnerSettings(
        store=str(store.path),
        bundle=str(bundle.path),
        backend="onnxruntime",
        threads=share_cores(workers=1, on_gpu=False).threads,
        batch_clips=case.batch_clips,
    )
    units = range(store.unit_count)
    with closing(UnitRunner(settings)) as runner, closing(DecodeProcess()) as process:
        videos = [video for unit in units for video in runner.videos_of(unit)]
        clips = _decode(runner, process, videos)
        with peak_bytes() as first:  # with what is allocated, compiled and imported once
            if len(units) > 1:
                _extract(runner, units[:1])
            else:  # of large, one unit takes minutes
                _encode(runner, clips[:1], 1)
        (before,) = process.run(processor_seconds)
        contenders: list[Callable[[], object]] = [
            lambda: _decode(runner, process, videos),
            lambda: _encode(runner, clips[: case.encoded_alone], case.batch_clips),
            lambda: _write(store, units),
            lambda: _extract(runner, units),
        ]
        with peak_bytes() as whole:
            *stages, pipeline = interleave(contenders, runs=case.runs, warmups=0)
        (after,) = process.run(processor_seconds)
    alone = dict(zip(STAGES, stages, strict=True))
    alone["encode"] = alone["encode"].times(case.clips / case.encoded_alone)
    processor = sum(stage.cpu_median for stage in alone.values()) + (after - before) / case.runs
    slowest = max(alone.values(), key=lambda stage: stage.median).median
    floor = max(slowest, processor / len(os.sched_getaffinity(0)))
    return (
        _report(case, alone, pipeline, floor, (first.bytes, whole.bytes)),
        [("slowest stage", slowest / pipeline.median), ("what the cores can do", floor / pipeline.median)],
        whole.bytes,
    )


def _report(
    case: Case, alone: dict[str, Timing], pipeline: Timing, floor: float, memory: tuple[float, float]
) -> list[Result]:
    slowest = max(alone, key=lambda name: alone[name].median)

    def rate(name: str, timing: Timing, reference: str = "", seconds: float | None = None) -> Result:
        return Result(
            name=f"{case.name}: {name}",
            value=case.clips / timing.median,
            unit="clips/s",
            spread=timing.spread,
            reference=reference,
            ratio=None if seconds is None else seconds / timing.median,
        )

    return [
        *(rate(f"{name} alone", timing) for name, timing in alone.items()),
        rate(f"pipeline, {slowest} bounds", pipeline, f"{slowest} alone", alone[slowest].median),
        rate("the same pipeline", pipeline, "what the cores can do", floor),
        Result(
            name=f"{case.name}: memory",
            value=memory[1] / 1e6,
            unit="MB",
            spread=0.0,
            reference="of its first unit, or of one clip where there is only one",
            ratio=memory[1] / memory[0],
        ),
    ]


def _export(case: Case, folder: Path) -> Bundle:
    save_reference(load_random(case.config, seed=0), folder / "reference")
    return export_bundle(folder / "reference", folder / "bundle")


def _planned_store(case: Case, bundle: Bundle, source: Path, folder: Path) -> Store:
    videos = []
    for number in range(case.clips * 4 * 16 // FRAMES_A_VIDEO):
        path = folder / f"{number:04d}.mp4"
        # a box that readers pass over makes the content another one
        path.write_bytes(source.read_bytes() + b"\0\0\0\x10free" + number.to_bytes(8, "big"))
        videos.append(InputVideo(path=str(path)))
    recipe = make_recipe(bundle, tokens="full")
    plan = plan_videos(videos, recipe, progress_bar)
    assert len(plan.clips) == case.clips, len(plan.clips)
    return create_store(
        folder / "store.zarr", plan, geometry=token_geometry(bundle, "full"), encoder=encoder_identity(bundle)
    )


def _extract(runner: UnitRunner, units: range) -> None:
    """The whole pipeline. What is committed already would be taken over, in next to no time."""
    discard_units(runner.store, units)
    assert runner.run(units).encode > 0


def _decode(runner: UnitRunner, process: DecodeProcess, videos: list[VideoClips]) -> list[Clip]:
    """All clips of `videos`, as the decode process gives them."""
    clips: list[Clip] = []
    for video in videos:
        for _, clip in process.run(read_in_child, video, runner.store.recipe.image_size):
            assert not isinstance(clip, VideoError), clip
            clips.append(clip)
    return clips


def _encode(runner: UnitRunner, clips: list[Clip], batch_clips: int) -> None:
    for start in range(0, len(clips), batch_clips):
        runner.runtime(np.stack(clips[start : start + batch_clips]))


def _write(store: Store, units: range) -> None:
    discard_units(store, units)  # a committed unit is staged and moved, which a first extraction does not do
    for unit in units:
        rows = store.unit_range(unit)
        tokens = {
            name: np.ones((len(rows), *spec.row_shape), np.float16)
            for name, spec in store.unit_arrays.items()
            if spec.sharded
        }
        result = UnitResult(
            rows=rows,
            status=np.full(len(rows), Status.OK, np.uint8),
            reason=np.zeros(len(rows), np.uint8),
            cls=tokens["cls"],
            patch=tokens["patch"],
        )
        write_unit(store, unit, result)
