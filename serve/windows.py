"""Windows: the clip that each annotation of a video makes. Fractions only, so that no rounding moves a frame.

A window of T positions at 1 / fps seconds lies on a grid of its own, is half-open as every clip, and each position
takes the frame that is on display then: the latest whose pts is not behind it. With A = anticipation:

    before_start   positions start - A - T / fps, ..., start - A - 1 / fps
    before_stop    the same before stop - A: the anchor of V-JEPA 2's released code (vjepa2#173), which shows the action
    inside         T / fps seconds in the middle of [start, stop), or from the start where the action is shorter;
                   frames that begin in [start, stop) only

A window that begins before the video repeats its first frame in front (EPIC-KITCHENS' released loaders do), and one
that is longer than its action repeats the last frame of it behind. `n_real` counts the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

import numpy as np
from numpy.typing import NDArray

from coldframe.serve.sampling import SampledClips, exact_fps
from coldframe.store.plan import Column
from coldframe.store.recipe import Recipe
from coldframe.store.schema import Flag


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """One action. Seconds are exact, and count from the first presentable frame of the video.

    Attributes:
        id: unique in its file.
        video: name of the video: its path, its file name, or that without the ending.
        start_s, stop_s: when the action begins and is over, `start_s <= stop_s`.
        columns: the other cells, as text.
    """

    id: str
    video: str
    start_s: Fraction
    stop_s: Fraction
    columns: Mapping[str, str] = field(default_factory=dict)


def window_start(start_s: Fraction, stop_s: Fraction, recipe: Recipe) -> Fraction:
    """Where the window of an action begins, in seconds; below 0 if that is before the video."""
    span = recipe.frames / exact_fps(recipe)
    if recipe.window == "inside":
        return max(start_s, (start_s + stop_s - span) / 2)
    anchor = start_s if recipe.window == "before_start" else stop_s
    return anchor - Fraction(repr(recipe.anticipation_s)) - span


def sample_windows(
    pts: NDArray[np.int64], time_base: Fraction, frame_duration: int, recipe: Recipe, actions: Sequence[Annotation]
) -> SampledClips:
    """One clip for each of `actions`, in their order.

    An action without a window has times NaN, frame indices -1 and `n_real` 0: one that starts behind the end of the
    video, whose window ends there, of which no position lies in the video, or inside which no frame begins.

    Args:
        pts: (N,) int64 ticks, strictly increasing, N >= 1.
        time_base: seconds a tick.
        frame_duration: how long the last frame is shown, in ticks.
        recipe: gives `window`, `anticipation_s`, `fps` and `frames`.
        actions: annotations of this video.
    """
    ticks = pts - pts[0]
    end_s = (int(ticks[-1]) + frame_duration) * time_base
    step_s = 1 / exact_fps(recipe)
    count, frames = len(actions), recipe.frames
    start = np.full(count, np.nan)
    index = np.full((count, frames), -1, np.int32)
    n_real, flags = np.zeros(count, np.int16), np.zeros(count, np.uint32)
    for row, action in enumerate(actions):
        begin = window_start(action.start_s, action.stop_s, recipe)
        if action.start_s >= end_s or (recipe.window != "inside" and begin + frames * step_s > end_s):
            continue
        positions = [begin + k * step_s for k in range(frames)]
        if recipe.window == "inside":
            shown, real = _inside(ticks, time_base, positions, action, end_s)
        else:
            shown, real = _shown(ticks, time_base, positions), np.array([position >= 0 for position in positions])
            seen_s = int(ticks[shown].max()) * time_base
            assert not real.any() or seen_s <= begin + frames * step_s, f"{action.id}: a frame behind the window's end"
        if not real.any():
            continue
        start[row], index[row], n_real[row] = float(begin), shown, real.sum()
        flags[row] = _flags(shown, real)
    pts_s = np.where(index >= 0, ticks[index] * float(time_base.numerator) / time_base.denominator, np.nan)
    return SampledClips(
        start_s=start,
        end_s=start + float(frames * step_s),
        frame_index=index,
        frame_pts_s=pts_s,
        n_real=n_real,
        flags=flags,
    )


def _shown(ticks: NDArray[np.int64], time_base: Fraction, positions: Sequence[Fraction]) -> NDArray[np.int64]:
    """(T,) the frame on display at each position; the first one before the video."""
    latest = np.array([floor(position / time_base) for position in positions], np.int64)
    return np.maximum(np.searchsorted(ticks, latest, side="right") - 1, 0)


def _inside(
    ticks: NDArray[np.int64], time_base: Fraction, positions: Sequence[Fraction], action: Annotation, end_s: Fraction
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(T,) frames that begin inside the action, and which of them are real; none where no frame begins there."""
    first, behind = (
        int(np.searchsorted(ticks, -floor(-moment / time_base), side="left"))
        for moment in (action.start_s, action.stop_s)
    )
    shown = np.clip(_shown(ticks, time_base, positions), first, max(first, behind - 1))
    end = min(action.stop_s, end_s)
    real = np.array([first < behind and position < end for position in positions])
    return np.where(real, shown, shown[max(0, int(real.sum()) - 1)]), real


def _flags(shown: NDArray[np.int64], real: NDArray[np.bool_]) -> int:
    found = Flag(0)
    if not real.all():
        found |= Flag.PADDED
    if not real[0]:
        found |= Flag.PADDED_FRONT
    own = shown[real]
    if (own[1:] == own[:-1]).any():
        found |= Flag.UPSAMPLED
    return found.value


def annotation_columns(annotations: Sequence[Annotation]) -> dict[str, Column]:
    """What a plan keeps of the annotations of its rows; empty if there are none."""
    if not annotations:
        return {}
    columns: dict[str, Column] = {
        "id": [item.id for item in annotations],
        "start_s": np.array([float(item.start_s) for item in annotations]),
        "stop_s": np.array([float(item.stop_s) for item in annotations]),
    }
    return columns | {name: [item.columns[name] for item in annotations] for name in annotations[0].columns}
