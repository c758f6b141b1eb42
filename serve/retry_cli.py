"""The command `coldframe retry-failed`."""

import json
from collections import Counter
from typing import Any

import click
import numpy as np

from coldframe.export import open_bundle
from coldframe.progress import progress_bar
from coldframe.serve.canary import require_same_encoder
from coldframe.serve.execution import Execution
from coldframe.serve.extract import complete
from coldframe.serve.repair import open_for_repair
from coldframe.serve.run_options import BACKEND_OPTIONS, run_options, with_options
from coldframe.store import Reason, Status, Store, rows_to_retry
from coldframe.store.text import path_to_text

REASONS = {reason.name.lower(): reason for reason in Reason if reason is not Reason.NONE}
_TRANSIENT = [name for name, reason in REASONS.items() if reason.is_transient]


@click.command("retry-failed")
@click.argument("store")
@click.option("--encoder", required=True, metavar="DIR", help="Bundle that the store was made with.")
@click.option(
    "--reason",
    "names",
    multiple=True,
    type=click.Choice([*REASONS]),
    default=_TRANSIENT,
    show_default=True,
    help="Try rows again that failed for this reason; may be given more than once.",
)
@lambda command: with_options(command, BACKEND_OPTIONS)
@run_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def retry_command(store: str, encoder: str, names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Try failed rows of a store again, such as those of a disk that was away or of videos that took too long.

    A unit with such rows is written anew, whole: the rows that it has are taken over bit by bit, and until it is whole
    the old one stays. Other units are not touched. A row that fails again gets its new reason. Rows that are absent are
    extracted too. A video that could not be used when it was planned has no clips that could be tried: add it with
    `coldframe extract --append`.

    Exit codes: 0 every row is ok now, 1 failed, 2 usage, 3 some rows are still failed.

    \b
    Examples:
      coldframe retry-failed videos.zarr --encoder levjepa-large/
      coldframe retry-failed videos.zarr --encoder levjepa-large/ --reason limit --reason decode_error
    """
    bundle, how = open_bundle(encoder), Execution.from_options(options)
    opened = open_for_repair(store)
    require_same_encoder(opened, bundle)
    how.require_possible(bundle, opened.recipe)
    reasons = [REASONS[name] for name in names]
    rows = rows_to_retry(opened, reasons)
    done = complete(opened, bundle, progress=progress_bar, how=how, retry=reasons)
    opened.refresh()
    now_ok = int((opened.column("status")[rows] == Status.OK).sum())
    left = _failed_by_reason(opened)
    unplanned = _unusable_when_planned(opened)
    if as_json:
        facts = {"tried": len(rows), "now_ok": now_ok, "ok": done.ok, "failed": done.failed, "reasons": dict(left)}
        click.echo(json.dumps({"store": path_to_text(store), **facts, "unusable_when_planned": unplanned}))
    else:
        can_grow = opened.recipe.window == "grid"
        click.echo(_text(store, len(rows), now_ok, left, unplanned, can_grow=can_grow))
    raise SystemExit(done.exit_code)


def _failed_by_reason(store: Store) -> Counter[str]:
    reason = store.column("reason")[store.column("status") == Status.FAILED]
    return Counter(Reason(int(code)).name.lower() for code in reason)


def _unusable_when_planned(store: Store) -> int:
    """Failed rows that stand for a whole video without clips."""
    failed = (store.column("status") == Status.FAILED) & (store.column("n_real") == 0)
    return int((failed & (np.asarray(store.video_column("status"))[store.row_videos] == Status.FAILED)).sum())


def _text(store: str, tried: int, now_ok: int, left: Counter[str], unplanned: int, *, can_grow: bool) -> str:
    lines = [f"{path_to_text(store)}: {tried} rows tried again, {now_ok} of them ok now"]
    if left:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(left.items()))
        lines.append(f"still failed: {counts}")
    if unplanned:
        then = (
            "add them: coldframe extract VIDEO... --append"
            if can_grow
            else "extract into a new store, as one of annotations does not grow."
        )
        lines.append(
            f"{unplanned} of them are videos that could not be used when they were planned. Once they can, {then}"
        )
    return "\n".join(lines)
