"""Command `coldframe-probe multi-label`."""

import json
import time
from pathlib import Path

import click

from coldframe.probes import options
from coldframe.probes.features import FeatureKind
from coldframe.probes.logistic import STRENGTHS
from coldframe.probes.multilabel import multilabel_probe
from coldframe.probes.multilabel_page import write_multilabel_page
from coldframe.probes.multilabel_report import to_dict, to_text
from coldframe.probes.saved import save_probe
from coldframe.progress import progress_bar
from coldframe.store import open_store


@click.command("multi-label")
@options.store_argument
@click.option(
    "--label", required=True, metavar="COLUMN", help="Video column whose cells list labels, `;` between them."
)
@options.labels_option
@options.groups_option
@options.features_option
@options.strengths_option
@options.split_seeds
@options.sealed_split
@options.outputs
def multilabel_command(
    store: str,
    label: str,
    labels_csv: str | None,
    groups: tuple[str, ...],
    features: FeatureKind,
    strengths: tuple[float, ...],
    seed: int,
    seeds: int,
    split_file: str | None,
    again: str | None,
    report_file: str | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Fit a linear probe with several labels a video on STORE, and report mAP over test videos.

    An empty cell leaves its video out; a cell that is only `;` says that none of the labels applies.

    \b
    Examples:
      coldframe-probe multi-label features.zarr --label actions
      coldframe-probe multi-label features.zarr --label actions --split split.json --report report.html
      coldframe-probe multi-label features.zarr --labels actions.csv --label actions --features mean --json
    """
    options.require_outputs(report_file, save)
    started = time.perf_counter()
    opened = options.labelled(open_store(store), labels_csv)
    with progress_bar("Reading features", len(opened.ok_rows())) as on_rows:
        report = multilabel_probe(
            opened,
            label=label,
            groups=groups,
            features=features,
            strengths=strengths or STRENGTHS,
            seeds=range(seed, seed + seeds),
            split=options.manifest_of(split_file, "--group", "--seed", "--seeds"),
            again=again,
            on_rows=on_rows,
        )
    with options.shown(json.dumps(to_dict(report), allow_nan=False) if as_json else to_text(report)):
        if save is not None:
            from coldframe.probes.predict import multilabel_card  # and PyTorch with it

            save_probe(save, *multilabel_card(report, options.CREATED_BY))
        if report_file is not None:
            write_multilabel_page(report_file, report, seconds={"probe": time.perf_counter() - started})
