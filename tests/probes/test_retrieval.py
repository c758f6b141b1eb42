import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from coldframe.errors import StoreError, UsageError
from coldframe.probe_cli import main
from coldframe.probes.category import Category
from coldframe.probes.retrieval import Retrieval, average_precision_of_chance, hit_of_chance, retrieve
from coldframe.store.schema import Status
from tests.probes.memory import windows_of_random_videos


def search(
    features: NDArray[np.float64],
    labels: list[str],
    sources: list[str],
    exclude: bool = True,
    ks: tuple[int, ...] = (1,),
) -> Retrieval:
    names = [f"window {i}" for i in range(len(labels))]
    return retrieve(
        features.astype(np.float32),
        Category.from_text(labels),
        Category.from_text(sources),
        names,
        ks=ks,
        exclude_same_source=exclude,
    )


def at_angles(*degrees: float) -> NDArray[np.float64]:
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


def test_by_hand() -> None:
    # On a line of angles; sources of two windows each. Eligible rankings, nearest first:
    # 0: 20 b, 35 a, 70 a   hits 0 1 1  -> AP (1/2 + 2/3) / 2
    features = at_angles(0, 1, 20, 35, 70)
    found = search(features, ["a", "a", "b", "a", "a"], ["s", "s", "t", "u", "v"], ks=(1, 2))
    assert (found.queries, found.invalid, found.invalid_classes) == (5, 1, ("b",))
    # rankings of 0 and 1: b a a; of 35: b(15) 1(34) 0(35) 70(35) with 0 and 70 both relevant; of 70: 35 b 1 0
    ap = [(1 / 2 + 2 / 3) / 2] * 2 + [(1 / 2 + 2 / 3 + 3 / 4) / 3, (1 + 2 / 3 + 3 / 4) / 3]
    assert found.scores["mAP"].micro == pytest.approx(np.mean(ap))
    assert found.scores["hit@1"].micro == pytest.approx(1 / 4)
    assert found.scores["hit@2"].micro == 1.0
    assert found.scores["recall@2"].micro == pytest.approx(np.mean([1 / 2, 1 / 2, 1 / 3, 1 / 3]))
    assert found.scores["mAP"].macro == found.scores["mAP"].micro  # one class is left


def test_a_window_never_finds_itself_even_where_its_source_may_be_found() -> None:
    # nearest others: 0 -> 1 (b), 1 -> 0 (a), 30 -> 1 (b), 70 -> 30 (a)
    found = search(at_angles(0, 1, 30, 70), ["a", "b", "a", "b"], ["s", "t", "s", "t"], exclude=False)
    assert found.scores["hit@1"].micro == 0.0
    assert found.nearest_same_source == 0.0
    assert found.scores["recall@1"].chance == pytest.approx(1 / 3)  # of the three others


def test_macro_is_the_mean_over_classes() -> None:
    rng = np.random.default_rng(0)
    labels = ["a"] * 30 + ["b"] * 6
    features = np.concatenate([rng.normal(size=(30, 8)), 5 + 0.1 * rng.normal(size=(6, 8))])
    found = search(features, labels, [f"s{i}" for i in range(36)]).scores["hit@1"]
    per_class = {"b": 1.0, "a": (found.micro * 36 - 6) / 30}
    assert found.macro == pytest.approx(np.mean(list(per_class.values())))


def test_same_source_neighbours_are_excluded() -> None:
    # Field case 47: 60 videos of 20 windows, a random label a video.
    rng = np.random.default_rng(47)
    codes = rng.permutation(np.arange(60) % 4)
    features = np.repeat(rng.normal(size=(60, 32)), 20, axis=0) + 0.3 * rng.normal(size=(1200, 32))
    labels = [f"class {codes[v]}" for v in np.repeat(np.arange(60), 20)]
    sources = [f"s{v}" for v in np.repeat(np.arange(60), 20)]
    leaky, honest = search(features, labels, sources, exclude=False), search(features, labels, sources)
    assert leaky.scores["hit@1"].micro == 1.0
    interval = honest.scores["hit@1"].micro_interval
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < honest.scores["hit@1"].chance < interval.high
    assert honest.scores["hit@1"].chance == pytest.approx(14 / 59, abs=1e-9)
    assert honest.nearest_same_source == 1.0


def test_two_sources_with_a_class_each_have_no_valid_query() -> None:
    features = np.random.default_rng(0).normal(size=(8, 4))
    with pytest.raises(UsageError, match="each class lives in one source"):
        search(features, ["a"] * 4 + ["b"] * 4, ["s"] * 4 + ["t"] * 4)
    assert search(features, ["a"] * 4 + ["b"] * 4, ["s"] * 4 + ["t"] * 4, exclude=False).invalid == 0


