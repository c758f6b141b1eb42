"""Options that make clips by annotation, shared by `coldframe plan` and `coldframe extract`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import click

from coldframe.cli_errors import one_line
from coldframe.errors import UsageError
from coldframe.serve.annotations import annotate, read_annotations
from coldframe.serve.inputs import Inputs
from coldframe.store.plan import Plan
from coldframe.store.recipe import Recipe, Window
from coldframe.store.schema import Flag, Reason
from coldframe.store.windows import window_text

WindowName = Literal["before-start", "before-stop", "inside"]
_WINDOWS: Mapping[WindowName, Window] = {
    "before-start": "before_start",
    "before-stop": "before_stop",
    "inside": "inside",
}
DEFAULT_ANTICIPATION_S = 1.0

ANNOTATION_OPTIONS = [
    click.option(
        "--annotations",
        metavar="FILE.csv",
        help="One clip for each action in this file: columns id, video, start, stop, or EPIC-KITCHENS'.",
    ),
    click.option(
        "--window",
        type=click.Choice(get_args(WindowName)),
        help="Where such a clip ends: before the action starts; before it stops, which shows the action (V-JEPA 2's "
        "released code); or inside the action.  [default: before-start]",
    ),
    click.option(
        "--anticipation",
        type=float,
        metavar="SECONDS",
        help=f"From the end of the clip to that moment.  [default: {DEFAULT_ANTICIPATION_S:g}]",
    ),
    click.option(
        "--allow-missing-videos",
        is_flag=True,
        help="Leave out, and count, annotations of videos that are not given, instead of refusing them.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """What of the annotations and the videos makes no row.

    Attributes:
        unannotated: videos that no annotation names.
        missing: annotations of videos that were not given, by the name of the video.
    """

    unannotated: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"videos_without_annotations": self.unannotated, "annotations_of_missing_videos": dict(self.missing)}


def window_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the options say of a recipe: its `window` and `anticipation_s`.

    Raises:
        UsageError: an option that has no meaning with the others.
    """
    if options["annotations"] is None:
        chosen = [name for name in ("window", "anticipation") if options[name] is not None]
        chosen += ["allow-missing-videos"] if options["allow_missing_videos"] else []
        if chosen:
            raise UsageError(f"--{chosen[0]} needs --annotations, which name the actions. Add them, or leave it out.")
        return {}
    window = _WINDOWS[options["window"] or "before-start"]
    if window == "inside":
        return {"window": window, "anticipation_s": options["anticipation"] or 0.0}
    anticipation_s = DEFAULT_ANTICIPATION_S if options["anticipation"] is None else options["anticipation"]
    return {"window": window, "anticipation_s": anticipation_s + 0.0}  # -0.0 is another recipe


def annotated(inputs: Inputs, recipe: Recipe, options: Mapping[str, Any]) -> tuple[Inputs, LeftOut | None]:
    """`inputs` with the annotations of the file that the options name, and what makes no row; as they are without."""
    if options["annotations"] is None:
        return inputs, None
    found = annotate(
        inputs.videos,
        read_annotations(options["annotations"]),
        recipe,
        allow_missing=options["allow_missing_videos"],
    )
    return replace(inputs, videos=found.videos), LeftOut(unannotated=found.unannotated, missing=found.missing)


def annotation_counts(plan: Plan) -> dict[str, int]:
    """Rows of a plan by what became of their annotations."""
    padded = (plan.clips.flags & Flag.PADDED.value != 0) & (plan.clips.reason == Reason.NONE)
    at_front = plan.clips.flags & Flag.PADDED_FRONT.value != 0
    return {
        "annotations": len(plan.clips),
        "without_window": int((plan.clips.reason == Reason.NO_WINDOW).sum()),
        "padded_in_front": int((padded & at_front).sum()),
        "padded_behind": int((padded & ~at_front).sum()),
    }


def annotation_lines(plan: Plan, left_out: LeftOut) -> list[str]:
    """The same, and what is left out, for people."""
    found = annotation_counts(plan)
    lines = [
        f"window    {window_text(plan.recipe)}",
        f"actions   {found['annotations']}: {found['padded_in_front']} padded with the first frame, "
        f"{found['padded_behind']} with the last, {found['without_window']} without a window, which are failed rows",
    ]
    return lines + left_out_lines(left_out)


def left_out_lines(left_out: LeftOut) -> list[str]:
    """What makes no row, for people; no line if nothing is left out."""
    lines = []
    if left_out.missing:
        names = one_line(", ".join(list(left_out.missing)[:5]))
        lines.append(
            f"left out  {sum(left_out.missing.values())} annotations of {len(left_out.missing)} videos that were not "
            f"given: {names}{', ...' if len(left_out.missing) > 5 else ''}"
        )
    if left_out.unannotated:
        lines.append(f"left out  {left_out.unannotated} videos that no annotation names")
    return lines
