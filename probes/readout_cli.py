"""Commands of `coldframe-probe` for readouts beyond ridge: attentive, logistic, knn, predict."""

import json
import time
from pathlib import Path

import click

from coldframe.probes import options
from coldframe.probes.features import FeatureKind
from coldframe.probes.page import write_page
from coldframe.probes.presets import PRESETS
from coldframe.probes.report import to_dict, to_text
from coldframe.probes.saved import save_probe
from coldframe.progress import progress_bar
from coldframe.store import open_store


@click.command("attentive")
@options.store_argument
@options.label_option
@options.labels_option
@options.groups_option
@click.option("--preset", type=click.Choice(list(PRESETS)), default="levjepa", show_default=True)
@click.option("--lr", "rates", type=options.FiniteRange(0, min_open=True), multiple=True, help="Replaces the preset's.")
@click.option("--wd", "decays", type=options.FiniteRange(0), multiple=True, help="Replaces the preset's weight decays.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the train rows.  [default: the preset's]")
@click.option("--batch", type=click.IntRange(1), help="Rows of one update.  [default: the preset's]")
@click.option("--heads", type=click.IntRange(1), help="Attention heads.  [default: the preset's]")
@click.option("--temporal-position", is_flag=True, help="Learn a position a time step: for tokens without time code.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Heads with other initial weights.")
@click.option("--split-seed", type=click.IntRange(0), default=0, show_default=True)
@options.sealed_split
@click.option("--memory-mb", type=click.IntRange(1), default=4096, show_default=True, help="Bound on tokens in memory.")
@options.device_option
@options.outputs
def attentive_command(
    store: str,
    label: str,
    labels_csv: str | None,
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
    split_file: str | None,
    again: str | None,
    memory_mb: int,
    device: str,
    report_file: str | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Fit attentive heads on all tokens of STORE: a grid of learning rates, weight decays and seeds in one pass.

    The setting is chosen on validation videos; its heads, one a seed, are scored on test videos once.

    \b
    Examples:
      coldframe-probe attentive features.zarr --label action
      coldframe-probe attentive features.zarr --label action --split split.json --report report.html
      coldframe-probe attentive features.zarr --label action --preset vjepa2-d1 --lr 3e-4 --wd 0.1 --save head.st
    """
    from coldframe.probes.attentive import Options, attentive_probe
    from coldframe.probes.predict import attentive_card

    options.require_outputs(report_file, save)
    started = time.perf_counter()
    opened = options.labelled(open_store(store), labels_csv)
    changed = Options(
        heads=heads,
        rates=tuple(dict.fromkeys(rates)) or None,  # one named twice would count as another seed
        weight_decays=tuple(dict.fromkeys(decays)) or None,
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
            options=changed,
            seeds=range(seeds),
            split_seed=split_seed,
            split=options.manifest_of(split_file, "--group", "--split-seed"),
            again=again,
            on_rows=on_rows,
        )
    with options.shown(json.dumps(to_dict(report), allow_nan=False) if as_json else to_text(report)):
        if save is not None:
            save_probe(save, *attentive_card(report, options.CREATED_BY))
        if report_file is not None:
            write_page(report_file, opened, report, seconds={"probe": time.perf_counter() - started})


@click.command("logistic")
@options.store_argument
@options.label_option
@options.labels_option
@options.groups_option
@options.features_option
@options.strengths_option
@options.split_seeds
@options.sealed_split
@options.outputs
def logistic_command(
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
    """Fit a multinomial logistic linear probe on STORE, C chosen on validation from 45 values by default.

    \b
    Examples:
      coldframe-probe logistic features.zarr --label action
      coldframe-probe logistic features.zarr --label action --split split.json --report report.html
      coldframe-probe logistic features.zarr --label action --features mean -C 0.1 -C 1 --save head.safetensors
    """
    from coldframe.probes.logistic import STRENGTHS
    from coldframe.probes.logistic_probe import logistic_probe

    options.require_outputs(report_file, save)
    started = time.perf_counter()
    opened = options.labelled(open_store(store), labels_csv)
    with progress_bar("Reading features", len(opened.ok_rows())) as on_rows:
        report = logistic_probe(
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
            from coldframe.probes.predict import logistic_card  # and PyTorch with it

            save_probe(save, *logistic_card(report, options.CREATED_BY))
        if report_file is not None:
            write_page(report_file, opened, report, seconds={"probe": time.perf_counter() - started})


@click.command("knn")
@options.store_argument
@options.label_option
@options.labels_option
@options.groups_option
@options.features_option
@click.option("-k", "neighbours", type=click.IntRange(1), multiple=True, help="Neighbours.  [default: 10 20 100 200]")
@options.json_option
def knn_command(
    store: str,
    label: str,
    labels_csv: str | None,
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
    from coldframe.probes.nearest import NEIGHBOURS, knn_dict, knn_probe, knn_text

    opened = options.labelled(open_store(store), labels_csv)
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
@options.store_argument
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="JSON lines.  [default: standard output]")
@options.device_option
def predict_command(probe: Path, store: str, out: Path | None, device: str) -> None:
    """Predict with a saved PROBE on every ok row of STORE, one JSON object a row.

    A store of another recipe is refused, and the difference is shown.

    \b
    Example:
      coldframe-probe predict head.safetensors features.zarr --out predictions.jsonl
    """
    from coldframe.probes.predict import predict
    from coldframe.probes.saved import load_probe, prediction_lines, require_lines_place, write_lines

    if out is not None:
        require_lines_place(out)
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
