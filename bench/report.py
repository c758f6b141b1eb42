"""Reports: what was measured, against which target, on which machine. The last line is one JSON object."""

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import click
import numpy as np

PACKAGES = ("coldframe", "av", "numpy", "onnxruntime", "openvino", "torch", "zarr", "zarrs")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of repeated runs of one thing.

    Attributes:
        seconds: every run after the warm-up, in order.
        cpu_seconds: processor time of the same runs, which neighbours on the machine stretch far less.
    """

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def cpu_median(self) -> float:
        return float(np.median(self.cpu_seconds))

    def times(self, factor: float) -> "Timing":
        """As if there had been `factor` times as much to do."""
        return Timing(
            seconds=tuple(factor * second for second in self.seconds),
            cpu_seconds=tuple(factor * second for second in self.cpu_seconds),
        )

    @property
    def spread(self) -> float:
        """Interquartile range over the median: above about 0.2 the machine was not quiet."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float((high - low) / self.median)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured rate. `ratio` is against `reference`, measured in the same run; `cpu_ratio` is that of CPU times."""

    name: str
    value: float
    unit: str
    spread: float
    reference: str = ""
    ratio: float | None = None
    cpu_ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """A ratio that the design asks for: `met` if `value >= wants`."""

    name: str
    value: float
    wants: float

    @property
    def met(self) -> bool:
        return self.value >= self.wants


def interleave(
    contenders: Sequence[Callable[[], object]],
    *,
    runs: int,
    warmups: int = 1,
    processor_seconds: Callable[[], float] = time.process_time,
) -> list[Timing]:
    """Time `contenders` in turns, so that a slow minute of the machine falls on all of them.

    Args:
        contenders: things to run; each call is one run.
        runs: measured runs of each.
        warmups: runs of each before measuring.
        processor_seconds: processor time so far, of this process unless others work too.
    """
    measured: list[list[tuple[float, float]]] = [[] for _ in contenders]
    for number in range(warmups + runs):
        for contender, times in zip(contenders, measured, strict=True):
            busy, started = processor_seconds(), time.perf_counter()
            contender()
            seconds = time.perf_counter() - started
            if number >= warmups:
                times.append((seconds, processor_seconds() - busy))
    return [
        Timing(seconds=tuple(wall for wall, _ in times), cpu_seconds=tuple(cpu for _, cpu in times))
        for times in measured
    ]


def machine() -> dict[str, Any]:
    """Facts that decide speed."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def versions() -> dict[str, str]:
    """Versions of the packages that do the work; absent ones are left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def print_tables(results: Sequence[Result], targets: Sequence[Target]) -> None:
    """Print what was measured, and which targets were met, for people."""
    click.echo(f"{'what':<36}{'rate':>12}  {'unit':<12}{'spread':>8}   ratio")
    for result in results:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}x {result.reference}"
        ratio += "" if result.cpu_ratio is None else f" ({result.cpu_ratio:.2f}x by CPU time)"
        click.echo(f"{result.name:<36}{result.value:>12.4g}  {result.unit:<12}{result.spread:>7.0%}   {ratio}")
    for target in targets:
        verdict = "met" if target.met else "NOT MET"
        click.echo(f"target {target.name}: {target.value:.2f}, wants {target.wants:.2f}: {verdict}")


def print_json(results: Sequence[Result], targets: Sequence[Target]) -> None:
    """Print the same with the machine's facts as one line, a JSON object."""
    click.echo(json.dumps(_to_dict(results, targets), allow_nan=False))


def _to_dict(results: Sequence[Result], targets: Sequence[Target]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "versions": versions(),
        "results": [asdict(result) for result in results],
        "targets": [{**asdict(target), "met": target.met} for target in targets],
    }
