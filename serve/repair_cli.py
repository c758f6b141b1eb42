"""The command `coldframe repair`."""

import json
from typing import Any

import click

from coldframe.errors import StoreError, UsageError
from coldframe.export import open_bundle
from coldframe.progress import progress_bar
from coldframe.serve.canary import require_same_encoder
from coldframe.serve.execution import Execution
from coldframe.serve.extract import complete
from coldframe.serve.repair import Findings, discard_damaged, examine, open_for_repair
from coldframe.serve.run_options import BACKEND_OPTIONS, run_options, with_options
from coldframe.store import open_store
from coldframe.store.text import path_to_text


@click.command("repair")
@click.argument("store")
@click.option("--encoder", metavar="DIR", help="Bundle that the store was made with; not needed with --dry-run.")
@click.option("--dry-run", is_flag=True, help="Say what would be extracted again, and change nothing.")
@lambda command: with_options(command, BACKEND_OPTIONS)
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def repair_command(store: str, encoder: str | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Extract again exactly what is missing or damaged in a store; every other unit keeps its bytes.

    Everything is hashed and looked at first, as by `coldframe verify`. Videos are read from the paths that the store
    names, and only if their content is what was planned. It also finishes a run that was interrupted, and a damaged
    unit is given up only when all of its videos are there.

    Exit codes: 0 the store is complete and sound, 1 failed, 2 usage, 3 sound but some rows are failed. With --dry-run:
    0 if there is nothing to do, 1 otherwise.

    \b
    Examples:
      coldframe repair videos.zarr --dry-run
      coldframe repair videos.zarr --encoder levjepa-large/
    """
    if dry_run:
        found = examine(open_store(store), progress_bar)
        click.echo(_as_json(store, found) if as_json else _as_text(store, found))
        if found.units:
            raise SystemExit(1)
        return
    if encoder is None:
        raise UsageError("Name the bundle that the store was made with: --encoder DIR (or look first: --dry-run).")
    bundle, how = open_bundle(encoder), Execution.from_options(options)
    opened = open_for_repair(store)
    require_same_encoder(opened, bundle)
    how.require_possible(bundle, opened.recipe)
    found = examine(opened, progress_bar)
    discard_damaged(opened, found)
    done = complete(opened, bundle, progress=progress_bar, how=how)
    counts = {"ok": done.ok, "failed": done.failed, "seconds": round(done.seconds, 3)}
    if as_json:
        click.echo(json.dumps({**json.loads(_as_json(store, found)), **counts}))
    else:
        click.echo(f"{_as_text(store, found)}; repaired: {done.ok} rows ok, {done.failed} failed")
    if found.unexpected:
        raise StoreError(
            f"{len(found.unexpected)} files belong to no unit of this store (first: {found.unexpected[0]}) and were "
            "left alone. If the store's metadata was restored from before it grew, restore the newer one; else "
            "remove them."
        )
    raise SystemExit(done.exit_code)


def _as_json(store: str, found: Findings) -> str:
    return json.dumps({"store": path_to_text(store), **found.to_dict()})


def _as_text(store: str, found: Findings) -> str:
    if not found.units:
        return f"{path_to_text(store)}: nothing to repair"
    units = f"{', '.join(map(str, found.units[:20]))}{', ...' if len(found.units) > 20 else ''}"
    counts = f"{len(found.damaged)} damaged and {len(found.absent)} missing units"
    return f"{path_to_text(store)}: {counts}, {found.rows} rows: units {units}"
