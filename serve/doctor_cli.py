"""Command `coldframe doctor`."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

import click
import numpy as np
from numpy.typing import NDArray

from coldframe.cli_errors import one_line
from coldframe.errors import MissingDependency, UsageError
from coldframe.export import open_bundle
from coldframe.progress import progress_bar
from coldframe.serve.clips import ClipReader
from coldframe.serve.dali_graph import gpu_count
from coldframe.serve.doctor import BackendResult, Diagnosis, Encode, Group, diagnose
from coldframe.serve.inputs import Inputs, collect_inputs, passed_over
from coldframe.serve.machine import Machine, look_at_machine
from coldframe.serve.readers import DecoderName, open_reader
from coldframe.serve.runtime import open_runtime

DEFAULT_SIZE, DEFAULT_FRAMES = 224, 8


@click.command("doctor")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--encoder", metavar="DIR", help="Bundle: compare features too, at its picture size.")
@click.option("--samples", type=click.IntRange(1, 100), default=3, show_default=True, help="Files tried in a group.")
@click.option(
    "--max-files",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Files looked at; of more, as many are taken evenly.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def doctor_command(paths: tuple[str, ...], encoder: str | None, samples: int, max_files: int, as_json: bool) -> None:
    """Report the machine, and which decoder to trust with which files of PATH.

    PATH is as for `coldframe extract`. Files are grouped by codec, size, colour, frame rate, rotation and flags; some
    of each group are decoded by every decoder there is, and their frames, pixels and (with --encoder) features are
    compared. Nothing is written, but for 64 MB to measure the disk.

    Exit codes: 0 nothing wrong, 1 failed, 2 usage, 3 a decoder is quarantined for a group, or files are unusable.

    \b
    Examples:
      coldframe doctor
      coldframe doctor videos/ --encoder levjepa-large/
      coldframe doctor train.csv --samples 10 --json
    """
    if encoder is not None and not paths:
        raise UsageError(
            "--encoder compares features of videos, and no PATH is given. Name a video, folder or manifest."
        )
    inputs = collect_inputs(paths) if paths else Inputs(videos=[], ignored={})
    videos = [video.path for video in inputs.videos]
    machine = look_at_machine(os.getcwd())
    diagnosis = Diagnosis(groups=[], unusable={})
    chosen = [videos[place] for place in np.linspace(0, len(videos) - 1, min(max_files, len(videos))).astype(int)]
    if videos:
        size, frames, encode = _encoder(encoder, machine.cores)
        with progress_bar("Looking at videos", len(chosen)) as advance:
            diagnosis = diagnose(
                chosen,
                available_backends(size, machine.cores),
                size=size,
                frames=frames,
                samples=samples,
                encode=encode,
                on_file=lambda: advance(1),
                threads=machine.cores,
            )
    if as_json:
        answer = {
            "machine": machine.to_dict(),
            "files": len(videos),
            "looked_at": len(chosen),
            "passed_over": inputs.ignored,
            "recommended": diagnosis.recommended,
            "groups": [group.to_dict() for group in diagnosis.groups],
            "unusable": diagnosis.unusable,
        }
        click.echo(json.dumps(answer))
    else:
        click.echo(_machine_text(machine))
        if videos:
            click.echo(_diagnosis_text(diagnosis, inputs, len(chosen)))
    raise SystemExit(diagnosis.exit_code)


def available_backends(size: int, threads: int) -> Mapping[str, Callable[[], ClipReader]]:
    """Makers of the readers that work on this machine, the fastest first."""

    def make(name: DecoderName) -> Callable[[], ClipReader]:
        return lambda: open_reader(name, image_size=size, threads=threads)

    names: list[DecoderName] = ["pyav"]
    with suppress(MissingDependency):
        names = ["dali", "pyav"] if gpu_count() else ["pyav", "dali-cpu"]
    return {name: make(name) for name in names}


def _encoder(path: str | None, threads: int) -> tuple[int, int, Encode | None]:
    if path is None:
        return DEFAULT_SIZE, DEFAULT_FRAMES, None
    bundle = open_bundle(path)
    if not isinstance(bundle.image_size, int) or not bundle.geometry.has_cls:
        raise UsageError(f"{bundle.name} has no square input with a [CLS]; doctor compares [CLS] of squares only.")
    runtime = open_runtime(bundle, threads=threads)

    def encode(clips: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.asarray(runtime(clips).cls, np.float32)

    return bundle.image_size, bundle.frames, encode


def _machine_text(machine: Machine) -> str:
    rate = machine.write_bytes_per_second
    written = "not writable" if rate is None else f"writes {rate / 1e6:.0f} MB/s"
    lines = [
        f"system    {machine.system}, Python {machine.python}",
        f"processor {machine.processor}, {machine.cores} cores",
        f"gpu       {', '.join(machine.gpus) or 'none'}; driver {machine.driver or 'not found'}; "
        f"NVDEC {'found' if machine.nvdec else 'not found'}",
        f"decoder   {machine.decoder or 'PyAV is not installed'}",
        f"disk      {machine.folder}: {machine.free_bytes / 1e9:.1f} GB free, {written}",
        f"packages  {', '.join(f'{name} {version}' for name, version in machine.packages.items())}",
        f"missing   {', '.join(machine.missing) or 'none'}",
    ]
    return "\n".join(lines)


def _diagnosis_text(diagnosis: Diagnosis, inputs: Inputs, looked_at: int) -> str:
    files = len(inputs.videos)
    left_out = "" if files == looked_at else f" (of {files}, evenly)"
    lines = [f"\n{looked_at} files{left_out}: {len(diagnosis.groups)} groups, {len(diagnosis.unusable)} files unusable"]
    if inputs.ignored:
        lines.append(f"passed over by their endings: {passed_over(inputs.ignored)}")
    for group in diagnosis.groups:
        lines += _group_text(group)
    lines += [f"\nunusable  {one_line(path)}: {one_line(why)}" for path, why in diagnosis.unusable.items()]
    lines.append(f"\nfor all of them: {_advice(diagnosis)}")
    return "\n".join(lines)


def _advice(diagnosis: Diagnosis) -> str:
    if diagnosis.recommended is None:
        return "no decoder can be recommended"
    return f"--decoder {diagnosis.recommended}"


def _group_text(group: Group) -> list[str]:
    kind = group.kind
    lines = [
        f"\n{kind.codec} {kind.size}, {kind.colour}, {kind.rate} fps, rotated {kind.rotation}, flags {kind.flags}: "
        f"{group.files} files, {len(group.samples)} tried, such as {one_line(group.samples[0])}"
    ]
    if group.backends:
        lines.append(
            f"  {'decoder':<9} {'verdict':<15} {'frames':>6} {'misplaced':>9} {'max':>4} {'mean':>6} {'block':>6} "
            f"{'cosine':>8}  files left to PyAV, and why"
        )
    lines += [_backend_text(name, result) for name, result in group.backends.items()]
    lines += [f"  damaged   {one_line(path)}: {one_line(why)}" for path, why in group.unusable.items()]
    if not group.backends:
        return [*lines, "  no decoder was tried: each of the files tried has damage"]
    return [*lines, f"  use {group.recommended or 'nothing'}" + _quarantine_text(group)]


def _backend_text(name: str, result: BackendResult) -> str:
    found = ["-"] * 5
    if result.agreements:
        found = [
            str(sum(agreement.frames for agreement in result.agreements)),
            str(sum(agreement.misplaced for agreement in result.agreements)),
            str(max(agreement.max_levels for agreement in result.agreements)),
            f"{max(agreement.mean_levels for agreement in result.agreements):.2f}",
            f"{max(agreement.block_levels for agreement in result.agreements):.2f}",
        ]
    cosine = "-" if result.cosine is None else f"{result.cosine:.5f}"
    left = ", ".join(f"{count} {reason}" for reason, count in result.fallbacks.items()) or "-"
    return (
        f"  {name:<9} {result.verdict:<15} {found[0]:>6} {found[1]:>9} {found[2]:>4} {found[3]:>6} {found[4]:>6} "
        f"{cosine:>8}  {left}"
    )


def _quarantine_text(group: Group) -> str:
    if not group.quarantined:
        return ""
    found = ", ".join(f"{name} ({group.backends[name].verdict})" for name in group.quarantined)
    return f"; QUARANTINED: {found}"
