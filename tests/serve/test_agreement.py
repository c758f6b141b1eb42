"""What two sets of pictures differ in gets its right name."""

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.serve.agreement import compare


def scene(number: int, size: int = 64) -> NDArray[np.uint8]:
    across, down = np.meshgrid(np.arange(size), np.arange(size))
    wave = 128 + 80 * np.sin((across + 6 * number) / 9) * np.cos(down / 7)
    return np.stack([wave, 255 - wave, wave / 2 + 40], -1).astype(np.uint8)


REFERENCE = {number: scene(number) for number in range(6)}


def test_the_same_pictures_agree() -> None:
    found = compare({2: scene(2), 3: scene(3)}, REFERENCE)
    assert (found.verdict, found.frames, found.misplaced, found.max_levels) == ("agree", 2, 0, 0)


def test_rounding_agrees() -> None:
    noise = np.random.default_rng(0).integers(0, 3, (64, 64, 3))
    found = compare({2: (scene(2) + noise - 1).clip(0, 255).astype(np.uint8)}, REFERENCE)
    assert found.verdict == "agree"


def test_chroma_edges_agree() -> None:
    square = scene(2).astype(np.int16)
    square[::8, ::2] += 30
    square[::8, 1::2] -= 30
    found = compare({2: square.clip(0, 255).astype(np.uint8)}, REFERENCE)
    assert found.max_levels >= 25
    assert found.block_levels < 3


@pytest.mark.parametrize("step", [-2, -1, 1, 2])
def test_a_neighbour_is_told_from_the_frame(step: int) -> None:
    assert compare({3: scene(3 + step)}, REFERENCE).verdict == "other frames"


def test_still_scenes_are_not_misplaced() -> None:
    still = {number: scene(0) for number in range(6)}
    assert compare({4: scene(0)}, still).verdict == "agree"


def test_a_wrong_matrix_is_other_colours() -> None:
    luma = scene(2).astype(np.float64) @ [0.299, 0.587, 0.114]
    chroma = scene(2) - luma[..., None]
    found = compare({2: (luma[..., None] + 1.12 * chroma).clip(0, 255).astype(np.uint8)}, REFERENCE)
    assert found.verdict == "other colours"


def test_an_unrelated_picture_is_another_picture() -> None:
    assert compare({2: np.zeros((64, 64, 3), np.uint8)}, REFERENCE).verdict == "other pictures"


def test_no_frame_is_no_fault() -> None:
    assert compare({}, REFERENCE).frames == 0
