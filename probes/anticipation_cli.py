"""Command `coldframe-probe anticipation`."""

import json
import time
from pathlib import Path

import click

from coldframe.errors import UsageError
from coldframe.probes import options
from coldframe.probes.presets import ACTION_PRESETS, Loss
from coldframe.progress import progress_bar
from coldframe.store import open_store

_LOSSES: dict[str, Loss] = {"focal": "focal", "cross-entropy": "cross_entropy"}


@click.command("anticipation")
@options.store_argument
@click.option("--verb", required=True, metavar="COLUMN", help="Annotation column with the verb, or with the one label.")
@click.option("--noun", metavar="COLUMN", help="Annotation column with the noun; the pair is then a third task.")
@click.option(
    "--group",
    "groups",
    multiple=True,
    default=["source"],
    show_default=True,
    metavar="COLUMN",
    help="Column whose values stay on one side of a split, such as participant_id; repeatable. Equal files always do.",
)
@click.option("--preset", type=click.Choice(list(ACTION_PRESETS)), default="ek100", show_default=True)
@click.option("--loss", type=click.Choice(list(_LOSSES)), help="Replaces the preset's.")
@click.option("--lr", "rates", type=click.FloatRange(0, min_open=True), multiple=True, help="Replaces the preset's.")
@click.option("--wd", "decays", type=click.FloatRange(0), multiple=True, help="Replaces the preset's weight decays.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the train rows.  [default: the preset's]")
@click.option("--batch", type=click.IntRange(1), help="Rows of one update.  [default: the preset's]")
@click.option("--heads", type=click.IntRange(1), help="Attention heads.  [default: the preset's]")
@click.option("--temporal-position", is_flag=True, help="Learn a position a time step: for tokens without time code.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Heads with other initial weights.")
@click.option("--split-seed", type=click.IntRange(0), default=0, show_default=True)
@options.sealed_split
@click.option("--memory-mb", type=click.IntRange(1), default=4096, show_default=True, help="Bound on tokens in memory.")
@options.device_option
@click.option(
    "--report", "report_file", metavar="R.html", help="Write an HTML page, and R.json and its plots (SVG) beside it."
)
@click.option("--challenge", type=click.Path(path_type=Path), metavar="OUT.zip", help="Write a challenge file.")
@click.option("--challenge-store", metavar="STORE", help="Its annotations: a store of the same recipe, without labels.")
@click.option("--sls", type=int, nargs=3, metavar="PT TL TD", help="Its supervision levels, 0 to 5 each.")
@options.json_option
def anticipation_command(
    store: str,
    verb: str,
    noun: str | None,
    groups: tuple[str, ...],
    preset: str,
    loss: str | None,
    rates: tuple[float, ...],
    decays: tuple[float, ...],
    epochs: int | None,
    batch: int | None,
    heads: int | None,
    temporal_position: bool,
    seeds: int,
    split_seed: int,
    split_file: str | None,
    again: str | None,
    memory_mb: int,
    device: str,
    report_file: str | None,
    challenge: Path | None,
    challenge_store: str | None,
    sls: tuple[int, int, int] | None,
    as_json: bool,
) -> None:
    """Fit heads that say from each clip of STORE which action follows: its verb, its noun and their pair.

    STORE was extracted with --annotations. Actions that train lacks stay in test and count as misses. The setting is
    chosen by class-mean recall@5 of the last task on validation; its heads, one a seed, are scored on test once.

    With --challenge, the head that is best on validation predicts all annotations of another store, in the form that
    EPIC-KITCHENS' challenge takes; --challenge-store and --sls must be given too.

    \b
    Examples:
      coldframe-probe anticipation before.zarr --verb verb_class --noun noun_class --group participant_id
      coldframe-probe anticipation before.zarr --verb verb --noun noun --split split.json --report report.html
      coldframe-probe anticipation before.zarr --verb verb_class --noun noun_class --challenge out.zip \\
          --challenge-store test.zarr --sls 2 3 3
      coldframe-probe anticipation before.zarr --verb label --preset ek100-d1 --lr 3e-4 --wd 0.01 --json
    """
    from coldframe.probes.anticipation import anticipation_probe  # and PyTorch with it
    from coldframe.probes.anticipation_page import write_anticipation_page
    from coldframe.probes.anticipation_report import to_dict, to_text
    from coldframe.probes.attentive import Options
    from coldframe.probes.challenge import require_challenge, require_challenge_place, write_challenge

    options.require_outputs(report_file, None)
    if challenge is not None:
        require_challenge_place(challenge)
    started = time.perf_counter()
    opened = open_store(store)
    options.labelled(opened, None)
    if verb == noun:
        raise UsageError(f"--verb and --noun are both {verb!r}. Name two columns, or leave --noun out.")
    columns = (verb,) if noun is None else (verb, noun)
    if len({challenge is None, challenge_store is None, sls is None}) > 1:
        raise UsageError("--challenge, --challenge-store and --sls belong together. Give all three, or none.")
    unseen = None if challenge_store is None else open_store(challenge_store)
    if unseen is not None and sls is not None:
        require_challenge(columns, opened, unseen, sls)
    changed = Options(
        heads=heads,
        rates=rates or None,
        weight_decays=decays or None,
        epochs=epochs,
        batch=batch,
        loss=None if loss is None else _LOSSES[loss],
        temporal_position=temporal_position,
        device=device,
        memory_bytes=memory_mb << 20,
    )
    passes = epochs or ACTION_PRESETS[preset].epochs
    with progress_bar("Training", passes * len(opened.ok_rows())) as on_rows:
        report = anticipation_probe(
            opened,
            columns=columns,
            preset=ACTION_PRESETS[preset],
            groups=groups,
            options=changed,
            seeds=range(seeds),
            split_seed=split_seed,
            split=options.manifest_of(split_file),
            again=again,
            on_rows=on_rows,
        )
    if report_file is not None:
        write_anticipation_page(report_file, report, seconds={"probe": time.perf_counter() - started})
    if challenge is not None and unseen is not None and sls is not None:
        with progress_bar("Predicting", len(unseen.ok_rows())) as on_rows:
            written = write_challenge(challenge, report, unseen, sls=sls, on_rows=on_rows)
        click.echo(f"{challenge}: {written.to_text()}.", err=True)
    click.echo(json.dumps(to_dict(report), allow_nan=False) if as_json else to_text(report))
