"""The command `coldframe convert`."""

import json
from pathlib import Path

import click

from coldframe.cli_errors import one_line
from coldframe.progress import progress_bar
from coldframe.store.convert import TARGETS, Target, convert
from coldframe.store.store import open_store


@click.command("convert")
@click.argument("store")
@click.option("--to", "target", type=click.Choice(TARGETS), required=True, help="Format to write.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to make.")
@click.option("--patches", is_flag=True, help="Also write patch tokens (webdataset only).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def convert_command(store: str, target: Target, out: Path, patches: bool, as_json: bool) -> None:
    """Write the ok rows of a store in a format that other tools read.

    npy: one array (clips, dim) a video and index.csv, for temporal localisation tools; only videos whose rows are all
    ok. parquet, lance: one row a clip with its [CLS] vector. webdataset: tar files with one sample a clip; patch tokens
    that are stored in int8 are written as float32, times their scales.

    \b
    Examples:
      coldframe convert videos.zarr --to npy --out features/
      coldframe convert videos.zarr --to webdataset --patches --out shards/
    """
    opened = open_store(store)
    with progress_bar("Converting rows", len(opened.ok_rows())) as advance:
        done = convert(opened, target, out, patches=patches, on_rows=advance)
    if as_json:
        click.echo(json.dumps({"out": str(out), **done.to_dict()}))
        return
    click.echo(f"{out}: {done.rows} rows in {done.files} file{'s' * (done.files != 1)}")
    if done.dequantised:
        click.echo("patch tokens are float32: the store's int8 times their scales")
    if done.left_out_rows:
        place = one_line(opened.name)
        click.echo(f"{done.left_out_rows} planned rows left out, as they are not ok: coldframe info {place} --failures")
