"""Rotary positions against a loop written from the definition, one dim at a time."""

import math

import numpy as np
import pytest
import torch

from coldframe.export.rope import axis_width, rope_angles, rotate


def rotate_one(vector: list[float], position: tuple[int, int, int]) -> list[float]:
    """Turn one head vector, following the definition word by word."""
    width = 2 * math.floor(math.floor(len(vector) / 3) / 2)
    half = width // 2
    out = list(vector)
    for axis in range(3):
        group = vector[axis * width : (axis + 1) * width]
        for i in range(half):
            first = position[axis] * 10000 ** (-((2 * i) % half) / half)
            second = position[axis] * 10000 ** (-((2 * i + 1) % half) / half)
            out[axis * width + 2 * i] = group[2 * i] * math.cos(first) - group[2 * i + 1] * math.sin(first)
            out[axis * width + 2 * i + 1] = group[2 * i + 1] * math.cos(second) + group[2 * i] * math.sin(second)
    return out


@pytest.mark.parametrize(("head_dim", "width"), [(64, 20), (80, 26), (32, 10), (16, 4), (6, 2)])
def test_axis_width_is_as_published(head_dim: int, width: int) -> None:
    assert axis_width(head_dim) == width


@pytest.mark.parametrize("head_dim", [64, 80, 32, 16])
@pytest.mark.parametrize("position", [(0, 0, 0), (3, 2, 5), (15, 13, 13)])
def test_rotation_equals_the_definition(head_dim: int, position: tuple[int, int, int]) -> None:
    vectors = np.random.default_rng(head_dim).standard_normal((16 * 14 * 14, head_dim))
    angles = torch.from_numpy(rope_angles(head_dim, frames=16, rows=14, cols=14))
    turned = rotate(torch.from_numpy(vectors), angles.cos(), angles.sin())
    index = (position[0] * 14 + position[1]) * 14 + position[2]
    np.testing.assert_allclose(turned[index], rotate_one(list(vectors[index]), position), atol=1e-12)


def test_dims_beyond_the_three_groups_do_not_turn() -> None:
    angles = rope_angles(64, frames=3, rows=2, cols=2)
    assert (angles[:, 60:] == 0).all()
    assert (np.abs(angles[-1, :60]) > 0).all()  # token (2, 1, 1) moves along every axis


def test_frequencies_are_tiled_and_not_interleaved() -> None:
    angles = rope_angles(64, frames=2, rows=1, cols=1)[1, :20]  # time 1: the angle is the frequency
    np.testing.assert_allclose(angles[:10], angles[10:])
    assert angles[0] == 1
    assert angles[1] == pytest.approx(10000**-0.1)  # interleaved frequencies would repeat 1 here
