"""The command `coldframe info`."""

import json
from typing import Any

import click

from coldframe.cli_errors import one_line
from coldframe.store.files import Place, sizes_below
from coldframe.store.recipe import Recipe
from coldframe.store.store import open_store
from coldframe.store.summary import failures, summarise
from coldframe.store.text import size_to_text
from coldframe.store.windows import window_text


@click.command("info")
@click.argument("store")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--failures", "with_failures", is_flag=True, help="List every failed row with its reason.")
def info_command(store: str, as_json: bool, with_failures: bool) -> None:
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
    summary = {**summarise(opened), **_files(opened.place)}
    entries = list(failures(opened)) if with_failures else None
    if as_json:
        listed = {} if entries is None else {"failures": entries}
        click.echo(json.dumps({"store": opened.name, **summary, **listed}))
        return
    click.echo(_info_text(opened.name, summary))
    for entry in entries or []:
        text = f"row {entry['row']}: {entry['reason']}: {entry['path']}: {entry['error']}".rstrip(": ")
        click.echo(f"  {one_line(text)}")


def _files(place: Place) -> dict[str, int]:
    """What somebody who copies or publishes the store has to move."""
    sizes = sizes_below(place).values()
    return {"files": len(sizes), "largest_file_bytes": max(sizes), "total_bytes": sum(sizes)}


def _info_text(name: str, summary: dict[str, Any]) -> str:
    rows, videos, units = summary["rows"], summary["videos"], summary["units"]
    encoder = summary["encoder"]
    trained = "untrained (random weights)" if encoder.get("untrained") else "trained"
    state = "complete" if summary["complete"] else "NOT complete"
    lines = [
        f"{one_line(name)}: {state}",
        f"  rows     {rows['planned']} planned = {rows['ok']} ok + {rows['failed']} failed + {rows['absent']} absent",
        f"  videos   {videos['planned']} planned = {videos['ok']} ok + {videos['partly_ok']} partly ok + "
        f"{videos['failed']} failed + {videos['pending']} pending",
        f"  units    {units['done']} of {units['total']} committed, {units['rows']} rows each",
        f"  encoder  {encoder.get('name', summary['recipe']['encoder'])}, {trained}, "
        f"licence {encoder.get('licence', 'not stated')}",
        f"  tokens   {summary['tokens']}, {summary['dtype']}",
        f"  files    {summary['files']}, the largest {size_to_text(summary['largest_file_bytes'])}, "
        f"{size_to_text(summary['total_bytes'])} in all",
    ]
    if window := window_text(Recipe.from_dict(summary["recipe"])):
        lines.insert(-1, f"  window   {window}")
    if encoder.get("non_commercial"):
        lines.insert(-2, "           the licence forbids commercial use, of these features too")
    for array, found in summary.get("reconstruction", {}).items():
        lines.append(
            f"  int8     {array}: cosine with what the encoder gave {found['cosine_mean']:.6f} on average, "
            f"{found['cosine_worst']:.6f} at worst, of {found['tokens']} tokens"
        )
    if summary["grown_from_rows"]:
        lines.append(f"  grown    from {', '.join(map(str, summary['grown_from_rows']))} rows")
    for array, facts in summary["arrays"].items():
        shape = f"{tuple(facts['shape'])} {facts['dtype']}, " if "shape" in facts else ""
        lines.append(f"    {array:<8} {shape}{size_to_text(facts['bytes'])}")
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
