"""Commands of `coldframe-probe` that fit readouts on stored features."""

import json

import click

from coldframe.probes.features import FEATURE_KINDS, FeatureKind
from coldframe.probes.linear import linear_probe
from coldframe.probes.report import to_dict, to_text
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
    help="The [CLS] token, or the mean of the patch tokens of real frames.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="First split seed.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of splits.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def linear(
    store: str,
    label: str,
    groups: tuple[str, ...],
    features: FeatureKind,
    seed: int,
    seeds: int,
    as_json: bool,
) -> None:
    """Fit a linear probe on STORE and report it on test videos.

    Videos are split into train, validation and test by source, so that no test window has a neighbour in
    train. Each seed is another split.

    \b
    Examples:
      coldframe-probe linear features.zarr --label action
      coldframe-probe linear features.zarr --label action --group source --group subject --json
    """
    opened = open_store(store)
    with progress_bar("Reading features", len(opened.ok_rows())) as on_rows:
        report = linear_probe(
            opened,
            label=label,
            groups=groups,
            features=features,
            seeds=range(seed, seed + seeds),
            on_rows=on_rows,
        )
    click.echo(json.dumps(to_dict(report), allow_nan=False) if as_json else to_text(report))
