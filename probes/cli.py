"""Commands of `coldframe-probe` that fit readouts on stored features."""

import json
import time
from pathlib import Path

import click

import coldframe
from coldframe.probes.features import FEATURE_KINDS, FeatureKind
from coldframe.probes.linear import linear_probe
from coldframe.probes.options import labelled, numbers
from coldframe.probes.page import require_html, write_page
from coldframe.probes.report import to_dict, to_text
from coldframe.probes.saved import require_writable, save_probe
from coldframe.probes.split_manifest import read_manifest
from coldframe.progress import progress_bar
from coldframe.store import open_store


@click.command("linear")
@click.argument("store", type=click.Path())
@click.option("--label", required=True, metavar="COLUMN", help="Video column that holds the classes.")
@click.option(
    "--group",
    "groups",
    multiple=True,
    default=["source"],
    show_default=True,
    metavar="COLUMN",
    help="Video column whose values stay on one side of a split; repeatable. Equal files always do.",
)
@click.option(
    "--features",
    type=click.Choice(FEATURE_KINDS),
    default="cls",
    show_default=True,
    help="The [CLS] token, the mean of the patch tokens of real frames, or colour or motion without an encoder.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="First split seed.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of splits.")
@click.option("--labels", "labels_csv", metavar="FILE.csv", help="CSV with a sha256 or path column, and the labels.")
@click.option("--split", "split_file", metavar="SPLIT.json", help="Split made by `coldframe-probe split`.")
@click.option("--again", metavar="REASON", help="Why the test part of --split is read once more.")
@click.option("--fraction", "fractions", metavar="F,F,...", help="Shares of the train sources to refit with.")
@click.option("--report", "report_file", metavar="R.html", help="Write one HTML page, and R.json beside it.")
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the head that is best on validation."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def linear(
    store: str,
    label: str,
    groups: tuple[str, ...],
    features: FeatureKind,
    seed: int,
    seeds: int,
    labels_csv: str | None,
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
    require_html(report_file)
    if save is not None:
        require_writable(save)
    started = time.perf_counter()
    opened = labelled(open_store(store), labels_csv)
    with progress_bar("Reading features", len(opened.ok_rows())) as on_rows:
        report = linear_probe(
            opened,
            label=label,
            groups=groups,
            features=features,
            seeds=range(seed, seed + seeds),
            split=None if split_file is None else read_manifest(split_file),
            again=again,
            fractions=numbers(fractions, "--fraction"),
            on_rows=on_rows,
        )
    if save is not None:
        from coldframe.probes.predict import ridge_card  # and PyTorch with it

        save_probe(save, *ridge_card(report, opened, f"coldframe {coldframe.__version__}"))
    if report_file is not None:
        write_page(report_file, opened, report, seconds={"probe": time.perf_counter() - started})
    click.echo(json.dumps(to_dict(report), allow_nan=False) if as_json else to_text(report))
