"""Vectors of clips against means by hand."""

from pathlib import Path

import numpy as np
import pytest

from coldframe.errors import StoreError
from coldframe.store import Store, create_store, open_store, write_unit
from coldframe.store.schema import Flag
from coldframe.store.vectors import unit_vectors, vector_batches
from tests.store.plans import ENCODER, small_geometry, small_plan, small_result


def test_padding_is_no_part_of_the_mean(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"n_real": np.full(filled.rows, 3), "flags": np.zeros(filled.rows, np.uint32)}
    columns["flags"][7] = Flag.PADDED | Flag.PADDED_FRONT
    monkeypatch.setattr(Store, "column", lambda self, name: columns[name])
    found = unit_vectors(filled, np.array([7, 4]), "mean")
    patch = filled.patch([7, 4]).astype(np.float64)
    for vector, real in zip(found, (patch[0, 1:], patch[1, :3]), strict=True):
        mean = real.reshape(-1, real.shape[-1]).mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)


@pytest.mark.parametrize("most_rows", [7, 1000])
def test_batches_are_the_rows_in_order(filled: Store, most_rows: int) -> None:
    ok = filled.ok_rows()
    batches = list(vector_batches(filled, ok, "cls", most_rows))
    assert max(len(rows) for rows, _ in batches) == min(most_rows, len(ok))
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in batches]), ok)
    cls = filled.cls().astype(np.float64)
    expected = cls / np.linalg.norm(cls, axis=1, keepdims=True)
    np.testing.assert_allclose(np.concatenate([vectors for _, vectors in batches]), expected, atol=1e-6)


def test_no_direction_is_said_with_the_row(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", small_plan(), geometry=small_geometry(), encoder=ENCODER)
    for unit in range(store.unit_count):
        write_unit(store, unit, small_result(store, unit))
    opened = open_store(store.path)
    object.__setattr__(opened, "cls", lambda rows: np.zeros((len(rows), 8), np.float32))
    with pytest.raises(StoreError, match=r"The \[CLS\] vector of row 3 is zero or not finite"):
        unit_vectors(opened, np.array([3, 4]), "cls")
