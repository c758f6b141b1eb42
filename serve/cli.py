"""Commands `coldframe plan` and `coldframe extract`."""

import json
from dataclasses import replace
from typing import Any

import click
import numpy as np

from coldframe.cli_errors import one_line
from coldframe.export import Bundle, open_bundle
from coldframe.progress import progress_bar
from coldframe.serve.annotation_options import (
    ANNOTATION_OPTIONS,
    LeftOut,
    annotated,
    annotation_counts,
    annotation_lines,
    window_options,
)
from coldframe.serve.destination import require_store_path
from coldframe.serve.estimate import Estimate, estimate
from coldframe.serve.execution import ENGINES, Execution
from coldframe.serve.extract import extract, make_recipe, plan_videos, token_geometry
from coldframe.serve.extract_text import duration, extract_json, extract_text
from coldframe.serve.gpu_runtime import GpuBackend
from coldframe.serve.inputs import Inputs, collect_inputs, passed_over
from coldframe.serve.parts import Part
from coldframe.serve.preview import Preview, preview
from coldframe.serve.run_options import BACKEND_OPTIONS, Command, run_options, with_options
from coldframe.serve.runtime import PRECISIONS, Backend, require_variant
from coldframe.store.plan import Plan
from coldframe.store.recipe import CONTROLS, Recipe
from coldframe.store.schema import STORAGE_DTYPES, TOKEN_TIERS, Flag, Status
from coldframe.store.text import size_to_text


