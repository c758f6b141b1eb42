"""Windows of annotations: what they are in words, and that no clip shows a frame which its window does not allow."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from coldframe.store.plan import Column
from coldframe.store.recipe import Recipe

SHOWS_THE_ACTION = (
    "ends {:g} s before the STOP of the action, as in V-JEPA 2's released code (vjepa2#173): clips show the action "
    "itself. This is not anticipation, and its numbers belong beside no others"
)


def window_text(recipe: Recipe) -> str:
    """What a clip of the recipe's window does, for people; empty for clips that cut all of a video."""
    if recipe.window == "before_start":
        return f"ends {recipe.anticipation_s:g} s before the start of the action"
    if recipe.window == "before_stop":
        return SHOWS_THE_ACTION.format(recipe.anticipation_s)
    return "lies inside the action" if recipe.window == "inside" else ""


def leaking_rows(
    recipe: Recipe, annotations: Mapping[str, Column], frame_pts_s: NDArray[np.float64], n_real: NDArray[np.int16]
) -> NDArray[np.int64]:
    """Rows of which a frame lies outside what their window allows, ascending; none if all is well.

    No frame of a window `before_start` may lie behind start - anticipation, of one `before_stop` behind stop -
    anticipation, and of one `inside` before the start or behind the stop. Padding counts, as it shows a frame too.

    Args:
        recipe: names the window and the anticipation.
        annotations: `start_s` and `stop_s` (n,) of the rows, in seconds.
        frame_pts_s: (n, T) times of the rows' frames.
        n_real: (n,) rows with 0 have no frames.
    """
    if recipe.window == "grid":
        return np.empty(0, np.int64)
    start, stop = (np.asarray(annotations[name], np.float64)[:, None] for name in ("start_s", "stop_s"))
    if recipe.window == "inside":
        outside = ~((frame_pts_s >= start) & (frame_pts_s <= stop))
    else:
        anchor = start if recipe.window == "before_start" else stop
        outside = ~(frame_pts_s <= anchor - recipe.anticipation_s)
    return np.flatnonzero((np.asarray(n_real) > 0) & outside.any(axis=1))
