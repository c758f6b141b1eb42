"""What a window allows, asked of rows as they were written."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coldframe.store import Recipe, verify_store
from coldframe.store.windows import leaking_rows, window_text
from tests.store.plans import annotated_store, small_recipe


def windowed(window: str, anticipation_s: float = 0.5) -> Recipe:
    return replace(small_recipe(), hop_frames=4, window=window, anticipation_s=anticipation_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window", "seconds", "leaks"),
    [
        ("before_start", [1.0, 2.0, 2.5], False),
        ("before_start", [1.0, 2.0, 2.51], True),
        ("before_stop", [3.0, 5.0, 5.5], False),
        ("before_stop", [3.0, 5.0, 5.51], True),
        ("inside", [3.0, 4.0, 6.0], False),
        ("inside", [2.99, 4.0, 5.0], True),
        ("inside", [3.0, 4.0, 6.01], True),
    ],
)
def test_a_frame_outside_the_window_is_found(window: str, seconds: list[float], leaks: bool) -> None:
    recipe = windowed(window, 0.0 if window == "inside" else 0.5)
    annotations = {"start_s": np.array([9.0, 3.0]), "stop_s": np.array([9.5, 6.0])}
    times = np.array([[np.nan] * 3, seconds])
    assert leaking_rows(recipe, annotations, times, np.array([0, 3], np.int16)).tolist() == ([1] if leaks else [])
    assert leaking_rows(recipe, annotations, times, np.array([0, 0], np.int16)).tolist() == []


def test_only_the_released_anchor_is_said_to_show_the_action() -> None:
    assert window_text(small_recipe()) == ""
    assert window_text(windowed("before_start")) == "ends 0.5 s before the start of the action"
    assert "show the action itself" in window_text(windowed("before_stop"))


@pytest.mark.parametrize(("start", "passes"), [(100.0, True), (0.6, False)])
def test_verify_looks_at_the_written_times(tmp_path: Path, start: float, passes: bool) -> None:
    made = annotated_store(tmp_path, start_s=start)
    found = [problem.message for problem in verify_store(made.path).problems if problem.kind == "plan"]
    assert found == ([] if passes else ["row 0 shows a frame that its window before_start forbids"])
