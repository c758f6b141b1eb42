"""`coldframe export`: make an encoder bundle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coldframe.progress import announce

if TYPE_CHECKING:
    from coldframe.export.bundle import Bundle


@click.command("export")
@click.argument("source")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to make; must not exist yet.")
@click.option(
    "--random-init",
    type=int,
    metavar="SEED",
    help="Use random weights from this seed: untrained, for trials and tests.",
)
@click.option(
    "--precisions",
    default="fp32",
    show_default=True,
    metavar="LIST",
    help="Arithmetics to offer, comma-separated: fp32, and any of fp16 and bf16.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def export_command(source: str, out: Path, random_init: int | None, precisions: str, as_json: bool) -> None:
    """Export a frozen video encoder to a bundle with measured parity.

    SOURCE is a folder with config.json and model.safetensors as released, or, with --random-init, a size:
    levjepa-nano, levjepa-tiny, levjepa-small, levjepa-base or levjepa-large.

    The bundle holds the weights, an ONNX graph for each precision that takes uint8 clips, and how far each is from
    the PyTorch reference in every runtime installed. A precision over its budget is not exported.

    \b
    Examples:
      coldframe export ./LeVJEPA-VideoMix-Large --out encoders/large
      coldframe export ./LeVJEPA-VideoMix-Large --out encoders/large --precisions fp32,bf16
      coldframe export levjepa-nano --random-init 0 --out encoders/nano
    """
    from coldframe.export.bundle import export_bundle

    existed = out.exists()
    bundle = export_bundle(source, out, random_init=random_init, precisions=precisions.split(","), say=announce)
    facts = _facts(bundle, unchanged=existed)
    click.echo(json.dumps(facts) if as_json else _text(facts))


def _facts(bundle: "Bundle", *, unchanged: bool) -> dict[str, Any]:
    return {
        "bundle": str(bundle.path),
        "unchanged": unchanged,
        "name": bundle.name,
        "untrained": bundle.untrained,
        "random_init": bundle.random_init,
        "parameters": bundle.config.parameters,
        "weights_sha256": bundle.weights_sha256,
        "licence": bundle.licence,
        "non_commercial": bundle.non_commercial,
        "bytes": sum(facts["bytes"] for facts in bundle.files.values()),
        "precisions": list(bundle.precisions),
        "parity": bundle.parity,
    }


def _text(facts: dict[str, Any]) -> str:
    lines = [
        f"bundle      {facts['bundle']}" + (" (already there, verified, unchanged)" if facts["unchanged"] else ""),
        f"encoder     {facts['name']}, {facts['parameters']:,} parameters, {facts['bytes'] / 1e6:,.0f} MB",
        f"weights     sha256 {facts['weights_sha256']}",
        f"licence     {facts['licence']}",
    ]
    lines += [f"parity      {_parity_line(key, measured)}" for key, measured in facts["parity"].items()]
    if facts["untrained"]:
        lines.append(f"UNTRAINED   random weights from seed {facts['random_init']}: fit for trial runs only.")
    if facts["non_commercial"]:
        lines.append("NON-COMMERCIAL   the licence limits commercial use: read it before you use the features.")
    return "\n".join(lines)


def _parity_line(key: str, measured: Mapping[str, Any]) -> str:
    from coldframe.export.parity import over_budget

    misses = over_budget(measured, key.partition("/")[2])
    return (
        f"{key}: cosine to PyTorch cls {measured['cls_cosine']:.7f}, patch mean {measured['patch_cosine_mean']:.7f}, "
        f"worst {measured['patch_cosine_worst']:.7f}; max abs {measured['max_abs']:.2g}; earlier frames change by "
        f"{measured['prefix']['max_abs']:.2g}: {'NOT MET, refused: ' + '; '.join(misses) if misses else 'met'}"
    )


@click.command("parity")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def parity_command(bundle: Path, as_json: bool) -> None:
    """Measure a bundle again against its PyTorch reference, in every runtime and precision that runs here.

    Nothing is written. Exit codes: 0 all within budget, 1 one or more over it or a damaged bundle, 2 usage.

    \b
    Examples:
      coldframe parity encoders/large
      coldframe-probe parity encoders/large --json
    """
    from coldframe.export.bundle_files import open_bundle, verify_bundle
    from coldframe.export.checkpoint import load_reference
    from coldframe.export.variants import measure_variants

    opened = open_bundle(bundle)
    verify_bundle(opened)
    measured = list(measure_variants(opened.path, load_reference(opened.path), opened.precisions, announce))
    within = all(not one.misses for one in measured)
    if as_json:
        variants = [
            {"variant": one.key, "met": not one.misses, "misses": one.misses, "parity": one.record}
            for one in measured
            if one.record is not None
        ]
        absent = {one.key: one.absent for one in measured if one.record is None}
        click.echo(json.dumps({"bundle": str(opened.path), "met": within, "variants": variants, "absent": absent}))
    else:
        for one in measured:
            click.echo(f"{one.key}: absent: {one.absent}" if one.record is None else _parity_line(one.key, one.record))
    if not within:
        raise SystemExit(1)
