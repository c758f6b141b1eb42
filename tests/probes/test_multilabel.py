"""Several labels a video, against scikit-learn's one-vs-rest on the same split."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler

from coldframe.errors import UsageError
from coldframe.probe_cli import main
from coldframe.probes.label_sets import label_set
from coldframe.probes.make_split import make_split
from coldframe.probes.multilabel import by_video, multilabel_probe
from coldframe.probes.multilabel_report import warnings as warnings_of
from coldframe.probes.multilabel_rows import multilabel_split, select_multilabel
from coldframe.probes.ranking import average_precision, resampled_average_precision
from coldframe.probes.saved import Prediction, load_probe, prediction_lines
from coldframe.probes.split import require_disjoint
from coldframe.probes.split_manifest import SplitManifest, read_manifest
from coldframe.store.schema import Status
from tests.probes.memory import MemoryStore, memory_store

WINDOWS = 3


def labelled_store(videos: int = 80, seed: int = 0) -> MemoryStore:
    """Labels `a` to `d` shift a dimension each; every eighth video has none of them, every tenth is not labelled."""
    rng = np.random.default_rng(seed)
    present = rng.random((videos, 4)) < [0.5, 0.4, 0.3, 0.25]
    present[::8] = False
    cells = [";".join(np.array(list("abcd"))[line]) or ";" for line in present]
    cells[5] = " b ; a ;"
    present[5] = [True, True, False, False]
    cells[::10] = [""] * len(cells[::10])
    tokens = np.repeat(present @ np.eye(4, 12) * 1.5 + rng.normal(size=(videos, 12)), WINDOWS, axis=0)
    return memory_store(cells, tokens + rng.normal(size=(videos * WINDOWS, 12)), windows=WINDOWS)


def test_cells_say_several_labels_none_or_nothing() -> None:
    store = labelled_store()
    chosen = select_multilabel(store, "label", ("source",))
    assert chosen.names == ("a", "b", "c", "d")
    assert chosen.unlabelled == 8 * WINDOWS
    assert 0 not in chosen.video
    assert chosen.without_label > 0
    assert not chosen.targets[chosen.video == 8].any()
    assert chosen.targets[chosen.video == 5].tolist() == [[True, True, False, False]] * WINDOWS


def test_rare_labels_are_listed_and_their_rows_stay() -> None:
    store = labelled_store()
    store.videos["label"][1] += ";rare"
    chosen = select_multilabel(store, "label", ("source",))
    assert [count.name for count in chosen.excluded] == ["rare"]
    assert 1 in chosen.video
    store.videos["label"] = ["rare" if v < 2 else "" for v in range(80)]
    with pytest.raises(UsageError, match="no label of 'label' has positives in 3 or more sources"):
        select_multilabel(store, "label", ("source",))


def test_labels_that_may_be_one_and_rows_that_are_missing_are_said() -> None:
    store = labelled_store()
    store.videos["label"] = [cell.replace("a", "A" if v % 2 else "a") for v, cell in enumerate(store.videos["label"])]
    store.columns["status"][:2] = [Status.FAILED, Status.ABSENT]
    said = "\n".join(warnings_of(multilabel_probe(store, label="label", seeds=[0], strengths=[1.0])))
    assert "'A', 'a' count as 2 classes" in said
    assert "1 failed and 1 absent rows are not used" in said


@pytest.mark.parametrize("seed", [0, 1])
def test_split_is_by_source_and_has_every_label_in_every_part(seed: int) -> None:
    store = labelled_store()
    store.videos["source"] = [f"source {v // 2}" for v in range(80)]
    chosen = select_multilabel(store, "label", ("source",))
    split = multilabel_split(chosen, seed)
    require_disjoint(split, chosen.components)
    shares = {
        name: chosen.targets[rows].sum(axis=0) / chosen.targets.sum(axis=0) for name, rows in split.parts().items()
    }
    assert sum(len(rows) for rows in split.parts().values()) == len(chosen.rows)
    for name, wanted in (("train", 0.6), ("validation", 0.2), ("test", 0.2)):
        np.testing.assert_allclose(shares[name], wanted, atol=0.12)
    none = np.flatnonzero(~chosen.targets.any(axis=1))
    assert all(np.isin(none, rows).any() for rows in split.parts().values())


def test_equal_to_one_vs_rest_of_sklearn() -> None:
    store = labelled_store()
    report = multilabel_probe(store, label="label", strengths=[0.1], seeds=[0])
    chosen, result = report.selection, report.results[0]
    split = multilabel_split(chosen, 0)
    matrix = store.tokens[chosen.rows]
    scaler = StandardScaler().fit(matrix[split.train].astype(np.float64))
    theirs = OneVsRestClassifier(LogisticRegression(C=0.1, tol=1e-8, max_iter=1000))
    theirs.fit(scaler.transform(matrix[split.train]), chosen.targets[split.train])
    probabilities = theirs.predict_proba(scaler.transform(matrix[split.test]))
    np.testing.assert_allclose(result.head.probabilities(matrix[split.test]), probabilities, atol=2e-3)
    truth = chosen.targets[split.test]
    assert result.map_windows == pytest.approx(average_precision_score(truth, probabilities, average="macro"), abs=5e-3)
    videos = np.unique(chosen.video[split.test])
    means = np.stack([probabilities[chosen.video[split.test] == v].mean(axis=0) for v in videos])
    of_video = np.stack([truth[chosen.video[split.test] == v][0] for v in videos])
    assert result.map == pytest.approx(average_precision_score(of_video, means, average="macro"), abs=0.02)
    assert result.test_videos == len(videos)
    assert result.chance == pytest.approx(of_video.mean())
    assert result.map > result.chance + 0.2
    assert result.interval.low is not None
    assert result.interval.high is not None
    assert result.interval.low < result.map < result.interval.high


def test_a_class_without_positives_is_left_out_where_sklearn_counts_zero() -> None:
    chosen = select_multilabel(labelled_store(), "label", ("source",))
    rows = np.flatnonzero(~chosen.targets[:, 3])
    scores, truth, owners = by_video(np.random.default_rng(0).random((len(rows), 4)), chosen, rows)
    assert len(scores) == len(set(chosen.video[rows].tolist())) == len(owners)
    assert np.isnan(average_precision(scores[:, 3], truth[:, 3]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert average_precision_score(truth[:, 3], scores[:, 3]) == 0


def test_resampling_is_the_same_as_repeating_items() -> None:
    rng = np.random.default_rng(0)
    scores, relevant = np.round(rng.random(30), 1), rng.random(30) < 0.3
    weights = rng.integers(0, 4, (20, 30)).astype(np.float64)
    for one, found in zip(weights, resampled_average_precision(scores, relevant, weights), strict=True):
        repeated = np.repeat(np.arange(30), one.astype(int))
        assert found == pytest.approx(average_precision_score(relevant[repeated], scores[repeated]), abs=1e-12)
    assert np.isnan(resampled_average_precision(scores, np.zeros(30, bool), weights)).all()


def test_test_labels_do_not_change_the_head() -> None:
    store, other = labelled_store(), labelled_store()
    first = multilabel_probe(store, label="label", strengths=[0.1, 1], seeds=[0]).results[0]
    split = multilabel_split(select_multilabel(store, "label", ("source",)), 0)
    rows = select_multilabel(store, "label", ("source",)).rows[split.test]
    other.tokens[rows] = 1e4
    second = multilabel_probe(other, label="label", strengths=[0.1, 1], seeds=[0]).results[0]
    assert first.head.weight.tobytes() == second.head.weight.tobytes()
    assert first.head.strength == second.head.strength


def test_command_with_labels_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = labelled_store()
    file = tmp_path / "labels.csv"
    pairs = zip(store.videos["sha256"], store.videos["label"], strict=True)
    file.write_text("sha256,actions\n" + "".join(f"{key},{cell}\n" for key, cell in pairs))
    monkeypatch.setattr("coldframe.probes.multilabel_cli.open_store", lambda path: store)
    args = ["multi-label", "S", "--labels", str(file), "--label", "actions", "-C", "0.1", "-C", "1"]
    data = json.loads(CliRunner().invoke(main, [*args, "--json", "--save", str(tmp_path / "h")]).stdout)
    assert data["map"]["mean"] > 0.5
    assert len({seed["split_digest"] for seed in data["seeds"]}) > 1
    for seed in data["seeds"]:
        assert 0 <= seed["calibration"]["brier"] <= 1
        assert set(seed["calibration"]) == {"ece", "ece_equal_mass", "ece_if_calibrated", "nll", "brier"}
    assert data["ensemble"] == "mean_prob"
    shown = CliRunner().invoke(main, args)
    assert shown.exit_code == 0, shown.output
    assert "mAP of windows" in shown.stdout
    card, tensors = load_probe(tmp_path / "h")
    assert (card.kind, card.link, card.names) == ("linear", "sigmoid", ("a", "b", "c", "d"))
    assert tensors["weight"].shape == (12, 4)
    says = [Prediction(row=0, values=np.array([0.9, 0.2, 0.6, 0.4]))]
    store.columns["clip_end_s"] = store.columns["clip_start_s"] + 1
    line = json.loads(next(prediction_lines(store, card, iter(says))))
    assert line["labels"] == ["a", "c"]


def sealed(store: MemoryStore, folder: Path, **more: object) -> SplitManifest:
    make_split(store, **more).write(folder / "split.json")  # type: ignore[arg-type]
    return read_manifest(folder / "split.json")


def test_a_split_by_source_alone_serves_several_labels(tmp_path: Path) -> None:
    store = labelled_store()
    manifest = sealed(store, tmp_path)
    report = multilabel_probe(store, label="label", strengths=[0.1], split=manifest)
    (result,) = report.results
    part = {video.sha256: video.part for video in manifest.videos}
    labelled = [v for v, cell in enumerate(store.videos["label"]) if cell]
    test = [v for v in labelled if part[store.videos["sha256"][v]] == "test"]
    assert result.test_videos == len(test)
    assert report.selection.unlisted == 0
    assert report.selection.names == ("a", "b", "c", "d")
    present = np.array([[name in store.videos["label"][v] for name in "abcd"] for v in test])
    assert result.truth.tolist() == present[:, present.any(axis=0)].tolist()


def test_labels_that_a_part_lacks_are_left_out_and_said(tmp_path: Path) -> None:
    store = labelled_store()
    manifest = sealed(store, tmp_path)
    part = {video.sha256: video.part for video in manifest.videos}
    train = [v for v, key in enumerate(store.videos["sha256"]) if part[key] == "train" and store.videos["label"][v]]
    for v in train[:9]:
        store.videos["label"][v] += ";only in train"
    report = multilabel_probe(store, label="label", strengths=[0.1], split=manifest)
    assert report.selection.names == ("a", "b", "c", "d")
    assert [count.name for count in report.selection.excluded] == ["only in train"]
    assert (
        "labels without a positive in every part of the split are left out: 'only in train' (9 sources)."
        in warnings_of(report)
    )


def test_what_a_split_does_not_fit_is_refused(tmp_path: Path) -> None:
    store = labelled_store()
    manifest = replace(sealed(store, tmp_path), label="label")
    listed = replace(
        manifest,
        path=None,
        videos=tuple(
            replace(video, label=";".join(sorted(label_set(store.videos["label"][v]))))
            for video in manifest.videos
            for v in [store.videos["sha256"].index(video.sha256)]
        ),
    )
    assert multilabel_probe(store, label="label", strengths=[0.1], split=listed).results  # other words, same labels
    store.videos["label"][1] = "a;b;c;d"
    with pytest.raises(UsageError, match="1 videos have another label than in the split"):
        multilabel_probe(store, label="label", strengths=[0.1], split=listed)
    fewer = replace(listed, videos=listed.videos[1:])
    with pytest.raises(UsageError, match="1 of 72 labelled videos are not in the split"):
        multilabel_probe(store, label="label", strengths=[0.1], split=fewer)


def test_mean_interval_draws_the_same_sources_for_every_split() -> None:
    report = multilabel_probe(labelled_store(), label="label", strengths=[0.1], seeds=[0, 0])
    one, two = report.results
    assert (report.interval.low, report.interval.high) == (one.interval.low, one.interval.high)
    assert two.interval == one.interval
    few = multilabel_probe(labelled_store(videos=40), label="label", strengths=[0.1], seeds=[0])
    assert few.interval.low is None
    assert "an interval needs at least 10" in few.interval.reason


def test_page_says_what_the_numbers_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = labelled_store()
    monkeypatch.setattr("coldframe.probes.multilabel_cli.open_store", lambda path: store)
    args = ["multi-label", "S", "--label", "label", "-C", "0.1", "--report", str(tmp_path / "r.html"), "--json"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    printed, beside = json.loads(result.stdout), json.loads((tmp_path / "r.json").read_text())
    assert beside["probe"] == printed
    assert beside["extraction"]["recipe id"] == store.recipe_id
    html = (tmp_path / "r.html").read_text()
    assert "prefers-color-scheme: dark" in html
    assert "http" not in html
    for said in (f"{printed['map']['mean']:.3f}", f"{printed['map']['interval']['low']:.3f}", "AP on test", "probe 0."):
        assert said in html, said
