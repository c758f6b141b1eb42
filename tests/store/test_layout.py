"""How rows become units, shards and chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldframe.errors import UsageError
from coldframe.store import TokenGeometry, unit_rows
from coldframe.store.layout import plan_arrays, rows_per_unit, unit_arrays
from tests.store.plans import small_plan


@pytest.mark.parametrize(
    ("rows", "row_bytes", "expected"),
    [
        (100_000, 2048, 384),  # ceil(100000 / 256) = 391, rounded down to a multiple of 16
        (1_000_000, 2048, 3904),
        (100_000, 6_422_528, 32),  # 39 rows fit into 256 MB
        (100_000, 12_845_056, 16),  # the same in float32: 19 fit
        (1000, 2048, 16),  # 4 rows would be the share; 16 is the floor
        (3, 2048, 16),
        (100_000, 20_000_000, 12),  # not even 16 fit
        (100_000, 300_000_000, 1),  # not even one fits, but a unit holds something
    ],
)
def test_unit_rows_by_hand(rows: int, row_bytes: int, expected: int) -> None:
    assert unit_rows(rows, row_bytes) == expected


@given(rows=st.integers(1, 10**8), row_bytes=st.integers(1, 10**9))
def test_unit_rows_obeys_its_bounds(rows: int, row_bytes: int) -> None:
    count = unit_rows(rows, row_bytes)
    assert count >= 1
    assert count == 1 or count * row_bytes <= 256_000_000
    assert count <= max(16, -(-rows // 256))
    assert count < 16 or count % 16 == 0


def test_a_large_clip_is_a_chunk_of_its_own_and_short_vectors_are_not() -> None:
    geometry = TokenGeometry.for_tier("full", dim=1024, time=16, rows=14, cols=14)
    per_unit = rows_per_unit(10_000, geometry, "float16")
    arrays = unit_arrays(10_000, per_unit, geometry, "float16")
    assert (arrays["patch"].chunk_rows, arrays["patch"].object_rows) == (1, 32)
    assert (arrays["cls"].chunk_rows, arrays["cls"].object_rows) == (16, 32)
    assert (arrays["status"].chunk_rows, arrays["status"].object_rows) == (32, 32)
    assert arrays["patch"].object_key(7) == "patch/c/7/0/0/0/0"
    assert arrays["patch"].dims == ("clip", "time", "row", "col", "dim")


def test_chunks_divide_a_unit_that_is_smaller_than_16_rows() -> None:
    geometry = TokenGeometry(dim=1024, time=64, rows=14, cols=14)
    per_unit = rows_per_unit(10_000, geometry, "float16")
    assert per_unit == 9
    assert unit_arrays(10_000, per_unit, geometry, "float16")["cls"].chunk_rows == 9


def test_the_cls_tier_has_no_patch_array() -> None:
    arrays = unit_arrays(50, 16, TokenGeometry.for_tier("cls", dim=1024, time=16, rows=14, cols=14), "float32")
    assert list(arrays) == ["cls", "status", "reason"]


def test_manifest_columns_become_video_arrays() -> None:
    plan = small_plan(columns={"label": list("abcde"), "class name": [f"{i}" for i in range(5)]})
    named = {spec.name: values for spec, values in plan_arrays(plan)}
    assert named["video_label"].tolist() == list("abcde")
    assert named["video_class name"].tolist() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sha256", "built-in column"),
        ("a/b", "cannot name an array"),
        ("", "cannot name"),
        ("a\nb", "cannot name"),
    ],
)
def test_manifest_columns_with_impossible_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_arrays(small_plan(columns={name: list("abcde")}))


def test_a_column_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(UsageError, match="4 values for 5 videos"):
        plan_arrays(small_plan(columns={"n": np.arange(4)}))


def test_text_that_no_file_could_hold_is_refused() -> None:
    with pytest.raises(UsageError, match=r"video_label\[1\].*not valid Unicode"):
        plan_arrays(small_plan(columns={"label": ["a", "\ud800", "c", "d", "e"]}))
