import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from coldframe.probe_cli import main
from coldframe.probes.category import Category
from coldframe.probes.control_report import run_controls
from coldframe.probes.controls import Problem, label_controls, leak_controls
from coldframe.probes.near_duplicates import NearDuplicates, Pair
from coldframe.probes.paired import fitted
from coldframe.probes.permutation import Null
from coldframe.probes.refit import Refit
from coldframe.probes.selection import select_rows
from coldframe.probes.split import build_split, split_by_group
from coldframe.probes.verdict import Control, above_null, at_chance, judged
from tests.probes.memory import MemoryStore, memory_store, separable_store


def many_random_videos(videos: int = 160, windows: int = 4) -> MemoryStore:
    """Random labels, tokens that show only the video: honest scores are at chance, leaky ones near 1."""
    rng = np.random.default_rng(48)
    labels = [f"class {code}" for code in rng.permutation(np.arange(videos) % 4)]
    tokens = np.repeat(rng.normal(size=(videos, 64)), windows, axis=0)
    return memory_store(labels, tokens + 0.1 * rng.normal(size=(videos * windows, 64)), windows=windows)


def problem(store: MemoryStore, *, leaky: bool = False) -> Problem:
    chosen = select_rows(store, "label", ("source",))
    split = split_by_group(chosen.components, chosen.labels, seed=0)
    if leaky:
        rows = np.random.default_rng(0).permutation(len(chosen.rows))
        train, validation, test = np.split(rows, [int(0.6 * len(rows)), int(0.8 * len(rows))])
        split = replace(split, train=train, validation=validation, test=test)
    return Problem(matrix=store.tokens, selection=chosen, split=split)


def by_name(controls: list[Control]) -> dict[str, Control]:
    return {control.name: control for control in controls}


def test_leaky_split_window_shuffle_is_blind_and_source_relabel_is_not() -> None:
    found = by_name(judged(label_controls(problem(many_random_videos(60), leaky=True), permutations=99)))
    shuffle, relabel = found["window_shuffle"], found["source_relabel"]
    assert shuffle.effect is not None
    assert relabel.effect is not None
    assert abs(shuffle.effect) < 0.02
    assert relabel.effect > 0.5
    assert relabel.verdict == "fail"


def test_honest_split_is_at_chance_in_both_and_the_real_score_is_nothing() -> None:
    found = by_name(judged(label_controls(problem(many_random_videos()), permutations=60)))
    for name in ("window_shuffle", "source_relabel"):
        effect = found[name].effect
        assert effect is not None
        assert abs(effect) < 0.03
        assert found[name].verdict != "fail"
    assert found["label_null"].verdict != "pass"


def test_real_classes_pass_and_few_sources_are_inconclusive() -> None:
    found = by_name(judged(label_controls(problem(separable_store(videos=90)), permutations=99)))
    assert found["label_null"].verdict == "pass"
    assert found["label_null"].draws == 99
    assert found["source_relabel"].verdict == "inconclusive"
    assert "with 18 test sources only an excess of" in found["source_relabel"].reason


def test_sources_that_hold_every_class_have_a_null_of_their_own() -> None:
    store = separable_store(videos=90)
    store.videos["source"] = [f"scene {v // 3}" for v in range(90)]  # each scene films all three classes
    found = by_name(judged(label_controls(problem(store), permutations=99)))
    assert found["label_null"].verdict == "pass"
    assert (found["label_null"].effect or 0) > 0.4
    assert found["source_relabel"].verdict != "fail"
    assert found["source_relabel"].effect == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("sources", [(2, 2, 11), (11, 2, 2)], ids=["few in train", "few in test"])
