"""Commands about a store on disk: `coldframe info` and `coldframe verify`."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from coldframe.errors import StoreError
from coldframe.store.store import open_store
from coldframe.store.summary import failures, summarise
from coldframe.store.text import path_to_text
from coldframe.store.units import discard_units
from coldframe.store.verify import VerifyReport, verify_store

_STORE = click.argument("store", type=click.Path(path_type=Path))


@click.command()
@_STORE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--failures", "with_failures", is_flag=True, help="List every failed row with its reason.")
def info_command(store: Path, as_json: bool, with_failures: bool) -> None:
    """Show what a store holds and how complete it is.

    \b
    Examples:
      coldframe info videos.zarr
      coldframe info videos.zarr --failures
      coldframe info videos.zarr --json

    Counts come from the commit markers; nothing is hashed (`coldframe verify` does that). Exit code 0 also
    for a store that is not complete.
    """
    opened = open_store(store)
    summary = summarise(opened)
    entries = list(failures(opened)) if with_failures else None
    if as_json:
        listed = {} if entries is None else {"failures": entries}
        click.echo(json.dumps({"store": path_to_text(opened.path), **summary, **listed}))
        return
    click.echo(_info_text(path_to_text(opened.path), summary))
    for entry in entries or []:
        click.echo(f"  row {entry['row']}: {entry['reason']}: {entry['path']}: {entry['error']}".rstrip(": "))


@click.command()
@_STORE
@click.option("--fast", is_flag=True, help="Check markers, presence and sizes only, without hashing.")
@click.option(
    "--discard-damaged",
    is_flag=True,
    help="Remove the markers of damaged units; the next `coldframe extract` writes exactly those again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify_command(store: Path, fast: bool, discard_damaged: bool, as_json: bool) -> None:
    """Check every row, marker and checksum of a store.

    \b
    Examples:
      coldframe verify videos.zarr
      coldframe verify videos.zarr --fast
      coldframe verify videos.zarr --discard-damaged

    Nothing is changed unless --discard-damaged is given. Exit code 0 if the store is complete and sound, 1 if
    anything is wrong or absent; every problem is listed.
    """
    if discard_damaged:
        writable = open_store(store, writable=True)
        with writable.lock():
            report = _verify(store, fast)
            discard_units(writable, report.damaged_units)
    else:
        report = _verify(store, fast)
    if as_json:
        click.echo(json.dumps({"store": path_to_text(store.absolute()), **report.to_dict()}))
    else:
        click.echo(_verify_text(report))
    if not report.passed:
        raise StoreError(_next_step(report, discard_damaged))


def _verify(store: Path, fast: bool) -> VerifyReport:
    if not sys.stderr.isatty():
        return verify_store(store, deep=not fast)
    with click.progressbar(length=open_store(store).unit_count, label="verify", file=sys.stderr) as bar:
        return verify_store(store, deep=not fast, on_unit=lambda done, total: bar.update(1))


def _verify_text(report: VerifyReport) -> str:
    lines = []
    for problem in report.problems:
        unit = "plan" if problem.unit is None else f"unit {problem.unit}"
        lines.append(": ".join(part for part in (problem.kind, unit, problem.object, problem.message) if part))
    checked = "markers, sizes, checksums and rows" if report.deep else "markers and sizes (not checksums)"
    lines.append(
        f"{report.planned} rows planned = {report.ok} ok + {report.failed} failed + {report.absent} absent; "
        f"checked {checked}: {len(report.problems) or 'no'} problem{'s' * (len(report.problems) != 1)}"
    )
    return "\n".join(lines)


def _next_step(report: VerifyReport, discarded: bool) -> str:
    count = f"{len(report.problems)} problem{'s' * (len(report.problems) != 1)} found."
    steps = []
    if any(problem.kind == "plan" for problem in report.problems):
        steps.append("The plan has changed since the store was made: restore those files, or make the store anew.")
    unseen = [problem for problem in report.problems if problem.kind in ("checksum", "rows")]
    if unseen and not discarded:
        steps.append("Run `coldframe verify --discard-damaged`, then `coldframe extract` with the same arguments.")
    elif any(problem.kind not in ("plan", "unexpected") for problem in report.problems):
        steps.append("Run `coldframe extract` with the same arguments: it writes exactly the units above again.")
    if any(problem.kind == "unexpected" for problem in report.problems):
        steps.append("Remove the unexpected files: no unit of this store owns them.")
    return " ".join([count, *steps])


def _info_text(name: str, summary: dict[str, Any]) -> str:
    rows, videos, units = summary["rows"], summary["videos"], summary["units"]
    encoder = summary["encoder"]
    trained = "untrained (random weights)" if encoder.get("untrained") else "trained"
    state = "complete" if summary["complete"] else "NOT complete"
    lines = [
        f"{name}: {state}",
        f"  rows     {rows['planned']} planned = {rows['ok']} ok + {rows['failed']} failed + {rows['absent']} absent",
        f"  videos   {videos['planned']} planned = {videos['ok']} ok + {videos['partly_ok']} partly ok + "
        f"{videos['failed']} failed + {videos['pending']} pending",
        f"  units    {units['done']} of {units['total']} committed, {units['rows']} rows each",
        f"  encoder  {encoder.get('name', summary['recipe']['encoder'])}, {trained}, "
        f"licence {encoder.get('licence', 'not stated')}",
        f"  tokens   {summary['tokens']}, {summary['dtype']}",
    ]
    for array, facts in summary["arrays"].items():
        shape = f"{tuple(facts['shape'])} {facts['dtype']}, " if "shape" in facts else ""
        lines.append(f"    {array:<8} {shape}{_size(facts['bytes'])}")
    for cut in summary["truncated_videos"]:
        promised = "no length" if cut["promised_s"] is None else f"{cut['promised_s']:.2f} s"
        lines.append(f"  cut off  video {cut['video']} holds {cut['duration_s']:.2f} s; its header states {promised}")
    for title in ("reasons", "flags"):
        if summary[title]:
            counts = ", ".join(f"{name} {count}" for name, count in summary[title].items())
            lines.append(f"  {title:<8} {counts}")
    recipe = ", ".join(f"{key}={value}" for key, value in summary["recipe"].items())
    lines += [f"  recipe   {summary['recipe_id'][:12]}: {recipe}", f"  plan     {summary['plan_id'][:12]}"]
    return "\n".join(lines)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
