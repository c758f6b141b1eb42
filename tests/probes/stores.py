"""Complete stores on disk whose classes can be told apart by their tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coldframe.store import Store, create_store, open_store, write_unit
from coldframe.store.plan import Column
from coldframe.store.recipe import Window
from coldframe.store.schema import Tokens
from tests.store.plans import ENCODER, small_geometry, small_plan, small_result

NAMES = ("boil", "chop", "pour")


def class_store(path: Path, tokens: Tokens = "full", *, videos: int = 30, clips: int = 2, fps: float = 7.5) -> Store:
    """Class c is far out in dimension c, in [CLS] and in one frame's patch tokens; every third clip is padded."""
    columns: dict[str, Column] = {"label": [NAMES[v % 3] for v in range(videos)]}
    plan = small_plan([clips] * videos, tokens=tokens, columns=columns)
    n_real = np.where(np.arange(len(plan.clips)) % 3 == 0, 2, 4).astype(np.int16)
    plan = replace(plan, recipe=replace(plan.recipe, fps=fps), clips=replace(plan.clips, n_real=n_real))
    store = create_store(path, plan, geometry=small_geometry(tokens, side=2), encoder=ENCODER)
    offset = np.eye(8, dtype=np.float32)[store.column("video") % 3] * 5
    for unit in range(store.unit_count):
        made = small_result(store, unit)
        here = offset[store.unit_range(unit).start : store.unit_range(unit).stop]
        patch = made.patch
        assert made.cls is not None
        if isinstance(patch, np.ndarray):
            patch = patch.copy()
            patch[:, 1] += here[:, None, None]
        write_unit(store, unit, replace(made, cls=made.cls * 0.3 + here, patch=patch))
    return open_store(path)


def action_store(
    path: Path,
    *,
    videos: int = 24,
    clips: int = 6,
    verbs: int = 7,
    nouns: int = 6,
    window: Window = "before_start",
    without_window: Sequence[int] = (),
) -> Store:
    """One clip an action; patch tokens of one frame say the verb (dimensions 0 to 7), those of another the noun.

    Verb and noun ids of action i of video v are (v + i) % verbs and (verb + i % 2) % nouns; two videos are of a person.
    The last action of a person's first video is done to a thing of their own, id 100 and above. Rows `without_window`
    are failed.
    """
    plan = small_plan([clips] * videos, tokens="full")
    count = len(plan.clips)
    order, video = np.arange(count) % clips, plan.clips.video
    verb, noun = (video + order) % verbs, ((video + order) % verbs + order % 2) % nouns
    is_own = (order == clips - 1) & (video % 2 == 0)
    columns: dict[str, Column] = {
        "id": [f"a{row}" for row in range(count)],
        "start_s": plan.clips.end_s + 1,
        "stop_s": plan.clips.end_s + 2,
        "verb_class": [str(code) for code in verb],
        "noun_class": [str(100 + v // 2 if own else code) for v, own, code in zip(video, is_own, noun, strict=True)],
        "participant_id": [f"P{v // 2:02d}" for v in video],
    }
    recipe = replace(plan.recipe, hop_frames=plan.recipe.frames, window=window, anticipation_s=1.0)
    n_real, index = plan.clips.n_real.copy(), plan.clips.frame_index.copy()
    n_real[list(without_window)], index[list(without_window)] = 0, -1
    clips_made = replace(plan.clips, annotations=columns, n_real=n_real, frame_index=index)
    planned = replace(plan, recipe=recipe, clips=clips_made)
    store = create_store(path, planned, geometry=small_geometry("full", dim=16, side=2), encoder=ENCODER)
    far = np.eye(16, dtype=np.float32) * 6
    for unit in range(store.unit_count):
        made, rows = small_result(store, unit), slice(store.unit_range(unit).start, store.unit_range(unit).stop)
        assert isinstance(made.patch, np.ndarray)
        patch = made.patch * 0.3
        patch[:, 1] += far[verb[rows] % 8][:, None, None]
        patch[:, 2] += far[8 + noun[rows] % 8][:, None, None]
        write_unit(store, unit, replace(made, patch=patch))
    return open_store(path)
