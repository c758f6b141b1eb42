"""`python -m coldframe.bench.gpu_check --out DIR`: is every GPU path right, and then, is it fast? Ten minutes at most.

Correctness first, on a small encoder in every variant and then on the large one: parity with the PyTorch reference on
the CPU within the tier's budget, rows that do not depend on their batch, and clips handed over by a late producer.
A variant that is wrong is not timed. Speed is clips a second against a floor measured in the same run: the GEMM rate
of the same type, over the 2.41 TFLOP of one LeVJEPA-L clip.

The report is written after every part, so that a run that is cut short leaves what it found. A missing package makes
its parts `unavailable`, with the reason. Exit codes: 0 all that ran is right and the speed target is met, 1 something
is wrong or too slow or nothing ran, 2 no GPU.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from coldframe.bench.gpu_measures import (
    check_batches,
    check_handoff,
    check_parity,
    clip_flops,
    gemm_rates,
    time_clips,
)
from coldframe.bench.gpu_variants import VARIANTS, GpuVariant, Workspace
from coldframe.bench.report import Target, machine, versions
from coldframe.errors import ColdframeError, UsageError
from coldframe.export.config import SIZES
from coldframe.export.cuda import find_gpu

REPORT = "gpu_check.json"
ENCODERS = ["levjepa-nano", "levjepa-large"]
LIMIT_SECONDS = 420.0  # no part begins later: a build of the large encoder then still has three minutes
WANTED_SHARE = 0.60  # of the GEMM rate, by the best bf16 variant on the large encoder


@dataclass(kw_only=True)
class Part:
    """One variant of one encoder.

    Attributes:
        encoder, backend, precision: what it is.
        status: `right`, `wrong`, `unavailable` (cannot run here) or `skipped` (no time, or a part before it was wrong).
        reason: why it is not right.
        checks, speed: what was measured.
    """

    encoder: str
    backend: str
    precision: str
    status: str = "skipped"
    reason: str = ""
    checks: dict[str, Any] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@click.command("gpu_check")
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for the report.")
@click.option("--quick", is_flag=True, help="The small encoder alone: three minutes at most, no speed target.")
def gpu_check_command(out: Path, quick: bool) -> None:
    """Check every GPU path of Coldframe on the GPU here, then measure it against its floor.

    \b
    Example:
      python -m coldframe.bench.gpu_check --out report --quick
    """
    gpu = find_gpu()
    if gpu is None:
        click.echo("gpu_check: no GPU here that PyTorch can use; nothing was checked.", err=True)
        sys.exit(2)
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + (LIMIT_SECONDS / 3 if quick else LIMIT_SECONDS)
    floors = gemm_rates()
    parts: list[Part] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in run_parts(["levjepa-nano"] if quick else ENCODERS, Path(folder), floors, deadline):
            parts.append(part)
            click.echo(line_of(part))
            report = make_report(parts, floors, asdict(gpu), quick=quick)
            (out / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(report))
    sys.exit(exit_code(parts, report["targets"]))


def run_parts(encoders: list[str], folder: Path, floors: dict[str, float], deadline: float) -> Iterator[Part]:
    """Run every variant of every encoder; a variant that was not right on one encoder is skipped on the next."""
    not_right: dict[GpuVariant, str] = {}
    for encoder in encoders:
        workspace = Workspace(encoder, folder / encoder)
        for variant in VARIANTS:
            part = Part(encoder=encoder, backend=variant.backend, precision=variant.precision)
            if variant in not_right:
                part.reason = f"was {not_right[variant]} on an encoder before"
            elif time.monotonic() > deadline:
                part.reason = "out of time"
            else:
                run_part(part, variant.open, workspace, floors)
            if part.status != "right":
                not_right.setdefault(variant, part.status)
            yield part


def run_part(part: Part, opener: Callable[[Workspace], Any], workspace: Workspace, floors: dict[str, float]) -> None:
    """Open, check and time one variant, and write into `part` what came of it; never raises for a library's failure."""
    started = time.monotonic()
    try:
        runtime = opener(workspace)
        part.checks = {
            "parity": check_parity(runtime, workspace.reference, workspace.config, part.precision),
            "batches": check_batches(runtime, workspace.config, part.precision),
        }
        if hasattr(runtime, "encode_device"):
            part.checks["handoff"] = check_handoff(runtime, workspace.config)
        wrong = [f"{name}: {found['wrong']}" for name, found in part.checks.items() if found["wrong"]]
        part.status, part.reason = ("wrong", "; ".join(wrong)) if wrong else ("right", "")
        if not wrong:
            part.speed = time_clips(runtime, workspace.config)
            floor = floors[part.precision] / clip_flops(workspace.config)
            part.speed["gemm_share"] = part.speed["clips_per_second"] / floor
    except UsageError as error:  # not here: a package, a precision, a GPU that the library does not build for
        part.status, part.reason = "unavailable", str(error)
    except ColdframeError as error:
        part.status, part.reason = "wrong", str(error)
    except Exception as error:  # a library's own failure ends its part, not the report
        part.status, part.reason = "wrong", f"{type(error).__name__}: {error}"
    part.seconds = round(time.monotonic() - started, 2)


def make_report(parts: list[Part], floors: dict[str, float], gpu: dict[str, Any], *, quick: bool) -> dict[str, Any]:
    """JSON-ready report in the shape of the other benches, with the parts under `results`."""
    shares = [part.speed["gemm_share"] for part in parts if is_timed_large(part)]
    name = "LeVJEPA-L bf16 on the GPU, share of the GEMM rate"
    targets = [] if quick else [Target(name=name, value=max(shares, default=0.0), wants=WANTED_SHARE)]
    return {
        "machine": machine() | {"gpu": gpu},
        "versions": versions(),
        "gemm_flops_per_second": floors,
        "clip_flops": {name: clip_flops(SIZES[name]) for name in sorted({part.encoder for part in parts})},
        "results": [asdict(part) for part in parts],
        "targets": [{**asdict(target), "met": target.met} for target in targets],
    }


def is_timed_large(part: Part) -> bool:
    return part.encoder == "levjepa-large" and part.precision == "bf16" and "gemm_share" in part.speed


def exit_code(parts: list[Part], targets: list[dict[str, Any]]) -> int:
    """0 if something ran, nothing is wrong and every target is met, else 1."""
    ran = any(part.status == "right" for part in parts)
    wrong = any(part.status == "wrong" for part in parts)
    return 0 if ran and not wrong and all(target["met"] for target in targets) else 1


def line_of(part: Part) -> str:
    """One line for people."""
    line = f"{part.encoder} {part.backend}/{part.precision}: {part.status}"
    if part.speed:
        line += f", {part.speed['clips_per_second']:.1f} clips/s, {part.speed['gemm_share']:.0%} of GEMM"
    return f"{line}: {part.reason}" if part.reason else line


if __name__ == "__main__":
    gpu_check_command()
