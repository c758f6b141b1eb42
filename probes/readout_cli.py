"""Commands of `coldframe-probe` for readouts beyond ridge: attentive, logistic, knn, predict."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import coldframe
from coldframe.probes.features import FEATURE_KINDS, FeatureKind
from coldframe.probes.presets import PRESETS
from coldframe.progress import progress_bar
from coldframe.store import open_store

_Command = TypeVar("_Command", bound=Callable[..., Any])
_CREATED_BY = f"coldframe {coldframe.__version__}"


def _label_options(command: _Command) -> _Command:
    command = click.option(
        "--group",
        "groups",
        multiple=True,
        default=["source"],
        show_default=True,
        metavar="COLUMN",
        help="Video column whose values stay on one side of a split; repeatable. Equal files always do.",
    )(command)
    return click.option("--label", required=True, metavar="COLUMN", help="Video column that holds the classes.")(
        command
    )


_features_option = click.option(
    "--features",
    type=click.Choice(FEATURE_KINDS),
    default="cls",
    show_default=True,
    help="The [CLS] token, the mean of the patch tokens of real frames, or colour or motion without an encoder.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
_save_option = click.option(
    "--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the head that is best on validation."
)
_device_option = click.option("--device", default="cpu", show_default=True, help="cpu or cuda; never a fallback.")


@click.command("attentive")
@click.argument("store", type=click.Path())
@_label_options
@click.option("--preset", type=click.Choice(list(PRESETS)), default="levjepa", show_default=True)
@click.option("--lr", "rates", type=click.FloatRange(0, min_open=True), multiple=True, help="Replaces the preset's.")
@click.option("--wd", "decays", type=click.FloatRange(0), multiple=True, help="Replaces the preset's weight decays.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the train rows.  [default: the preset's]")
@click.option("--batch", type=click.IntRange(1), help="Rows of one update.  [default: the preset's]")
@click.option("--heads", type=click.IntRange(1), help="Attention heads.  [default: the preset's]")
@click.option("--temporal-position", is_flag=True, help="Learn a position a time step: for tokens without time code.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Heads with other initial weights.")
@click.option("--split-seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--memory-mb", type=click.IntRange(1), default=4096, show_default=True, help="Bound on tokens in memory.")
@_device_option
@_save_option
@_json_option
def attentive_command(
    store: str,
    label: str,
    groups: tuple[str, ...],
    preset: str,
    rates: tuple[float, ...],
    decays: tuple[float, ...],
    epochs: int | None,
    batch: int | None,
    heads: int | None,
    temporal_position: bool,
    seeds: int,
    split_seed: int,
    memory_mb: int,
    device: str,
    save: Path | None,
    as_json: bool,
) -> None:
    """Fit attentive heads on all tokens of STORE: a grid of learning rates, weight decays and seeds in one pass.

    The setting is chosen on validation videos; its heads, one a seed, are scored on test videos once.

    \b
    Examples:
      coldframe-probe attentive features.zarr --label action
      coldframe-probe attentive features.zarr --label action --preset vjepa2-d1 --lr 3e-4 --wd 0.1 --save head.st
    """
    from coldframe.probes.attentive import Options, attentive_probe
    from coldframe.probes.attentive_report import to_dict, to_text
    from coldframe.probes.predict import attentive_card
    from coldframe.probes.saved import require_writable, save_probe

    if save is not None:
        require_writable(save)
    opened = open_store(store)
    options = Options(
        heads=heads,
        rates=rates or None,
        weight_decays=decays or None,
        epochs=epochs,
        batch=batch,
        temporal_position=temporal_position,
        device=device,
        memory_bytes=memory_mb << 20,
    )
    passes = epochs or PRESETS[preset].epochs
    with progress_bar("Training", passes * len(opened.ok_rows())) as on_rows:
        report = attentive_probe(
            opened,
            label=label,
            groups=groups,
            preset=PRESETS[preset],
            options=options,
            seeds=range(seeds),
            split_seed=split_seed,
            on_rows=on_rows,
        )
    if save is not None:
        save_probe(save, *attentive_card(report, _CREATED_BY))
    click.echo(json.dumps(to_dict(report), allow_nan=False) if as_json else to_text(report))


@click.command("logistic")
@click.argument("store", type=click.Path())
@_label_options
@_features_option
@click.option(
    "--strength", "-C", "strengths", type=click.FloatRange(0, min_open=True), multiple=True, help="Grid of C."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="First split seed.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of splits.")
@_save_option
@_json_option
def logistic_command(
    store: str,
    label: str,
    groups: tuple[str, ...],
    features: FeatureKind,
    strengths: tuple[float, ...],
    seed: int,
    seeds: int,
    save: Path | None,
    as_json: bool,
) -> None:
    """Fit a multinomial logistic linear probe on STORE, C chosen on validation from 45 values by default.

    \b
    Examples:
      coldframe-probe logistic features.zarr --label action
      coldframe-probe logistic features.zarr --label action --features mean -C 0.1 -C 1 --save head.safetensors
    """
    from coldframe.probes.logistic import STRENGTHS
    from coldframe.probes.readouts import logistic_dict, logistic_probe, logistic_text
    from coldframe.probes.saved import require_writable, save_probe

    if save is not None:
        require_writable(save)
    opened = open_store(store)
    with progress_bar("Reading features", len(opened.ok_rows())) as on_rows:
        report = logistic_probe(
            opened,
            label=label,
            groups=groups,
            features=features,
            strengths=strengths or STRENGTHS,
            seeds=range(seed, seed + seeds),
            on_rows=on_rows,
        )
    if save is not None:
        save_probe(save, *report.card(_CREATED_BY))
    click.echo(json.dumps(logistic_dict(report), allow_nan=False) if as_json else logistic_text(report))


@click.command("knn")
@click.argument("store", type=click.Path())
@_label_options
@_features_option
@click.option("-k", "neighbours", type=click.IntRange(1), multiple=True, help="Neighbours.  [default: 10 20 100 200]")
@_json_option
def knn_command(
    store: str,
    label: str,
    groups: tuple[str, ...],
    features: FeatureKind,
    neighbours: tuple[int, ...],
    as_json: bool,
) -> None:
    """Classify every row of STORE by its nearest rows of other sources: a sanity check that trains nothing.

    \b
    Example:
      coldframe-probe knn features.zarr --label action
    """
    from coldframe.probes.nearest import NEIGHBOURS, knn_dict, knn_text
    from coldframe.probes.readouts import knn_probe

    opened = open_store(store)
    with progress_bar("Reading features", len(opened.ok_rows())) as on_rows:
        report = knn_probe(
            opened,
            label=label,
            groups=groups,
            features=features,
            neighbours=neighbours or NEIGHBOURS,
            on_rows=on_rows,
        )
    click.echo(json.dumps(knn_dict(report), allow_nan=False) if as_json else knn_text(report))


@click.command("predict")
@click.argument("probe", type=click.Path(path_type=Path))
@click.argument("store", type=click.Path())
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="JSON lines.  [default: standard output]")
@_device_option
def predict_command(probe: Path, store: str, out: Path | None, device: str) -> None:
    """Predict with a saved PROBE on every ok row of STORE, one JSON object a row.

    A store of another recipe is refused, and the difference is shown.

    \b
    Example:
      coldframe-probe predict head.safetensors features.zarr --out predictions.jsonl
    """
    from coldframe.probes.predict import predict
    from coldframe.probes.saved import load_probe, prediction_lines, require_writable, write_lines

    if out is not None:
        require_writable(out)
    card, tensors = load_probe(probe)
    opened = open_store(store)
    rows = opened.ok_rows()
    with progress_bar("Predicting", len(rows)) as on_rows:
        lines = prediction_lines(opened, card, predict(card, tensors, opened, rows, device=device, on_rows=on_rows))
        if out is None:
            for line in lines:
                click.echo(line)
            return
        write_lines(out, lines)
    click.echo(f"{len(rows)} predictions in {out}", err=True)