def test_random_features_are_at_chance() -> None:
    rng = np.random.default_rng(1)
    found = search(
        rng.normal(size=(400, 16)), [f"c{i % 5}" for i in range(400)], [f"s{i}" for i in range(400)], ks=(1, 5)
    )
    for score in found.scores.values():
        assert score.micro == pytest.approx(score.chance, abs=0.05)
        assert score.best is None


def test_ties_are_decided_by_neither_row_nor_label() -> None:
    # Every vector is the same: an order by row would give each query its neighbours, sorted by class.
    labels = [f"c{i // 100}" for i in range(400)]
    found = search(np.ones((400, 3)), labels, [f"s{i}" for i in range(400)])
    hit = found.scores["hit@1"]
    assert found.tied == 1.0
    assert (hit.best, hit.worst) == (1.0, 0.0)
    assert hit.micro == pytest.approx(hit.chance, abs=0.1)
    ap = found.scores["mAP"]
    assert ap.best == 1.0
    assert ap.worst is not None
    assert ap.worst < ap.micro < 1


def test_order_of_rows_does_not_matter() -> None:
    rng = np.random.default_rng(2)
    features = rng.integers(-1, 2, (60, 3)) + 0.0 + np.array([5.0, 0, 0])  # many ties
    labels, sources = [f"c{i % 3}" for i in range(60)], [f"s{i // 2}" for i in range(60)]
    order = rng.permutation(60)
    names = [f"window {i}" for i in range(60)]

    def found(rows: list[int]) -> Retrieval:
        label, source = (Category.from_text([values[i] for i in rows]) for values in (labels, sources))
        return retrieve(features[rows].astype(np.float32), label, source, [names[i] for i in rows])

    one, other = found(list(range(60))), found(order.tolist())
    assert {n: s.micro for n, s in one.scores.items()} == pytest.approx({n: s.micro for n, s in other.scores.items()})


def test_chance_equals_counting_and_simulation() -> None:
    assert hit_of_chance(10, 3, 2) == pytest.approx(1 - math.comb(7, 2) / math.comb(10, 2))
    assert hit_of_chance(10, 3, 8) == 1.0
    assert average_precision_of_chance(50, 5) == pytest.approx(0.164, abs=5e-4)
    assert average_precision_of_chance(1, 1) == 1.0
    exact = (
        math.fsum(1 / i for i in range(1, 5001)) + 9 / 4999 * (5000 - math.fsum(1 / i for i in range(1, 5001)))
    ) / 5000
    assert average_precision_of_chance(5000, 10) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("bad", [0.0, np.nan])
def test_vectors_without_direction_are_refused(bad: float) -> None:
    features = np.ones((4, 3))
    features[2] = bad
    with pytest.raises(StoreError, match="window 2 are zero or not finite"):
        search(features, ["a", "a", "b", "b"], list("stuv"))


def test_cut_offs_beyond_the_gallery_are_refused() -> None:
    with pytest.raises(UsageError, match="has 3 eligible windows; a cut-off of 5 needs as many"):
        search(np.eye(4), ["a"] * 4, list("stuv"), ks=(1, 5))


def test_command_prints_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    store = windows_of_random_videos()
    monkeypatch.setattr("coldframe.probes.retrieve_cli.open_store", lambda path: store)
    result = CliRunner().invoke(main, ["retrieve", "S", "--label", "label", "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["same_source_kept"]["scores"]["hit@1"]["micro"] > 0.99
    assert data["other_sources"]["scores"]["hit@1"]["micro"] < 0.5
    assert data["other_sources"]["scores"]["hit@1"]["micro_interval"]["sources"] == 60
    text = CliRunner().invoke(main, ["retrieve", "S", "--label", "label", "--k", "1,10"]).stdout
    assert "hit@10" in text
    assert "other sources" in text
    assert "rows      1200 used of 1200 ok" in text
    assert data["rows"]["used"] == 1200
    store.encoder["untrained"], store.columns["status"][0] = True, Status.ABSENT
    text = CliRunner().invoke(main, ["retrieve", "S", "--label", "label"]).stdout
    assert "warning: the encoder is UNTRAINED" in text
    assert "warning: 0 failed and 1 absent rows are not used" in text
    store.videos["label"] = [f"class {v}" for v in range(60)]
    refused = CliRunner().invoke(main, ["retrieve", "S", "--label", "label"])
    assert refused.exit_code == 2
    assert "each class lives in one source" in refused.stderr


def test_command_refuses_cut_offs_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldframe.probes.retrieve_cli.open_store", lambda path: windows_of_random_videos())
    for text in ("0", "1.5", "x"):
        result = CliRunner().invoke(main, ["retrieve", "S", "--label", "label", "--k", text])
        assert result.exit_code == 2
        assert "--k" in result.stderr
