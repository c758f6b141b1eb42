"""`coldframe build-engine`: a TensorRT plan into a bundle."""

import json
from pathlib import Path

import click

from coldframe.export.engine import FLAVOURS, Flavour
from coldframe.progress import announce


@click.command("build-engine")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--flavour", required=True, type=click.Choice(FLAVOURS), help="Library that builds and runs the engine.")
@click.option("--precision", required=True, type=click.Choice(["fp32", "bf16", "fp16"]), help="Arithmetic.")
@click.option(
    "--compute-capability", metavar="X.Y", help="Target of a tensorrt_rtx engine, such as 8.9.  [default: GPU here]"
)
@click.option("--max-batch", default=8, show_default=True, type=click.IntRange(1), help="Most clips in one execution.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def build_engine_command(
    bundle: Path, flavour: Flavour, precision: str, compute_capability: str | None, max_batch: int, as_json: bool
) -> None:
    """Build a TensorRT engine from a bundle's graph, into the bundle.

    tensorrt builds on the GPU that will run the engine. tensorrt_rtx builds for any GPU of a compute capability, on a
    machine without a GPU too. An engine runs with the library version, weights, precision and GPU that it was built
    for; anything else is refused before a video is read. Parity is measured when it is first opened on a GPU.

    \b
    Examples:
      coldframe build-engine encoders/large --flavour tensorrt --precision bf16
      coldframe build-engine encoders/large --flavour tensorrt_rtx --precision fp16 --compute-capability 8.9
    """
    from coldframe.export.bundle_files import open_bundle
    from coldframe.export.engine_build import build_engine

    engine = build_engine(
        open_bundle(bundle),
        flavour=flavour,
        precision=precision,
        compute_capability=compute_capability,
        max_batch=max_batch,
        say=announce,
    )
    spec = engine.spec
    if as_json:
        click.echo(
            json.dumps({"engine": str(engine.path), "bytes": engine.plan_bytes, "key": spec.key, **spec.to_dict()})
        )
        return
    where = spec.gpu or "any GPU"
    click.echo(f"engine      {engine.path}, {engine.plan_bytes / 1e6:,.1f} MB")
    click.echo(f"library     {spec.flavour} {spec.version}, {spec.precision}")
    click.echo(f"runs on     {where} of compute capability {spec.compute_capability}")
    click.echo(f"batch       1 to {spec.profile.largest} clips, fastest at {spec.profile.best}; more are split")
    click.echo("parity      not measured yet: the first opening on the GPU does, and refuses an engine over its budget")
