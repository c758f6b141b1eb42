import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from coldframe.errors import UsageError
from coldframe.probes.linear import LinearReport, linear_probe
from coldframe.probes.metrics import balanced_accuracy, confusion
from coldframe.probes.report import to_dict
from coldframe.probes.ridge import choose, fit_ridge
from coldframe.probes.selection import select_rows
from coldframe.probes.split import require_disjoint, split_by_group
from coldframe.store.schema import Status
from tests.probes.memory import MemoryStore, separable_store, windows_of_random_videos


def probe(store: MemoryStore, seeds: int = 3) -> LinearReport:
    return linear_probe(store, label="label", seeds=range(seeds))


def test_separable_classes_are_found() -> None:
    report = probe(separable_store())
    assert report.mean("balanced_accuracy") > 0.99
    assert report.mean("top1") > 0.99


def test_windows_of_random_videos_are_at_chance_when_split_by_source() -> None:
    report = probe(windows_of_random_videos())
    for result in report.results:
        standard_error = np.sqrt(0.25 * 0.75 / result.part_sources["test"])
        assert abs(result.balanced_accuracy - 0.25) <= 2 * standard_error
        assert result.chance == 0.25


def test_window_split_of_random_videos_looks_splendid_and_is_refused() -> None:
    store = windows_of_random_videos()
    chosen = select_rows(store, "label", ("source",))
    honest = split_by_group(chosen.components, chosen.labels, seed=0)
    train, validation, test = np.split(np.random.default_rng(0).permutation(1200), [720, 960])
    labels = chosen.labels.codes
    heads = fit_ridge(store.tokens[train], labels[train], 4)
    head, _ = choose(heads, store.tokens[validation], labels[validation], 4)
    assert balanced_accuracy(confusion(labels[test], head.predict(store.tokens[test]), 4)) > 0.9
    with pytest.raises(UsageError, match="leaky split: 60 of 60 sources"):
        require_disjoint(replace(honest, train=train, validation=validation, test=test), chosen.components)


def test_each_seed_is_checked_for_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaky(*args: object, **kwargs: object) -> object:
        split = split_by_group(*args, **kwargs)  # type: ignore[arg-type]
        return replace(split, test=np.append(split.test, split.train[:1]))

    monkeypatch.setattr("coldframe.probes.division.split_by_group", leaky)
    with pytest.raises(UsageError, match="leaky split"):
        probe(separable_store())


def test_failed_rows_are_never_used() -> None:
    clean = separable_store(videos=30, windows=4)
    dirty = separable_store(videos=30, windows=4)
    failed = np.arange(0, 120, 7)
    for store in (clean, dirty):
        store.columns["status"][failed] = Status.FAILED
    dirty.tokens[failed] = np.nan
    assert to_dict(probe(dirty)) == to_dict(probe(clean))


def test_duplicate_files_stay_on_one_side() -> None:
    # Every video exists twice under two sources; the label is random, so only a leak could be right.
    store = windows_of_random_videos()
    store.videos["sha256"] = [store.videos["sha256"][v // 2] for v in range(60)]
    store.videos["label"] = [store.videos["label"][v // 2] for v in range(60)]
    chosen = select_rows(store, "label", ("source",))
    split = split_by_group(chosen.components, chosen.labels, seed=0)
    side = {int(v): name for name, rows in split.parts().items() for v in store.columns["video"][chosen.rows[rows]]}
    assert len(side) == 60
    assert all(side[v] == side[v + 1] for v in range(0, 60, 2))


def test_mean_and_sd_over_seeds_by_hand() -> None:
    report = probe(windows_of_random_videos(), seeds=4)
    values = [result.balanced_accuracy for result in report.results]
    mean = sum(values) / 4
    assert report.mean("balanced_accuracy") == pytest.approx(mean)
    assert report.sd("balanced_accuracy") == pytest.approx((sum((v - mean) ** 2 for v in values) / 3) ** 0.5)
    assert probe(separable_store(), seeds=1).sd("top1") is None
    assert report.confusion().sum() == sum(result.part_rows["test"] for result in report.results)


def test_result_fields_agree_with_each_other() -> None:
    report = probe(windows_of_random_videos())
    assert len({result.split_digest for result in report.results}) == 3
    for result in report.results:
        assert sum(result.part_rows.values()) == 1200
        assert sum(result.part_sources.values()) == 60
        assert result.confusion.sum() == result.part_rows["test"]
        assert result.top1 == np.trace(result.confusion) / result.part_rows["test"]


def test_choice_does_not_look_at_test_rows() -> None:
    store = windows_of_random_videos()
    before = probe(store, seeds=1).results[0]
    chosen = select_rows(store, "label", ("source",))
    test = chosen.rows[split_by_group(chosen.components, chosen.labels, seed=0).test]
    store.tokens[test] = store.tokens[test][::-1] * 100
    after = probe(store, seeds=1).results[0]
    assert not np.array_equal(after.confusion, before.confusion)
    assert after.head.penalty == before.head.penalty
    assert after.head.weight.tobytes() == before.head.weight.tobytes()
    assert (after.head.mean.tobytes(), after.head.scale.tobytes()) == (
        before.head.mean.tobytes(),
        before.head.scale.tobytes(),
    )
    assert after.validation_balanced_accuracy == before.validation_balanced_accuracy


def test_majority_is_that_of_the_train_part() -> None:
    store = windows_of_random_videos()
    store.columns["status"][:1200:3] = Status.FAILED  # classes are no longer equally common
    store.columns["status"][200:240] = Status.FAILED
    chosen = select_rows(store, "label", ("source",))
    differs = False
    for seed, result in enumerate(probe(store, seeds=8).results):
        split = split_by_group(chosen.components, chosen.labels, seed=seed)
        train, test = chosen.labels.codes[split.train].tolist(), chosen.labels.codes[split.test].tolist()
        commonest = max(sorted(set(train)), key=train.count)
        assert result.majority_top1 == test.count(commonest) / len(test)
        everything = chosen.labels.codes.tolist()
        differs |= commonest != max(sorted(set(everything)), key=everything.count)
    assert differs


def test_the_same_under_another_order_of_videos() -> None:
    store, shuffled = separable_store(videos=30, windows=1), separable_store(videos=30, windows=1)
    order = np.random.default_rng(3).permutation(30)
    shuffled.videos = {name: [values[v] for v in order] for name, values in store.videos.items()}
    shuffled.tokens = store.tokens[order]
    one, other = to_dict(probe(store)), to_dict(probe(shuffled))
    assert one == other


PRINT_REPORT = """
import json
from coldframe.probes.linear import linear_probe
from coldframe.probes.report import to_dict
from tests.probes.memory import separable_store
print(json.dumps(to_dict(linear_probe(separable_store(), label="label"))))
"""


def test_the_same_under_two_hash_seeds() -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PRINT_REPORT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        outputs.append(json.loads(done.stdout))
    assert outputs[0] == outputs[1]
    assert [count["name"] for count in outputs[0]["classes"]] == ["jump", "run", "walk"]
