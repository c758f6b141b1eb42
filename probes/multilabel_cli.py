"""Command `coldframe-probe multi-label`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from coldframe.cli_errors import one_line
from coldframe.probes.features import FEATURE_KINDS, FeatureKind
from coldframe.probes.logistic import STRENGTHS
from coldframe.probes.multilabel import MultiLabelReport, multilabel_probe
from coldframe.probes.options import CREATED_BY, labelled
from coldframe.probes.report import table
from coldframe.probes.saved import require_writable, save_probe
from coldframe.progress import progress_bar
from coldframe.store import open_store

PROTOCOL = "linear probe, several labels a video: one binary logistic problem a class, C chosen on validation by mAP"


@click.command("multi-label")
@click.argument("store", type=click.Path())
@click.option(
    "--label", required=True, metavar="COLUMN", help="Video column whose cells list labels, `;` between them."
)
@click.option("--labels", "labels_csv", metavar="FILE.csv", help="CSV with a sha256 or path column, and the labels.")
@click.option(
    "--group", "groups", multiple=True, default=["source"], show_default=True, metavar="COLUMN", help="As for linear."
)
@click.option("--features", type=click.Choice(FEATURE_KINDS), default="cls", show_default=True, help="As for linear.")
@click.option(
    "--strength", "-C", "strengths", type=click.FloatRange(0, min_open=True), multiple=True, help="Grid of C."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="First split seed.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of splits.")
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the head that is best on validation."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def multilabel_command(
    store: str,
    label: str,
    labels_csv: str | None,
    groups: tuple[str, ...],
    features: FeatureKind,
    strengths: tuple[float, ...],
    seed: int,
    seeds: int,
    save: Path | None,
    as_json: bool,
) -> None:
    """Fit a linear probe with several labels a video on STORE, and report mAP over test videos.

    An empty cell leaves its video out; a cell that is only `;` says that none of the labels applies.

    \b
    Examples:
      coldframe-probe multi-label features.zarr --label actions
      coldframe-probe multi-label features.zarr --labels actions.csv --label actions --features mean --json
    """
    if save is not None:
        require_writable(save)
    opened = labelled(open_store(store), labels_csv)
    with progress_bar("Reading features", len(opened.ok_rows())) as on_rows:
        report = multilabel_probe(
            opened,
            label=label,
            groups=groups,
            features=features,
            strengths=strengths or STRENGTHS,
            seeds=range(seed, seed + seeds),
            on_rows=on_rows,
        )
    if save is not None:
        from coldframe.probes.predict import multilabel_card  # and PyTorch with it

        save_probe(save, *multilabel_card(report, CREATED_BY))
    click.echo(json.dumps(to_dict(report), allow_nan=False) if as_json else to_text(report))


def to_dict(report: MultiLabelReport) -> dict[str, Any]:
    """The report for `json.dumps`."""
    chosen, scores = report.selection, [result.map for result in report.results]
    return {
        "protocol": PROTOCOL,
        "store": report.store.name,
        "recipe_id": report.store.recipe_id,
        "encoder": {"name": report.store.recipe.encoder, "untrained": report.store.encoder.get("untrained")},
        "label": report.label,
        "group": list(report.groups),
        "features": report.features,
        "rows": {"used": len(chosen.rows), "unlabelled": chosen.unlabelled, "without_label": chosen.without_label},
        "empty_video_policy": "an empty cell leaves the video out; a cell of `;` is a negative of every class",
        "ensemble": "mean_prob",
        "classes": [asdict(count) for count in chosen.classes],
        "excluded_classes": [asdict(count) for count in chosen.excluded],
        "seed_meaning": "Each seed is another split by source.",
        "seeds": [
            {
                **{name: value for name, value in vars(one).items() if name not in ("head", "per_class", "interval")},
                "C": one.head.strength,
                "interval": asdict(one.interval),
                "absent_classes": one.absent,
                "per_class": [None if np.isnan(value) else float(value) for value in one.per_class],
            }
            for one in report.results
        ],
        "map": {"mean": float(np.mean(scores)), "sd": float(np.std(scores, ddof=1)) if len(scores) > 1 else None},
    }


def to_text(report: MultiLabelReport) -> str:
    """The report as people read it."""
    facts, chosen = to_dict(report), report.selection
    head = ["split", "C", "validation mAP", "mAP", "95 % over sources", "chance", "mAP of windows", "videos", "absent"]
    rows = [
        [
            str(one.seed),
            f"{one.head.strength:.2g}",
            f"{one.validation_map:.3f}",
            f"{one.map:.3f}",
            "-" if one.interval.low is None else f"{one.interval.low:.3f} to {one.interval.high:.3f}",
            f"{one.chance:.3f}",
            f"{one.map_windows:.3f}",
            str(one.test_videos),
            str(one.absent),
        ]
        for one in report.results
    ]
    sd = facts["map"]["sd"]
    lines = [
        f"{PROTOCOL[0].upper()}{PROTOCOL[1:]}.",
        f"store {one_line(facts['store'])}, features {report.features}, label {one_line(report.label)}",
        f"rows  {len(chosen.rows)} used, {chosen.without_label} of them with no label; {chosen.unlabelled} unlabelled",
        "",
        table(["class", "sources", "rows"], [[one_line(c.name), str(c.sources), str(c.rows)] for c in chosen.classes]),
        "",
        table(head, rows),
        f"mean {facts['map']['mean']:.3f}, sd {'-' if sd is None else f'{sd:.3f}'} over splits",
    ]
    notes = {one.interval.reason for one in report.results if one.interval.reason}
    lines += [f"no interval: {note}" for note in sorted(notes)]
    if chosen.excluded:
        listed = ", ".join(f"{one_line(c.name)!r} ({c.sources} sources)" for c in chosen.excluded)
        lines.append(f"warning: labels with too few sources are left out: {listed}.")
    if report.store.encoder.get("untrained"):
        lines.append("warning: the encoder is UNTRAINED: its weights are random, so these numbers are a baseline.")
    return "\n".join(lines)
