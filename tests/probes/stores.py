"""Complete stores on disk whose classes can be told apart by their tokens."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from coldframe.store import Store, create_store, open_store, write_unit
from coldframe.store.plan import Column
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
