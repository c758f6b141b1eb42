"""Command `coldframe-probe controls`."""

import json
import time

import click

from coldframe.probes import control_report, report
from coldframe.probes.control_report import run_controls
from coldframe.probes.controls import PERMUTATIONS, label_fits
from coldframe.probes.features import FEATURE_KINDS, FeatureKind
from coldframe.probes.options import labelled, manifest_of, shown
from coldframe.probes.page import require_html, write_page
from coldframe.probes.siblings import Siblings
from coldframe.progress import progress_bar
from coldframe.store import open_store


@click.command("controls")
@click.argument("store", type=click.Path())
@click.option("--label", required=True, metavar="COLUMN", help="Column that holds the classes.")
@click.option("--labels", "labels_csv", metavar="FILE.csv", help="CSV with a sha256 or path column, and the labels.")
@click.option(
    "--group", "groups", multiple=True, default=["source"], show_default=True, metavar="COLUMN", help="As for linear."
)
@click.option("--features", type=click.Choice(FEATURE_KINDS), default="cls", show_default=True, help="As for linear.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the split to control.")
@click.option("--split", "split_file", metavar="SPLIT.json", help="Split made by `coldframe-probe split`.")
@click.option("--again", metavar="REASON", help="Why the test part of --split is read once more.")
@click.option("--static", metavar="S.zarr", help="Sibling extracted with --control static.")
@click.option("--reversed", "reversed_", metavar="S.zarr", help="Sibling extracted with --control reversed.")
@click.option("--shuffled", metavar="S.zarr", help="Sibling extracted with --control shuffled.")
@click.option("--random-init", "random_init", metavar="S.zarr", help="Sibling with an untrained encoder.")
@click.option(
    "--time-sensitive/--not-time-sensitive",
    default=None,
    help="Whether the labels depend on the order of frames; without it controls of time are not judged.",
)
@click.option(
    "--permutations",
    type=click.IntRange(99),
    default=PERMUTATIONS,
    show_default=True,
    help="Of the label null; the smallest p is 1 / (permutations + 1).",
)
@click.option(
    "--report", "report_file", metavar="R.html", help="Write an HTML page, and R.json and its plots (SVG) beside it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def controls_command(
    store: str,
    label: str,
    labels_csv: str | None,
    groups: tuple[str, ...],
    features: FeatureKind,
    seed: int,
    split_file: str | None,
    again: str | None,
    static: str | None,
    reversed_: str | None,
    shuffled: str | None,
    random_init: str | None,
    time_sensitive: bool | None,
    permutations: int,
    report_file: str | None,
    as_json: bool,
) -> None:
    """Run negative controls on a linear probe of STORE: what must not work, and does it work?

    Exit codes: 0 no control failed, 1 a control failed, 2 usage. Inconclusive controls are listed and do not fail.

    \b
    Examples:
      coldframe-probe controls features.zarr --label action
      coldframe-probe controls features.zarr --label action --time-sensitive --reversed reversed.zarr
      coldframe-probe controls features.zarr --label action --split split.json --again "controls" --json
    """
    require_html(report_file)
    started = time.perf_counter()
    opened = labelled(open_store(store), labels_csv)
    named = {"static": static, "reversed": reversed_, "shuffled": shuffled, "random_init": random_init}
    siblings = Siblings(
        stores={name: open_store(path) for name, path in named.items() if path is not None},
        time_sensitive=time_sensitive,
    )
    with progress_bar("Permuting labels", label_fits(permutations)) as on_fit:
        found = run_controls(
            opened,
            label=label,
            groups=groups,
            features=features,
            seeds=[seed],
            split=manifest_of(split_file, "--group", "--seed"),
            again=again,
            siblings=siblings,
            permutations=permutations,
            on_fit=on_fit,
        )
    if as_json:
        text = json.dumps({"probe": report.to_dict(found.probe), **control_report.to_dict(found)}, allow_nan=False)
    else:
        text = f"{report.to_text(found.probe)}\n\n{control_report.to_text(found)}"
    with shown(text):
        if report_file is not None:
            seconds = {"probe and controls": time.perf_counter() - started}
            write_page(report_file, opened, found.probe, controls=found, seconds=seconds)
    raise SystemExit(any(control.verdict == "fail" for control in found.controls))
