from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from coldframe.errors import StoreError, UsageError
from coldframe.probes import features
from coldframe.probes.features import read_features, read_varied_features
from coldframe.probes.linear import linear_probe
from coldframe.probes.logistic_probe import logistic_probe
from coldframe.probes.nearest import knn_probe
from coldframe.store.schema import Flag, TokenGeometry
from tests.probes.memory import MemoryStore, separable_store


def patch_store(time: int = 16) -> MemoryStore:
    store = separable_store(videos=6, windows=2)
    rng = np.random.default_rng(1)
    store.patches = rng.normal(size=(12, time, 3, 2, 5)).astype(np.float32) + 100
    store.recipe = replace(store.recipe, tokens="full")
    store.geometry = TokenGeometry(dim=5, time=time, rows=3, cols=2)
    return store


def test_cls_rows_come_in_the_asked_order() -> None:
    store = separable_store(videos=6, windows=2)
    rows = np.array([7, 0, 3])
    read = read_features(store, rows, "cls")
    assert read.dtype == np.float32
    assert np.array_equal(read, store.tokens[rows])


def test_mean_is_over_all_patch_tokens() -> None:
    store = patch_store()
    assert store.patches is not None
    expected = store.patches.astype(np.float64).reshape(12, -1, 5).mean(axis=1)
    np.testing.assert_allclose(read_features(store, np.arange(12), "mean"), expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("time", "n_real", "real_tokens"),
    [(16, 1, 1), (16, 5, 5), (16, 15, 15), (8, 1, 1), (8, 5, 3), (8, 6, 3), (8, 15, 8), (8, 16, 8)],
)
def test_padded_frames_do_not_enter_the_mean(time: int, n_real: int, real_tokens: int) -> None:
    store = patch_store(time)
    assert store.patches is not None
    store.columns["n_real"][4] = n_real
    store.patches[4, real_tokens:] = 1e9
    read = read_features(store, np.arange(12), "mean")
    np.testing.assert_allclose(read[4], store.patches[4, :real_tokens].reshape(-1, 5).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(read[3], store.patches[3].reshape(-1, 5).mean(axis=0), rtol=1e-5)


def test_frames_repeated_in_front_do_not_enter_the_mean() -> None:
    store = patch_store(8)
    assert store.patches is not None
    store.columns["n_real"][4], store.columns["flags"][4] = 5, Flag.PADDED | Flag.PADDED_FRONT
    store.patches[4, :5] = 1e9  # frames 0 to 10 are repeats, and token 5 is of frames 10 and 11
    read = read_features(store, np.arange(12), "mean")
    np.testing.assert_allclose(read[4], store.patches[4, 5:].reshape(-1, 5).mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["cls", "mean"])
def test_reads_in_bounded_batches_with_equal_results(
    kind: Literal["cls", "mean"], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = patch_store()
    whole = read_features(store, np.arange(12), kind)
    row_bytes = 4 * 5 if kind == "cls" else 4 * 5 * (1 + 16 * 6)
    monkeypatch.setattr(features, "_BATCH_BYTES", 5 * row_bytes)
    counts: list[int] = []
    batched = read_features(store, np.arange(12), kind, counts.append)
    assert counts == [5, 5, 2]
    assert np.array_equal(whole, batched)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_ok_rows_that_are_not_finite_are_refused(value: float) -> None:
    store = separable_store(videos=6, windows=2)
    store.tokens[3, 1] = value
    with pytest.raises(StoreError, match=r"row 3 is marked ok .* inf or nan.*coldframe verify"):
        read_features(store, np.arange(12), "cls")


def test_a_row_without_real_frames_is_refused() -> None:
    store = patch_store()
    store.columns["n_real"][2] = 0
    with pytest.raises(StoreError, match="row 2 is marked ok but has no real frame"):
        read_features(store, np.arange(12), "mean")


def test_mean_needs_patch_tokens() -> None:
    with pytest.raises(UsageError, match="Use features 'cls'"):
        read_features(separable_store(), np.arange(4), "mean")


def test_rows_that_are_all_equal_are_nothing_to_read_from() -> None:
    store = separable_store()
    rows = store.ok_rows()
    assert np.array_equal(read_varied_features(store, rows, "cls"), read_features(store, rows, "cls"))
    store.tokens[:] = store.tokens[0]
    assert len(read_varied_features(store, rows[:1], "cls")) == 1
    with pytest.raises(StoreError, match="all 120 rows have the same cls features"):
        read_varied_features(store, rows, "cls")
    for readout in (linear_probe, logistic_probe, knn_probe):
        with pytest.raises(StoreError, match="have the same cls features"):
            readout(store, label="label")
