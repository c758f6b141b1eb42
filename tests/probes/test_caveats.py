from dataclasses import replace

import pytest

from coldframe.probes.caveats import caveats
from coldframe.probes.linear import LinearReport, linear_probe
from coldframe.store.schema import Status
from tests.probes.memory import MemoryStore, separable_store


def report(store: MemoryStore) -> LinearReport:
    return linear_probe(store, label="label")


def texts(store: MemoryStore) -> str:
    return "\n".join(caveats(report(store)))


def test_nothing_to_say_about_a_large_clean_store() -> None:
    assert caveats(report(separable_store(videos=75))) == []


def test_untrained_encoder_comes_first() -> None:
    store = separable_store(untrained=True)
    store.columns["status"][0] = Status.FAILED
    assert "UNTRAINED" in caveats(report(store))[0]


def test_unknown_training_is_said() -> None:
    store = separable_store(videos=75)
    del store.encoder["untrained"]
    assert caveats(report(store)) == ["the store does not say whether its encoder was trained."]


@pytest.mark.parametrize(("videos", "expected"), [(30, True), (45, True), (60, False)])
def test_few_test_sources(videos: int, expected: bool) -> None:
    found = report(separable_store(videos=videos))
    sources = found.results[0].part_sources["test"]
    assert (sources < 10) == expected
    assert (
        any(f"{sources} test sources: too few sources for an interval" in text for text in caveats(found)) == expected
    )


def test_excluded_classes_are_named_with_counts() -> None:
    store = separable_store(videos=75)
    store.videos["label"][3] = store.videos["label"][4] = "rare"
    assert "'rare' (2 sources, 8 rows)" in texts(store)
    store = separable_store(videos=100)
    store.videos["label"][:25] = [f"rare {v:02}" for v in range(25)]
    assert "'rare 19' (1 sources, 4 rows) and 5 more" in texts(store)


def test_repeated_splits_are_said() -> None:
    found = report(separable_store(videos=75))
    assert "splits differ" not in "\n".join(caveats(found))
    repeated = replace(found, results=(found.results[0], *found.results[:2]))
    assert "only 2 of 3 splits differ" in "\n".join(caveats(repeated))


def test_rows_that_are_missing_or_padded_and_files_as_sources() -> None:
    store = separable_store(videos=75)
    store.columns["status"][:2] = [Status.FAILED, Status.ABSENT]
    store.columns["n_real"][5:8] = 9
    store.videos["source"] = list(store.videos["sha256"])
    said = texts(store)
    assert "1 failed and 1 absent rows are not used" in said
    assert "3 rows are padded: their [CLS] has seen repeated frames" in said
    assert "every file is its own source" in said


def test_classes_that_may_be_one_are_said() -> None:
    store = separable_store(videos=75)
    store.videos["label"][0] = "Run"
    assert "'Run', 'run' count as 2 classes" in texts(store)
