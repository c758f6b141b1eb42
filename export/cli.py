"""`coldframe export`: make an encoder bundle."""

import json
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def export_command(source: str, out: Path, random_init: int | None, as_json: bool) -> None:
    """Export a frozen video encoder to a bundle with measured parity.

    SOURCE is a folder with config.json and model.safetensors as released, or, with --random-init, a size:
    levjepa-nano, levjepa-tiny, levjepa-small, levjepa-base or levjepa-large.

    The bundle holds the weights, an ONNX graph that takes uint8 clips, and how far that graph is from the
    PyTorch reference. A graph over its budget is not exported.

    \b
    Examples:
      coldframe export ./LeVJEPA-VideoMix-Large --out encoders/large
      coldframe export levjepa-nano --random-init 0 --out encoders/nano
    """
    from coldframe.export.bundle import export_bundle

    existed = out.exists()
    bundle = export_bundle(source, out, random_init=random_init, say=announce)
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
    for key, measured in facts["parity"].items():
        lines.append(
            f"parity      {key}: cosine to PyTorch cls {measured['cls_cosine']:.7f}, patch mean "
            f"{measured['patch_cosine_mean']:.7f}, worst {measured['patch_cosine_worst']:.7f}; "
            f"max abs {measured['max_abs']:.2g}; earlier frames change by {measured['prefix']['max_abs']:.2g}"
        )
    if facts["untrained"]:
        lines.append(f"UNTRAINED   random weights from seed {facts['random_init']}: fit for trial runs only.")
    if facts["non_commercial"]:
        lines.append("NON-COMMERCIAL   the licence limits commercial use: read it before you use the features.")
    return "\n".join(lines)
