"""Quantising by hand, against a plain reimplementation in float64, and at the ends of float32."""

import numpy as np
import pytest

from coldframe.store.int8_tokens import (
    Int8Tokens,
    Reconstruction,
    blank_int8_rows,
    usable_int8_rows,
)


def of(*tokens: list[float]) -> Int8Tokens:
    """One row with these tokens."""
    return Int8Tokens.of(np.array([tokens], np.float32))


@pytest.mark.parametrize(
    ("token", "scale", "values"),
    [
        ([127, -127, 1, 0], 1.0, [127, -127, 1, 0]),
        ([254, 1, 3, 5], 2.0, [127, 0, 2, 2]),  # 0.5, 1.5 and 2.5: halves go to the even neighbour
        ([-254, -1, -3, -5], 2.0, [-127, 0, -2, -2]),  # the largest magnitude is a negative number
        ([0, 0, 0, 0], 0.0, [0, 0, 0, 0]),
        ([12700, 49, 51, -51], 100.0, [127, 0, 1, -1]),  # beside an outlier, little is left of the others
        ([0.127, 0.0004, -0.0006, 0.0634], 0.001, [127, 0, -1, 63]),
    ],
)
def test_tokens_by_hand(token: list[float], scale: float, values: list[int]) -> None:
    made = of(token)
    assert made.values.tolist() == [[values]]
    assert made.scale[0, 0] == np.float32(scale)
    np.testing.assert_allclose(made.dequantised()[0, 0], np.array(values) * scale, rtol=1e-6)


def test_tokens_of_a_row_do_not_share_a_scale() -> None:
    made = of([127, 1], [1, 0.5], [0, 0])
    assert made.values.tolist() == [[[127, 1], [127, 64], [0, 0]]]
    np.testing.assert_array_equal(made.scale, np.array([[1, 1 / 127, 0]], np.float32))


def test_every_number_is_within_half_a_step_of_what_it_was() -> None:
    tokens = (np.random.default_rng(0).standard_t(2, (3, 5, 7, 301)) * 10.0).astype(np.float32)
    made = Int8Tokens.of(tokens)
    assert np.abs(made.values.astype(int)).max(axis=-1).tolist() == np.full((3, 5, 7), 127).tolist()
    error = np.abs(made.dequantised() - tokens)
    assert (error <= 0.5 * made.scale[..., None] * (1 + 1e-5)).all()
    wide = tokens.astype(np.float64)
    steps = np.abs(wide).max(axis=-1, keepdims=True) / 127
    expected = np.rint(wide / steps)
    assert (made.values == expected).mean() > 0.9999  # apart from ties that float32 cannot tell
    cosine = (wide * expected).sum(-1) / np.sqrt((wide**2).sum(-1) * (expected**2).sum(-1))
    np.testing.assert_allclose(made.cosine, cosine, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_not_finite_has_no_scale(bad: float) -> None:
    made = of([1, bad, 2], [1, 2, 3])
    assert np.isnan(made.scale[0, 0])
    assert made.values[0, 0].tolist() == [0, 0, 0]
    assert np.isnan(made.dequantised()[0, 0]).all()
    assert np.isfinite(made.dequantised()[0, 1]).all()
    assert not usable_int8_rows(made.values, made.scale)[0]


def test_the_ends_of_float32() -> None:
    largest, tiny = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
    assert np.isnan(of([largest, 0]).scale).all()  # 127 times its scale would be infinite
    made = of([largest * 0.999, -largest / 4, 0], [tiny * 127, tiny * 63.4, 0], [tiny, -tiny, tiny / 4])
    assert made.values.tolist() == [[[127, -32, 0], [127, 63, 0], [0, 0, 0]]]
    assert made.scale[0, 2] == 0  # too small for a scale with all digits: zeros, as float16 makes them far earlier
    assert made.cosine[0].tolist() == pytest.approx([1, 1, 0], abs=1e-4)  # and the loss is on record
    assert np.isfinite(made.dequantised()).all()


def test_only_the_named_rows_are_filled() -> None:
    tokens = np.random.default_rng(1).standard_normal((2, 3, 8)).astype(np.float32)
    made = Int8Tokens.empty((4, 3, 8))
    made.put(np.array([2, 0]), tokens)
    whole = Int8Tokens.of(tokens)
    np.testing.assert_array_equal(made.values[[2, 0]], whole.values)
    np.testing.assert_array_equal(made.scale[[2, 0]], whole.scale)
    assert blank_int8_rows(made.values, made.scale).tolist() == [False, True, False, True]
    assert usable_int8_rows(made.values, made.scale).tolist() == [True, False, True, False]
    measured = made.reconstruction(np.ones(4, bool))
    assert measured == whole.reconstruction(np.ones(2, bool))
    assert measured is not None
    assert measured.tokens == 6


def test_a_rows_bytes_do_not_depend_on_its_neighbours_or_their_number() -> None:
    tokens = np.random.default_rng(2).standard_normal((9, 5, 333)).astype(np.float32)
    together = Int8Tokens.of(tokens)
    for row in range(9):
        alone = Int8Tokens.of(tokens[row : row + 1])
        assert alone.values.tobytes() == together.values[row].tobytes()
        assert alone.scale.tobytes() == together.scale[row].tobytes()


def test_quantising_what_was_dequantised_changes_no_value() -> None:
    made = Int8Tokens.of(np.random.default_rng(3).standard_normal((50, 4, 64)).astype(np.float32))
    again = Int8Tokens.of(made.dequantised())
    np.testing.assert_array_equal(again.values, made.values)
    np.testing.assert_allclose(again.scale, made.scale, rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([[126, 3], [127, 1]], [1, 1]),  # the largest is always 127
        ([[-128, 3], [127, 1]], [1, 1]),
        ([[127, 3], [0, 1]], [1, 0]),  # 0 times 1 is no 1
        ([[127, 3], [127, 1]], [1, np.nan]),
        ([[127, 3], [127, 1]], [1, np.inf]),
        ([[127, 3], [127, 1]], [1, -1]),
        ([[127, 3], [0, 0]], [1, 1]),  # what a lost chunk reads as
        ([[0, 0], [0, 0]], [0, 0]),
    ],
)
def test_rows_that_quantising_cannot_give(values: list[list[int]], scale: list[float]) -> None:
    given = np.array([values], np.int8), np.array([scale], np.float32)
    assert not usable_int8_rows(*given)[0]
    assert not blank_int8_rows(*given)[0]


def test_reconstructions_are_joined_by_their_tokens() -> None:
    one = Reconstruction(tokens=1, cosine_mean=0.9, cosine_worst=0.9)
    three = Reconstruction(tokens=3, cosine_mean=1.0, cosine_worst=0.95)
    joined = Reconstruction.join([one, None, three])
    assert joined is not None
    assert (joined.tokens, joined.cosine_worst) == (4, 0.9)
    assert joined.cosine_mean == pytest.approx(0.975)
    assert Reconstruction.join([None]) is None
