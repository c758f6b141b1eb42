"""Each tier keeps the means that its name says."""

import numpy as np
import pytest

from coldframe.errors import UsageError
from coldframe.export import Tokens
from coldframe.serve.tiers import keep_tier


def tokens(rows: int = 4, cols: int = 6) -> Tokens:
    rng = np.random.default_rng(0)
    patch = rng.normal(size=(2, 3, rows, cols, 5)).astype(np.float32)
    return Tokens(cls=rng.normal(size=(2, 5)).astype(np.float32), patch=patch)


def test_cls_keeps_no_patches() -> None:
    kept = keep_tier(tokens(), "cls")
    assert kept.cls is not None
    np.testing.assert_array_equal(kept.cls, tokens().cls)
    assert (kept.patch, kept.layers) == (None, {})


def test_full_keeps_every_token() -> None:
    kept = keep_tier(tokens(), "full").patch
    assert kept is not None
    np.testing.assert_array_equal(kept, tokens().patch)


def test_mean_is_the_mean_of_each_frame() -> None:
    kept = keep_tier(tokens(), "cls+mean").patch
    assert kept is not None
    assert kept.shape == (2, 3, 1, 1, 5)
    for clip in range(2):
        for time in range(3):
            by_hand = sum(tokens().patch[clip, time, y, x].astype(np.float64) for y in range(4) for x in range(6)) / 24
            np.testing.assert_allclose(kept[clip, time, 0, 0], by_hand, rtol=1e-5, atol=1e-6)


def test_grid7_is_the_mean_of_each_two_by_two_block() -> None:
    kept, whole = keep_tier(tokens(), "cls+grid7").patch, tokens().patch
    assert kept is not None
    assert kept.shape == (2, 3, 2, 3, 5)
    for y in range(2):
        for x in range(3):
            block = whole[:, :, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].astype(np.float64).mean(axis=(2, 3))
            np.testing.assert_allclose(kept[:, :, y, x], block, rtol=1e-5, atol=1e-6)


def test_odd_grid_cannot_be_pooled() -> None:
    with pytest.raises(UsageError, match="grid is 3 x 6; cls\\+grid7 needs even sides"):
        keep_tier(tokens(rows=3), "cls+grid7")


def test_tiers_without_cls_keep_the_same_patches_and_no_cls() -> None:
    for bare, whole in (("mean", "cls+mean"), ("grid7", "cls+grid7")):
        kept, other = keep_tier(tokens(), bare), keep_tier(tokens(), whole)  # type: ignore[arg-type]
        assert kept.cls is None
        assert kept.patch is not None
        np.testing.assert_array_equal(kept.patch, other.patch)


def test_every_layer_is_pooled_as_the_output_is() -> None:
    base = tokens()
    layered = Tokens(patch=base.patch, cls=base.cls, layers={3: base.patch * 2, 5: base.patch * -1})
    kept = keep_tier(layered, "cls+grid7")
    assert kept.patch is not None
    assert set(kept.layers) == {3, 5}
    np.testing.assert_allclose(kept.layers[3], kept.patch * 2, rtol=1e-6)
    np.testing.assert_allclose(kept.layers[5], -kept.patch, rtol=1e-6)


def test_repeats_that_pad_a_clip_do_not_count_in_the_mean_of_its_frames() -> None:
    """Worked by hand: frames 2, 4, 9, 9, of which all four, two and one are real."""
    frames = np.array([2, 4, 9, 9], np.float32).reshape(1, 4, 1).repeat(3, axis=0)
    tokens = Tokens(patch=np.zeros((3, 4, 1, 1, 1), np.float32), frame_cls=frames)
    kept = keep_tier(tokens, "frame_cls", np.array([4, 2, 1]))
    assert kept.cls is not None
    assert kept.cls.tolist() == [[6], [3], [2]]


def test_padding_in_front_does_not_count_either() -> None:
    frames = np.array([2, 2, 4, 9], np.float32).reshape(1, 4, 1)
    tokens = Tokens(patch=np.zeros((1, 4, 1, 1, 1), np.float32), frame_cls=frames)
    kept = keep_tier(tokens, "frame_cls", np.array([2]), np.array([2]))
    assert kept.cls is not None
    assert kept.cls.tolist() == [[6.5]]
