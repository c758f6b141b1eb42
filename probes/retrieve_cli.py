"""Command `coldframe-probe retrieve`."""

import json
from dataclasses import asdict

import click
import numpy as np

from coldframe.cli_errors import one_line
from coldframe.errors import UsageError
from coldframe.probes.caveats import of_encoder, of_missing
from coldframe.probes.columns import doubtful_classes, video_text
from coldframe.probes.features import FEATURE_KINDS, FeatureKind, read_varied_features
from coldframe.probes.options import labelled, numbers
from coldframe.probes.report import rows_dict, selection_lines, store_dict, store_lines, table
from coldframe.probes.retrieval import Retrieval, retrieve
from coldframe.probes.selection import labelled_selection
from coldframe.progress import progress_bar
from coldframe.store import open_store


@click.command("retrieve")
@click.argument("store", type=click.Path())
@click.option("--label", required=True, metavar="COLUMN", help="Column that says which windows are relevant.")
@click.option("--labels", "labels_csv", metavar="FILE.csv", help="CSV with a sha256 or path column, and the labels.")
@click.option(
    "--group",
    "groups",
    multiple=True,
    default=["source"],
    show_default=True,
    metavar="COLUMN",
    help="Windows that agree in it do not find each other; repeatable. Equal files never do.",
)
@click.option("--features", type=click.Choice(FEATURE_KINDS), default="cls", show_default=True, help="As for linear.")
@click.option("--k", "ks", default="1,5", show_default=True, metavar="K,K,...", help="Cut-offs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def retrieve_command(
    store: str,
    label: str,
    labels_csv: str | None,
    groups: tuple[str, ...],
    features: FeatureKind,
    ks: str,
    as_json: bool,
) -> None:
    """Rank all labelled windows of STORE by cosine for each of them: hit@k, recall@k and mAP.

    Windows of the query's own source are left out, since they are near-copies; the same numbers with them are printed
    beside, and the difference is what a leak would be worth. Nothing is trained.

    \b
    Examples:
      coldframe-probe retrieve features.zarr --label action
      coldframe-probe retrieve features.zarr --label action --group source --group subject --k 1,5,10 --json
    """
    cuts = numbers(ks, "--k")
    if not all(k >= 1 and k.is_integer() for k in cuts):
        raise UsageError(f"--k is {ks!r}; allowed are whole numbers from 1, such as 1,5.")
    opened = labelled(open_store(store), labels_csv)
    chosen = labelled_selection(opened, label, groups)
    video = opened.column("video").astype(np.int64)[chosen.rows]
    sha256, starts = video_text(opened, "sha256"), opened.column("clip_start_s")[chosen.rows]
    names = [f"{sha256[v]} {start}" for v, start in zip(video.tolist(), starts.tolist(), strict=True)]
    with progress_bar("Ranking windows", 3 * len(chosen.rows)) as on_rows:
        matrix = read_varied_features(opened, chosen.rows, features, on_rows)
        found = [
            retrieve(
                matrix,
                chosen.labels,
                chosen.components,
                names,
                ks=[int(k) for k in cuts],
                exclude_same_source=exclude,
                on_rows=on_rows,
            )
            for exclude in (True, False)
        ]
    warnings = [
        *of_encoder(opened),
        *doubtful_classes(count.name for count in chosen.classes),
        *of_missing(chosen.failed, chosen.absent),
    ]
    if as_json:
        asked = {"label": label, "group": list(groups), "features": features, "rows": rows_dict(chosen)}
        both = {"other_sources": asdict(found[0]), "same_source_kept": asdict(found[1])}
        click.echo(json.dumps({**store_dict(opened), **asked, **both, "warnings": warnings}, allow_nan=False))
        return
    head = [*store_lines(opened), f"features  {features}", *selection_lines(chosen, label, groups)]
    click.echo("\n".join([*head, "", to_text(found[0], found[1])]))
    for text in warnings:
        click.echo(f"warning: {one_line(text)}")


def to_text(honest: Retrieval, inflated: Retrieval) -> str:
    """Both searches side by side, and what was left out."""
    rows = []
    for name, score in honest.scores.items():
        interval = score.micro_interval
        ends = interval.reason if interval.low is None else f"{interval.low:.3f} to {interval.high:.3f}"
        values = (score.macro, score.chance, inflated.scores[name].micro)
        rows.append([name, f"{score.micro:.3f}", ends, *(f"{value:.3f}" for value in values)])
    head = ["metric", "other sources", "95 % over sources", "macro", "chance", "with its own source"]
    lines = [
        table(head, rows),
        f"{honest.queries} queries; {honest.invalid} have no relevant window of another source and do not count.",
        f"The nearest other window is of the same source for {honest.nearest_same_source:.1%} of the windows.",
    ]
    if honest.invalid_classes:
        lines.append(f"warning: queries without an answer are of {', '.join(map(one_line, honest.invalid_classes))}.")
    if honest.scores["mAP"].best is not None:
        ties = "; ".join(f"{name} {score.worst:.3f} to {score.best:.3f}" for name, score in honest.scores.items())
        lines.append(f"warning: {honest.tied:.1%} of the queries have ties that matter: {ties}.")
    return "\n".join(lines)