def test_label_null_is_no_surer_than_the_exchanges_that_either_part_allows(sources: tuple[int, int, int]) -> None:
    # Two sources of either class have 6 ways to exchange labels, so no p can be much below 1/6, however good the head.
    store = separable_store(videos=30, classes=("run", "walk"))
    chosen = select_rows(store, "label", ("source",))
    ends = np.cumsum([2 * count for count in sources])
    video = store.columns["video"][chosen.rows]
    train, validation, test = (
        np.flatnonzero((video >= end - 2 * n) & (video < end)) for end, n in zip(ends, sources, strict=True)
    )
    split = build_split(chosen.components, chosen.labels, train=train, validation=validation, test=test)
    given = Problem(matrix=store.tokens, selection=chosen, split=split)
    found = by_name(label_controls(given, permutations=300))["label_null"]
    assert found.effect is not None
    assert found.effect > 0.3
    assert found.p is not None
    assert 0.11 < found.p < 0.23


def test_label_null_is_no_surer_than_all_exchanges_of_test_labels() -> None:
    rng = np.random.default_rng(7)
    features = rng.normal(size=(50, 8))
    features[:, 0] += 1.2 * (np.arange(50) % 2)
    tokens = np.repeat(features, 2, axis=0) + 0.1 * rng.normal(size=(100, 8))
    given = problem(memory_store(["ab"[v % 2] for v in range(50)], tokens, windows=2))
    # two rows a source: by hand, the share of the ways to call 5 of 10 test sources `b` that score as well
    predicted = fitted(given, given.matrix).predict(given.matrix[given.split.test]).reshape(10, 2)
    real = given.selection.labels.codes[given.split.test][::2]
    assert real.sum() == 5
    scores: dict[tuple[int, ...], NDArray[np.bool_]] = {
        chosen: np.isin(np.arange(10), chosen)[:, None] == predicted for chosen in itertools.combinations(range(10), 5)
    }
    observed = scores[tuple(np.flatnonzero(real).tolist())].mean()
    exact = np.mean([right.mean() >= observed for right in scores.values()])
    found = by_name(label_controls(given, permutations=199))["label_null"]
    assert found.p == pytest.approx(exact, abs=0.06)
    assert exact > 0.1  # exchanging train labels alone says 0.035


def test_window_shuffle_permutes_train_and_validation_and_scores_the_true_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = problem(many_random_videos(60))
    labels, split = given.selection.labels.codes, given.split
    seen: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    class Recording(Refit):
        def predict(self, train: NDArray[np.int64], validation: NDArray[np.int64]) -> NDArray[np.int64]:
            seen.append((train, validation))
            return labels[split.test]

    monkeypatch.setattr("coldframe.probes.controls.Refit", Recording)
    found = by_name(label_controls(given, permutations=99))
    for train, validation in seen[:99]:
        for permuted, rows in ((train, split.train), (validation, split.validation)):
            assert not np.array_equal(permuted, labels[rows])
            assert np.array_equal(np.bincount(permuted), np.bincount(labels[rows]))
    assert found["window_shuffle"].effect == pytest.approx(0.75)  # the answers are the true labels, and chance is 0.25
    assert found["source_relabel"].effect is not None
    assert found["source_relabel"].effect < 0.2  # and not those of a relabelled test part


def test_same_source_neighbours_across_parts_fail() -> None:
    store = many_random_videos(60)
    nothing = NearDuplicates(threshold=0.9, compared=240, windows=240, pairs=())
    video = store.columns["video"].astype(np.int64)
    source = Category.from_text([f"source {v}" for v in video])
    honest = by_name(leak_controls(problem(store), source, nothing, video))
    assert (honest["same_source"].effect, honest["same_source"].verdict) == (0.0, "pass")
    one = Category.from_text(["one source"] * 240)  # what the store says, whatever the split was made by
    assert by_name(leak_controls(problem(store), one, nothing, video))["same_source"].effect == 1.0
    leaky = by_name(leak_controls(problem(store, leaky=True), source, nothing, video))
    assert leaky["same_source"].effect is not None
    assert leaky["same_source"].effect > 0.8
    assert leaky["same_source"].verdict == "fail"


