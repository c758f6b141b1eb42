"""Command `coldframe-probe linear`."""

import json
import time
from pathlib import Path

import click

from coldframe.probes import options
from coldframe.probes.features import FeatureKind
from coldframe.probes.linear import linear_probe
from coldframe.probes.page import write_page
from coldframe.probes.report import to_dict, to_text
from coldframe.probes.saved import save_probe
from coldframe.progress import progress_bar
from coldframe.store import open_store


@click.command("linear")
@options.store_argument
@options.label_option
@options.labels_option
@options.groups_option
@options.features_option
@options.split_seeds
@options.sealed_split
@click.option("--fraction", "fractions", metavar="F,F,...", help="Shares of the train sources to refit with.")
@options.outputs
def linear(
    store: str,
    label: str,
    labels_csv: str | None,
    groups: tuple[str, ...],
    features: FeatureKind,
    seed: int,
    seeds: int,
    split_file: str | None,
    again: str | None,
    fractions: str | None,
    report_file: str | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Fit a linear probe on STORE and report it on test videos.

    Videos are split into train, validation and test by source, so that no test window has a neighbour in
    train. Each seed is another split.

    \b
    Examples:
      coldframe-probe linear features.zarr --label action
      coldframe-probe linear features.zarr --label action --group source --group subject --json
      coldframe-probe linear features.zarr --label action --split split.json --report report.html
      coldframe-probe linear features.zarr --label action --labels labels.csv --fraction 0.01,0.1,1
      coldframe-probe linear features.zarr --label action --features mean --save head.safetensors
    """
    options.require_outputs(report_file, save)
    started = time.perf_counter()
    opened = options.labelled(open_store(store), labels_csv)
    with progress_bar("Reading features", len(opened.ok_rows())) as on_rows:
        report = linear_probe(
            opened,
            label=label,
            groups=groups,
            features=features,
            seeds=range(seed, seed + seeds),
            split=options.manifest_of(split_file, "--group", "--seed", "--seeds"),
            again=again,
            fractions=options.numbers(fractions, "--fraction"),
            on_rows=on_rows,
        )
    with options.shown(json.dumps(to_dict(report), allow_nan=False) if as_json else to_text(report)):
        if save is not None:
            from coldframe.probes.predict import ridge_card  # and PyTorch with it

            save_probe(save, *ridge_card(report, options.CREATED_BY))
        if report_file is not None:
            write_page(report_file, opened, report, seconds={"probe": time.perf_counter() - started})
