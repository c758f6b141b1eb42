"""k-NN never asks a window's own source, and shows what asking it would have given."""

import json

import numpy as np
import pytest

from coldframe.errors import StoreError, UsageError
from coldframe.probes.category import Category
from coldframe.probes.nearest import knn, knn_dict, knn_probe, knn_text
from coldframe.store.schema import Status
from tests.probes.memory import separable_store, windows_of_random_videos


def test_same_source_neighbours_are_the_leak_of_field_case_47() -> None:
    report = knn_probe(windows_of_random_videos(), label="label", neighbours=[10])
    (score,) = report.scores
    assert report.chance == 0.25
    assert score.leaky_balanced_accuracy == 1.0
    assert score.balanced_accuracy < 0.4


def test_classes_that_are_there_are_found() -> None:
    (score,) = knn_probe(separable_store(), label="label", neighbours=[5]).scores
    assert score.balanced_accuracy == 1.0


def test_votes_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 5)).astype(np.float32)
    labels = Category.from_text([f"c{i % 3}" for i in range(60)])
    sources = Category.from_text([f"s{i // 4}" for i in range(60)])
    (score,) = knn(features, labels, sources, [7]).scores
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    right = np.zeros((3, 2))
    for i in range(60):
        others = [j for j in range(60) if j // 4 != i // 4]
        near = sorted(others, key=lambda j: -float(unit[i] @ unit[j]))[:7]
        votes = [sum(np.exp(unit[i] @ unit[j] / 0.07) for j in near if j % 3 == c) for c in range(3)]
        right[i % 3] += [np.argmax(votes) == i % 3, 1]
    assert score.balanced_accuracy == pytest.approx(float((right[:, 0] / right[:, 1]).mean()))


def test_a_k_that_some_query_cannot_have_is_left_out_or_refused() -> None:
    store = separable_store(videos=9, windows=2)
    assert [score.k for score in knn_probe(store, label="label").scores] == [10]
    with pytest.raises(UsageError, match=r"k is 100; allowed is 1 to 16"):
        knn_probe(store, label="label", neighbours=[100])


def test_report_says_what_was_used_and_what_was_left_out() -> None:
    store = separable_store(videos=12, windows=2, untrained=True)
    store.columns["status"][:3] = [Status.FAILED, Status.ABSENT, Status.ABSENT]
    store.videos["label"][11] = "rare"
    report = knn_probe(store, label="label")
    text = knn_text(report)
    for part in (
        "store     /stores/memory.zarr",
        "*** UNTRAINED: random weights ***",
        "rows      19 used of 21 ok (0 unlabelled, 2 in excluded classes); 1 failed, 2 absent",
        "warning: 1 failed and 2 absent rows are not used",
        "warning: classes with fewer than 3 sources are left out: 'rare' (1 sources, 2 rows)",
        "warning: k of 20, 100, 200 is left out: some row has fewer rows of other sources.",
    ):
        assert part in text
    plain = json.loads(json.dumps(knn_dict(report), allow_nan=False))
    assert (plain["rows"]["used"], plain["rows"]["absent"], plain["left_out_k"]) == (19, 2, [20, 100, 200])
    assert len(plain["warnings"]) == 4


def test_a_row_of_zeros_has_no_direction() -> None:
    store = separable_store()
    store.tokens[3] = 0
    with pytest.raises(StoreError, match="1 of 120 rows have features of zeros"):
        knn_probe(store, label="label", neighbours=[5])
