"""Text of an extraction's result, for people and as JSON."""

import json

from coldframe.cli_errors import one_line
from coldframe.export import Bundle
from coldframe.serve.annotation_options import LeftOut, left_out_lines
from coldframe.serve.extract import Extraction
from coldframe.serve.inputs import Inputs
from coldframe.serve.stages import STAGES, StageSeconds
from coldframe.store.text import path_to_text


def extract_json(done: Extraction, inputs: Inputs, left_out: LeftOut | None) -> str:
    """What was done as one JSON object."""
    return json.dumps(
        {
            "store": path_to_text(done.store),
            "rows": done.rows,
            "ok": done.ok,
            "failed": done.failed,
            "resumed_rows": done.resumed_rows,
            "seconds": round(done.seconds, 3),
            "stages": done.stages.to_dict(),
            "part": None if done.part is None else str(done.part),
            "sealed": done.sealed,
            "ignored_files": inputs.ignored,
            **(left_out.to_dict() if left_out else {}),
        }
    )


def extract_text(done: Extraction, bundle: Bundle, left_out: LeftOut | None) -> str:
    """What was done, in lines."""
    new = done.rows - done.resumed_rows
    store = one_line(path_to_text(done.store))
    lines = [
        f"{store}: {done.rows} rows, {done.ok} ok, {done.failed} failed "
        f"({new} extracted now in {duration(done.seconds)})"
    ]
    if done.part is not None:
        state = "the store is complete" if done.sealed else "other parts are not there yet"
        lines.append(f"part {done.part} is done; {state}.")
    if done.stages.bound is not None:
        lines.append(_stages_text(done.stages))
    if bundle.untrained:
        lines.append(f"{bundle.name} is untrained: these features test the machinery and mean nothing.")
    if bundle.non_commercial:
        lines.append(f"The encoder's licence ({bundle.licence}) forbids commercial use, of these features too.")
    lines += left_out_lines(left_out) if left_out else []
    if done.failed:
        lines.append(f"See what failed and why: coldframe info {store} --failures")
    return "\n".join(lines)


def _stages_text(stages: StageSeconds) -> str:
    shares = [f"{stage} {duration(getattr(stages, stage))} ({stages.busy(stage):.0%} busy)" for stage in STAGES]
    return f"stages: {', '.join(shares)}; {stages.bound} bounds"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