def test_copies_across_train_and_test_fail() -> None:
    store = many_random_videos(60)
    given = problem(store)
    video = store.columns["video"].astype(np.int64)
    source = Category.from_text([f"source {v}" for v in video])
    first, second = sorted((int(video[given.split.train[0]]), int(video[given.split.test[0]])))
    pair = Pair(first=first, second=second, similarity=0.99, windows=4, offset_s=0.0, confirmed=True)

    def found(pairs: tuple[Pair, ...], threshold: float | None = 0.9) -> Control:
        copies = NearDuplicates(threshold=threshold, compared=240, windows=240, pairs=pairs)
        return by_name(leak_controls(given, source, copies, video))["near_duplicates"]

    assert (found((pair,)).effect, found((pair,)).verdict) == (1.0, "fail")
    assert found((replace(pair, confirmed=False),)).verdict == "pass"
    assert found((), None).verdict == "not_applicable"


@pytest.mark.parametrize(
    ("mean", "sd", "two_sided", "verdict"),
    [
        (0.25, 0.01, True, "pass"),
        (0.40, 0.01, True, "fail"),
        (0.10, 0.01, True, "fail"),
        (0.22, 0.01, False, "pass"),
        (0.25, 0.06, True, "inconclusive"),
        (0.90, 0.06, True, "fail"),
    ],
)
def test_words_for_scores_that_must_be_at_chance(mean: float, sd: float, two_sided: bool, verdict: str) -> None:
    scores = mean + sd * np.random.default_rng(0).normal(size=400)
    assert at_chance("n", "w", Null(scores=scores), 0.25, 40, two_sided=two_sided).verdict == verdict


def test_words_after_holm() -> None:
    sharp = Null(scores=0.25 + 0.01 * np.random.default_rng(0).normal(size=999))
    blunt = Null(scores=0.25 + 0.1 * np.random.default_rng(0).normal(size=999))
    tests = [
        above_null("found", "w", 0.5, sharp, 40),
        above_null("nothing", "w", 0.25, sharp, 40),
        above_null("weak", "w", 0.3, blunt, 12),
    ]
    found = judged(tests)
    assert [control.verdict for control in found] == ["pass", "fail", "inconclusive"]
    assert found[0].p == 0.001
    assert found[0].p_holm == pytest.approx(0.003)
    border = Null(scores=np.linspace(0, 0.3, 49))  # p = 1/50: significant alone, not among three
    assert judged([above_null("a", "w", 0.5, border, 40)])[0].verdict == "pass"
    three = judged([above_null(n, "w", 0.5, border, 40) for n in "abc"])
    assert [control.p_holm for control in three] == pytest.approx([0.06] * 3)
    assert {control.verdict for control in three} == {"inconclusive"}


def test_same_source_windows_inflate_retrieval_and_the_meter_shows_it() -> None:
    found = run_controls(many_random_videos(60), label="label", seeds=[0], permutations=99)
    assert found.other_sources is not None
    assert found.same_source is not None
    assert found.same_source.nearest_same_source > 0.99
    assert found.same_source.scores["hit@1"].micro > 0.99
    assert found.other_sources.scores["hit@1"].micro < 0.45


def test_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldframe.probes.controls_cli.open_store", lambda path: separable_store(videos=60))
    args = ["controls", "S", "--label", "label", "--permutations", "99"]
    result = CliRunner().invoke(main, [*args, "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    names = ["same_source", "near_duplicates", "window_shuffle", "source_relabel", "label_null", "baselines"]
    assert [control["name"] for control in data["controls"]] == names
    assert data["probe"]["balanced_accuracy"]["mean"] == 1.0
    assert data["leak_meter"]["other_sources"]["scores"]["hit@1"]["micro"] == 1.0
    text = CliRunner().invoke(main, args).stdout
    assert "label_null" in text
    assert "Leak meter" in text
