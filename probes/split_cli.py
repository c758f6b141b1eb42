"""Command `coldframe-probe split`."""

import json

import click

from coldframe.cli_errors import one_line
from coldframe.errors import UsageError
from coldframe.probes.make_split import DEFAULT_RATIOS, make_split
from coldframe.probes.options import labelled, numbers, refuse_beside
from coldframe.probes.report import table
from coldframe.probes.split_manifest import SplitManifest
from coldframe.progress import progress_bar
from coldframe.store import open_store


@click.command("split")
@click.argument("store", type=click.Path())
@click.option(
    "--by",
    multiple=True,
    default=["source"],
    show_default=True,
    metavar="COLUMN",
    help="Video column whose values stay on one side (source, subject, date); repeatable. Equal files and "
    "confirmed near-copies always do.",
)
@click.option("--label", metavar="COLUMN", help="Column with the classes; each gets its share in every part.")
@click.option(
    "--multi-label",
    is_flag=True,
    help="Cells of --label list several labels with `;` between them; each gets its share.",
)
@click.option("--labels", "labels_csv", metavar="FILE.csv", help="CSV with a sha256 or path column, and the labels.")
@click.option(
    "--ratios",
    default=",".join(map(str, DEFAULT_RATIOS)),
    show_default=True,
    metavar="T,V,T",
    help="Shares of sources in train, validation and test.",
)
@click.option("--folds", type=click.IntRange(0), default=0, help="Make this many folds instead (3 or more).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the division.")
@click.option("--out", required=True, metavar="SPLIT.json", help="Manifest to write; must not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def split_command(
    store: str,
    by: tuple[str, ...],
    label: str | None,
    multi_label: bool,
    labels_csv: str | None,
    ratios: str,
    folds: int,
    seed: int,
    out: str,
    as_json: bool,
) -> None:
    """Divide the videos of STORE into train, validation and test by whole sources, before any window is cut.

    The manifest names videos by content, so it holds for every store of the same videos. Reading its test part is
    logged beside it.

    \b
    Examples:
      coldframe-probe split features.zarr --label action --out split.json
      coldframe-probe split features.zarr --label action --by source --by subject --folds 5 --out folds.json
    """
    if folds:
        refuse_beside("--folds", "--ratios")
    shares = numbers(ratios, "--ratios")
    if len(shares) != 3:
        raise UsageError(f"--ratios has {len(shares)} numbers; allowed are 3: train, validation, test.")
    opened = labelled(open_store(store), labels_csv)
    with progress_bar("Reading and comparing windows", 2 * len(opened.ok_rows())) as on_rows:
        manifest = make_split(
            opened,
            by=by,
            label=label,
            multi_label=multi_label,
            ratios=(shares[0], shares[1], shares[2]),
            folds=folds,
            seed=seed,
            on_rows=on_rows,
        )
    manifest.write(out)
    click.echo(json.dumps(summary(manifest, out)) if as_json else to_text(manifest, out))


def summary(manifest: SplitManifest, out: str) -> dict[str, object]:
    """What `split --json` prints: the manifest without its list of videos."""
    return {
        "file": out,
        "digest": manifest.digest,
        "by": list(manifest.by),
        "label": manifest.label,
        "multi_label": manifest.multi_label,
        "counts": manifest.counts(),
        "excluded": manifest.excluded(),
        "near_duplicates": manifest.near_duplicates,
    }


def to_text(manifest: SplitManifest, out: str) -> str:
    """Counts a part and class, copies that were found, and classes that were left out."""
    rows = [
        [part, one_line(label) or "-", *(str(count[unit]) for unit in ("sources", "videos", "rows"))]
        for part, classes in manifest.counts().items()
        for label, count in classes.items()
    ]
    lines = [
        f"{one_line(out)}: split by {' + '.join(manifest.by)} + content, digest {manifest.digest[:12]}",
        "",
        table(["part", "class", "sources", "videos", "rows"], rows),
        "",
        _copies(manifest),
    ]
    if manifest.excluded():
        listed = ", ".join(f"{one_line(name)!r} ({c['sources']} sources)" for name, c in manifest.excluded().items())
        where = "do not decide, and their videos stay" if manifest.multi_label else "are in no part"
        lines.append(f"warning: classes with too few sources {where}: {listed}.")
    return "\n".join(lines)


def _copies(manifest: SplitManifest) -> str:
    found = manifest.near_duplicates
    if found["threshold"] is None:
        return "Near-copies were not looked for: too few pairs of windows to say what is unusually alike."
    return (
        f"Near-copies, by features alone: {len(found['confirmed'])} pairs of videos confirmed and kept together, "
        f"{found['suspected_count']} suspected ({found['windows_compared']} of {found['windows']} windows compared)."
    )
