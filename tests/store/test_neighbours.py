"""Exact neighbours against brute force and against the traps of the field."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics.pairwise import cosine_similarity

from coldframe.errors import StoreError, UsageError
from coldframe.store import Status, Store, UnitResult, create_store, nearest, neighbours, write_unit
from tests.store.plans import ENCODER, small_geometry, small_plan


def store_of(
    path: Path, vectors: NDArray[np.float64], clips_a_video: list[int], sources: list[str] | None = None
) -> Store:
    """A float32 store whose [CLS] vectors are `vectors` (rows, dim)."""
    plan = small_plan(clips_a_video, dtype="float32", sources=sources)
    geometry = small_geometry(dim=vectors.shape[1])
    store = create_store(path, plan, geometry=geometry, encoder=ENCODER)
    for unit in range(store.unit_count):
        rows = store.unit_range(unit)
        result = UnitResult(
            rows=rows,
            status=np.full(len(rows), Status.OK, np.uint8),
            reason=np.zeros(len(rows), np.uint8),
            cls=vectors[rows.start : rows.stop].astype(np.float32),
        )
        write_unit(store, unit, result)
    return store


def brute_force(vectors: NDArray[np.float64], groups: NDArray[np.int64], query: int, k: int) -> list[int]:
    cosine = cosine_similarity(vectors)[query]
    allowed = np.flatnonzero(groups != groups[query])
    return sorted(allowed.tolist(), key=lambda row: (-round(float(cosine[row]), 6), row))[:k]


@pytest.mark.parametrize("block", [7, 4096])
@pytest.mark.parametrize("exclude", [True, False])
def test_answers_equal_brute_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, exclude: bool) -> None:
    monkeypatch.setattr(neighbours, "_GALLERY_BLOCK", block)
    monkeypatch.setattr(neighbours, "_QUERY_BLOCK", block)
    vectors = np.random.default_rng(0).standard_normal((60, 8))
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    groups = np.repeat(np.arange(6), 10) if exclude else np.arange(60)
    queries = np.array([59, 0, 31, 31, 12])
    answers = nearest(queries, store, 9, exclude_same_source=exclude)
    assert [answer.query for answer in answers] == queries.tolist()
    for answer in answers:
        assert answer.rows.tolist() == brute_force(vectors, groups, answer.query, 9)
        expected = cosine_similarity(vectors)[answer.query, answer.rows]
        np.testing.assert_allclose(answer.cosine, expected, atol=1e-6)


def test_scale_does_not_matter(tmp_path: Path) -> None:
    """Field case 43: vectors scaled by exp(N(0, 1)); raw inner products mostly find a wrong row."""
    generator = np.random.default_rng(0)
    base = generator.standard_normal((500, 32))
    scaled = base * np.exp(generator.standard_normal((500, 1)))
    store = store_of(tmp_path / "s", np.concatenate([scaled, base]), [1] * 1000)
    answers = nearest(np.arange(500, 1000), store, 1)
    assert [int(answer.rows[0]) for answer in answers] == list(range(500))
    assert max(float(answer.cosine[0]) for answer in answers) <= 1.0
    raw = base @ np.concatenate([scaled, base]).T
    raw[np.arange(500), np.arange(500, 1000)] = -np.inf
    assert (raw.argmax(axis=1) == np.arange(500)).mean() < 0.5  # the trap is real on these vectors


def test_windows_of_the_same_video_do_not_inflate_retrieval(tmp_path: Path) -> None:
    """Field case 47: 60 videos x 20 windows, random labels; chance is 0.25 and self-matches give 1.00."""
    generator = np.random.default_rng(0)
    video = np.repeat(np.arange(60), 20)
    label = generator.integers(0, 4, 60)[video]
    vectors = generator.standard_normal((60, 32))[video] + 0.3 * generator.standard_normal((1200, 32))
    store = store_of(tmp_path / "s", vectors, [20] * 60)

    def recall_at_1(exclude: bool) -> float:
        answers = nearest(np.arange(1200), store, 1, exclude_same_source=exclude)
        return float(np.mean([label[answer.rows[0]] == label[answer.query] for answer in answers]))

    assert recall_at_1(False) == 1.0
    honest = recall_at_1(True)
    clusters = 3 * np.sqrt(0.25 * 0.75 / 60)
    assert abs(honest - 0.25) < clusters


def test_a_source_may_span_videos(tmp_path: Path) -> None:
    vectors = np.array([[1, 0], [1, 0.01], [0.9, 0.5], [0, 1]], np.float64)
    store = store_of(tmp_path / "s", vectors, [1, 1, 1, 1], ["anna", "anna", "ben", "carl"])
    assert nearest([0], store, 5)[0].rows.tolist() == [2, 3]
    assert nearest([0], store, 5, exclude_same_source=False)[0].rows.tolist() == [1, 2, 3]


@pytest.mark.parametrize("block", [1, 5, 4096])
def test_ties_go_to_the_lower_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(neighbours, "_GALLERY_BLOCK", block)
    vectors = np.tile(np.random.default_rng(3).standard_normal((1, 37)), (40, 1))
    store = store_of(tmp_path / "s", vectors * np.repeat([1.0, 2.0], 20)[:, None], [1] * 40)
    assert nearest([20], store, 4)[0].rows.tolist() == [0, 1, 2, 3]
    assert nearest([1], store, 50)[0].rows.tolist() == [0, *range(2, 40)]


def test_too_few_answers_are_fewer_not_padded(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", np.eye(4), [2, 2])
    (answer,) = nearest([3], store, 10)
    assert answer.rows.tolist() == [0, 1]
    (alone,) = nearest([0], store_of(tmp_path / "t", np.eye(2), [2]), 10)
    assert (len(alone.rows), len(alone.cosine)) == (0, 0)


def test_only_ok_rows_are_asked_and_answered(filled: Store) -> None:
    with pytest.raises(StoreError, match="Row 21 has no tokens"):
        nearest([21], filled, 3)
    (answer,) = nearest([0], filled, 100)
    assert sorted(answer.rows.tolist()) == [20, *range(22, 51)]


def test_vectors_without_direction_are_refused(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.cls

    def zeroed(store: Store, *arguments: NDArray[np.int64]) -> NDArray[np.float32]:
        values = real(store, *arguments)
        values[-1] = 0
        return values

    monkeypatch.setattr(Store, "cls", zeroed)
    with pytest.raises(StoreError, match="row 0 is zero or not finite"):
        nearest([0], filled, 3)


def test_requests_that_make_no_sense_are_refused(filled: Store) -> None:
    with pytest.raises(UsageError, match="k is 0; allowed is 1 or more"):
        nearest([0], filled, 0)
    with pytest.raises(UsageError, match="Row 51 does not exist"):
        nearest([51], filled, 1)


def test_many_equal_vectors_come_in_row_order(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    base = generator.standard_normal((4, 19))
    kind = generator.integers(0, 4, 700)
    store = store_of(tmp_path / "s", base[kind], [1] * 700)
    cosine = cosine_similarity(base)[kind[17]]
    expected = sorted(np.delete(np.arange(700), 17).tolist(), key=lambda row: (-cosine[kind[row]], row))
    for k in (5, 300, 699):
        assert nearest([17], store, k)[0].rows.tolist() == expected[:k]