def recipe_options(command: Command) -> Command:
    """The arguments that decide what is extracted, shared by `plan` and `extract`."""
    options = [
        click.argument("paths", nargs=-1, required=True, metavar="PATH..."),
        click.option("--encoder", required=True, metavar="DIR", help="Bundle written by `coldframe export`."),
        click.option(
            "--tokens",
            type=click.Choice(TOKEN_TIERS),
            default="cls",
            show_default=True,
            help="Tokens to keep: one per clip; plus one mean a frame; plus the 2 x 2 pooled grid; or all.",
        ),
        click.option("--fps", type=float, default=7.5, show_default=True, help="Frames per second inside a clip."),
        click.option("--frames", type=int, help="Frames a clip.  [default: the encoder's]"),
        click.option("--hop", type=int, help="Clip frames between two clip starts.  [default: --frames, no overlap]"),
        click.option(
            "--sampling",
            type=click.Choice(["grid", "stride"]),
            default="grid",
            show_default=True,
            help="grid: the frame nearest to each time k/fps. stride: every n-th frame, as the reference notebook.",
        ),
        click.option(
            "--dtype",
            type=click.Choice(STORAGE_DTYPES),
            default="float16",
            show_default=True,
            help="Storage type of the tokens. int8: patch tokens only, each with a scale; for full and grid7.",
        ),
        click.option(
            "--control",
            type=click.Choice(CONTROLS),
            default="none",
            show_default=True,
            help="Order of a clip's frames: their own, or that of a negative control (into a store of its own).",
        ),
        click.option(
            "--baselines",
            is_flag=True,
            help="Also keep colour histograms and motion of the same frames: what an encoder has to beat.",
        ),
        *ANNOTATION_OPTIONS,
        *BACKEND_OPTIONS,
        click.option(
            "--precision",
            type=click.Choice(PRECISIONS),
            default="fp32",
            show_default=True,
            help="Arithmetic of the encoder; part of the recipe. bf16 is fastest with --backend openvino.",
        ),
        click.option(
            "--limit",
            type=click.IntRange(1),
            metavar="N",
            help="Take the first N videos only, in the order of their paths.  [default: all]",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text."),
    ]
    return with_options(command, options)


def _prepare(
    paths: tuple[str, ...], encoder: str, options: dict[str, Any]
) -> tuple[Bundle, Recipe, Inputs, LeftOut | None]:
    bundle = open_bundle(encoder)
    recipe = make_recipe(
        bundle,
        fps=options["fps"],
        frames=options["frames"],
        hop_frames=options["hop"],
        sampling=options["sampling"],
        tokens=options["tokens"],
        dtype=options["dtype"],
        control=options["control"],
        baselines="colour+motion" if options["baselines"] else "none",
        precision=options["precision"],
        **window_options(options),
    )
    require_variant(bundle, options["backend"], recipe.precision, options["device"])
    token_geometry(bundle, recipe.tokens)  # refuses a tier that the encoder's grid cannot give, before any work
    inputs, left_out = annotated(collect_inputs(paths), recipe, options)
    return bundle, recipe, replace(inputs, videos=inputs.videos[: options["limit"]]), left_out


@click.command("plan")
@recipe_options
def plan_command(
    paths: tuple[str, ...], encoder: str, backend: Backend | GpuBackend, as_json: bool, **options: Any
) -> None:
    """Show what an extraction would do: videos, clips, bytes and hours. Nothing is written.

    PATH is a video, a folder, or a .csv or .parquet manifest with a `path` column and optional `source`, `label` and
    other columns.

    \b
    Examples:
      coldframe plan videos/ --encoder levjepa-large/
      coldframe plan train.csv --encoder levjepa-large/ --tokens full --json
      coldframe plan videos/ --encoder levjepa-large/ --annotations actions.csv --anticipation 1
    """
    bundle, recipe, inputs, left_out = _prepare(paths, encoder, {**options, "backend": backend})
    plan = plan_videos(inputs.videos, recipe, progress_bar)
    found = estimate(plan, bundle, backend=backend, device=options["device"])
    _show_plan(plan, found, inputs, bundle, as_json, left_out)


def _show_plan(
    plan: Plan,
    found: Estimate,
    inputs: Inputs,
    bundle: Bundle,
    as_json: bool,
    left_out: LeftOut | None,
    rows: Preview | None = None,
) -> None:
    """Print the plan, and with `rows` what it means for a store; leave with 3 if rows are known to fail."""
    if as_json:
        answer = {"recipe": plan.recipe.to_dict(), "recipe_id": plan.recipe.recipe_id, "plan_id": plan.plan_id}
        more: dict[str, Any] = {"store_rows": rows.to_dict()} if rows else {}
        more |= {**annotation_counts(plan), **left_out.to_dict()} if left_out else {}
        click.echo(json.dumps({**answer, **found.to_dict(), **more, "ignored_files": inputs.ignored}))
    else:
        click.echo(_plan_text(plan, found, inputs, bundle, left_out))
        if rows:
            click.echo(
                f"store     {rows.rows} rows, {rows.new_rows} of them new; {rows.rows_to_extract} to extract. Nothing "
                "was written."
            )
    if found.failed_clips:
        raise SystemExit(3)


def _plan_text(plan: Plan, found: Estimate, inputs: Inputs, bundle: Bundle, left_out: LeftOut | None) -> str:
    lines = [
        f"encoder   {bundle.name}{' (untrained)' if bundle.untrained else ''}, recipe {plan.recipe.recipe_id[:12]}",
        f"videos    {found.videos}, {found.failed_videos} unusable, {found.video_seconds:.1f} s usable",
        f"clips     {found.clips} of {plan.recipe.frames} frames at {plan.recipe.fps:g} fps",
    ]
    if found.copies:
        lines.insert(2, f"copies    {found.copies} more files hold the bytes of one of these and share its rows")
    lines += annotation_lines(plan, left_out) if left_out else []
    for tier, size in found.tier_bytes.items():
        lines.append(f"tokens    {tier:<10}{size_to_text(size)}{'  <- chosen' if tier == plan.recipe.tokens else ''}")
    if found.hours is not None:
        lines.append(
            f"time      about {duration(found.hours * 3600)} with one worker (measured here: decode "
            f"{found.decode_seconds_per_clip:.3f} s, encode {found.encode_seconds_per_clip:.3f} s a clip)"
        )
    if inputs.ignored:
        lines.append(f"ignored   {passed_over(inputs.ignored)} (name a file to have it tried)")
    for video in range(len(plan.videos)):
        if plan.videos.status[video] != Status.OK:
            lines.append(f"unusable  {one_line(f'{plan.videos.path[video]}: {plan.videos.error[video]}')}")
        elif plan.videos.flags[video] & Flag.TRUNCATED:
            promised = plan.videos.promised_s[video]
            stated = f"; the header promises {promised:.2f} s" if np.isfinite(promised) else ""
            usable = f"{plan.videos.duration_s[video]:.2f} s are usable{stated}"
            lines.append(f"cut short {one_line(plan.videos.path[video])}: {usable}")
    return "\n".join(lines)


@click.command("extract")
@recipe_options
@click.option(
    "--store",
    "store_path",
    required=True,
    metavar="S.zarr",
    help="Store to write, or to finish: a folder, or s3://BUCKET/PREFIX.",
)
@click.option("--append", is_flag=True, help="Add those of the videos that the store lacks, behind the ones it has.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, as `coldframe plan` does, and write nothing.")
@click.option(
    "--part",
    metavar="I/N",
    help="Only the I-th of N equal parts, counted from 1: for job arrays, whose jobs share the store.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="local",
    show_default=True,
    help="ray: workers are actors of the cluster at RAY_ADDRESS, or of a new one on this machine.",
)
@run_options
def extract_command(
    paths: tuple[str, ...],
    encoder: str,
    as_json: bool,
    store_path: str,
    part: str | None,
    append: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Extract tokens of videos into a Zarr store. Run the same command again to resume after any interruption.

    PATH is a video, a folder, or a .csv or .parquet manifest with a `path` column and optional `source`, `label` and
    other columns, which are carried into the store. Every planned clip gets a row: ok, or failed with a reason.

    With --part, a job extracts its part and exits by what is in it; the one that finds all parts there seals the store.
    Jobs need no contact, but a file system with locks. To index the videos only once, let one job start first. With
    --engine ray, store, encoder and videos must have the same paths on every node. --part and --append cannot be used
    with a store on s3://.

    With --annotations, every action in the file is a row, in the order of the videos and then of the windows: failed,
    with reason no_window, where the video has no frame for it. docs/anticipation.md says which frames a row has.

    Exit codes: 0 done, 1 failed, 2 usage, 3 finished but some inputs failed (`coldframe info S --failures`).

    \b
    Examples:
      coldframe extract videos/ --encoder levjepa-large/ --store videos.zarr
      coldframe extract train.csv --encoder levjepa-large/ --store train.zarr --tokens cls+mean --workers 2
      coldframe extract videos/ --encoder levjepa-large/ --store fast.zarr --backend openvino --precision bf16
      coldframe extract new_videos/ --encoder levjepa-large/ --store videos.zarr --append
      coldframe extract videos/ --encoder nano/ --store s.zarr --part $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT
      coldframe extract videos/ --encoder nano/ --store before.zarr --annotations EPIC_100_train.csv --tokens full
      RAY_ADDRESS=head:6379 coldframe extract videos/ --encoder nano/ --store s.zarr --engine ray --workers 8
    """
    share, how = None if part is None else Part.parse(part), Execution.from_options(options)
    require_store_path(store_path, append=append, in_parts=share is not None)
    bundle, recipe, inputs, left_out = _prepare(paths, encoder, options)
    if dry_run:
        plan = plan_videos(inputs.videos, recipe, progress_bar, how.limits)
        rows = preview(plan, store_path, append=append)
        found = estimate(plan, bundle, backend=how.backend, device=how.device)
        _show_plan(plan, found, inputs, bundle, as_json, left_out, rows)
        return
    done = extract(inputs.videos, bundle, store_path, recipe, progress=progress_bar, how=how, part=share, append=append)
    click.echo(extract_json(done, inputs, left_out) if as_json else extract_text(done, bundle, left_out))
    raise SystemExit(done.exit_code)
