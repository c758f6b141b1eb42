"""Splits of videos with several labels: whole sources, every label in every part, rare labels listed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.errors import UsageError
from coldframe.probe_cli import main
from coldframe.probes.category import Category
from coldframe.probes.label_sets import divide_sets, label_set, set_text, sources_per_label
from coldframe.probes.linear import linear_probe
from coldframe.probes.make_split import make_split
from coldframe.probes.multilabel_rows import multilabel_split, select_multilabel
from coldframe.probes.split_manifest import EXCLUDED, SplitManifest, read_manifest
from tests.probes.memory import MemoryStore, memory_store

WINDOWS = 2


def store_of_sets(videos: int = 80, **more: list[str]) -> MemoryStore:
    """Labels `a` to `d`, written in any order; every eighth video has none of them, every tenth is not labelled."""
    rng = np.random.default_rng(0)
    present = rng.random((videos, 4)) < [0.5, 0.4, 0.3, 0.2]
    present[::8] = False
    cells = [" ; ".join(rng.permutation(np.array(list("abcd"))[line]).tolist()) or ";" for line in present]
    cells[::10] = [""] * len(cells[::10])
    return memory_store(cells, rng.normal(size=(videos * WINDOWS, 16)), windows=WINDOWS, more=more)


def parts(manifest: SplitManifest) -> dict[str, str]:
    return {video.sha256: video.part for video in manifest.videos}


@pytest.mark.parametrize(
    ("cell", "labels", "text"),
    [("a", {"a"}, "a"), (" b ; a ;a", {"a", "b"}, "a;b"), (";", set(), ";"), (" ; ", set(), ";"), ("", set(), ";")],
)
def test_one_text_for_every_way_to_write_a_set(cell: str, labels: set[str], text: str) -> None:
    assert label_set(cell) == labels
    assert set_text(label_set(cell)) == text
    assert label_set(text) == labels


def test_sources_of_a_label_are_counted_once() -> None:
    components = Category.from_text(["s", "s", "t", "u"])
    sets = [frozenset("ab"), frozenset("a"), frozenset("b"), frozenset[str]()]
    assert sources_per_label(components, sets) == {"a": 1, "b": 2}


def test_every_label_has_its_share_and_sources_stay_whole() -> None:
    store = store_of_sets(240, scene=[f"scene {v // 2}" for v in range(240)])
    manifest = make_split(store, by=("source", "scene"), label="label", multi_label=True)
    assert {video.part for video in manifest.videos} == {"train", "validation", "test"}
    assert len(manifest.videos) == 216  # the unlabelled tenth is in no split
    side = parts(manifest)
    digests = store.videos["sha256"]
    for first in range(0, 240, 2):
        pair = {side[digests[v]] for v in (first, first + 1) if digests[v] in side}
        assert len(pair) <= 1
    counts = manifest.counts()
    for label in "abcd":
        found = np.array([counts[part][label]["sources"] for part in ("train", "validation", "test")])
        np.testing.assert_allclose(found / found.sum(), [0.6, 0.2, 0.2], atol=0.08)
    none = [counts[part][""]["videos"] for part in ("train", "validation", "test")]
    assert sum(none) == sum(video.label == ";" for video in manifest.videos)
    assert manifest.excluded() == {}


def test_it_is_the_division_that_the_readout_makes_itself() -> None:
    store = store_of_sets()
    manifest = make_split(store, label="label", multi_label=True, seed=3)
    chosen = select_multilabel(store, "label", ("source",))
    split = multilabel_split(chosen, 3)
    side = parts(manifest)
    for part, rows in split.parts().items():
        assert {side[store.videos["sha256"][v]] for v in chosen.video[rows]} == {part}


def test_rare_labels_are_listed_and_their_videos_stay() -> None:
    store = store_of_sets()
    store.videos["label"][1] += ";rare"
    store.videos["label"][2] = "rare"
    manifest = make_split(store, label="label", multi_label=True)
    assert manifest.excluded() == {"rare": {"sources": 2, "videos": 2, "rows": 2 * WINDOWS}}
    assert EXCLUDED not in parts(manifest).values()
    assert all("rare" not in classes for classes in manifest.counts().values())
    store.videos["label"] = ["rare" if v < 2 else ";" for v in range(80)]
    with pytest.raises(UsageError, match=r"no label has 3 or more sources.* 'rare' \(2\)"):
        make_split(store, label="label", multi_label=True)


def test_folds_have_every_label() -> None:
    manifest = make_split(store_of_sets(), label="label", multi_label=True, folds=4)
    for classes in manifest.counts().values():
        assert set("abcd") <= set(classes)
    assert len(manifest.divisions()) == 4


def test_the_order_of_rows_and_of_labels_in_a_cell_does_not_matter() -> None:
    store, shuffled = store_of_sets(), store_of_sets()
    order = np.random.default_rng(3).permutation(80)
    shuffled.videos = {name: [values[v] for v in order] for name, values in store.videos.items()}
    shuffled.videos["label"] = [";".join(reversed(cell.split(";"))) for cell in shuffled.videos["label"]]
    shuffled.tokens = store.tokens.reshape(80, WINDOWS, -1)[order].reshape(80 * WINDOWS, -1)
    one, other = (make_split(each, label="label", multi_label=True) for each in (store, shuffled))
    assert parts(one) == parts(other)
    assert [video.label for video in one.videos] == [video.label for video in other.videos]


def test_labels_that_always_come_together_cannot_be_apart() -> None:
    # Each of 4 triples of 4 sources is a label: all sources would have to be in different parts, of 3.
    sets = [frozenset("abcd") - {name} for name in "abcd"]
    with pytest.raises(UsageError, match="every label in all 3 parts"):
        divide_sets(Category.from_text(list("stuv")), sets, (0.6, 0.2, 0.2), "0")


def test_written_read_back_and_refused_by_a_readout_of_one_label(tmp_path: Path) -> None:
    store = store_of_sets()
    manifest = make_split(store, label="label", multi_label=True)
    manifest.write(tmp_path / "s.json")
    assert read_manifest(tmp_path / "s.json") == replace(manifest, path=tmp_path / "s.json")
    with pytest.raises(UsageError, match="made for several labels a video"):
        linear_probe(store, label="label", split=manifest)


def test_one_label_a_video_keeps_the_digest_of_earlier_versions() -> None:
    labels = [f"c{v % 2}" for v in range(12)]
    manifest = make_split(memory_store(labels, np.ones((24, 3)) * np.arange(24)[:, None], windows=2), label="label")
    assert "multi_label" not in manifest._fields()


def test_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = store_of_sets()
    store.videos["label"][1] += ";rare"
    monkeypatch.setattr("coldframe.probes.split_cli.open_store", lambda path: store)
    args = ["split", "S", "--label", "label", "--multi-label", "--out"]
    shown = CliRunner().invoke(main, [*args, str(tmp_path / "a.json")])
    assert shown.exit_code == 0, shown.output
    assert "classes with too few sources do not decide, and their videos stay: 'rare' (1 sources)" in shown.stdout
    data = json.loads(CliRunner().invoke(main, [*args, str(tmp_path / "b.json"), "--json"]).stdout)
    assert data["multi_label"] is True
    assert data["digest"] == read_manifest(tmp_path / "a.json").digest
    wrong = CliRunner().invoke(main, ["split", "S", "--multi-label", "--out", str(tmp_path / "c.json")])
    assert wrong.exit_code == 2
    assert "no label column is named" in wrong.stderr
    ratios = CliRunner().invoke(main, [*args, str(tmp_path / "c.json"), "--ratios", "0.5,0.2,0.2"])
    assert "sum to 1" in ratios.stderr
