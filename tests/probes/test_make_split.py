import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.errors import InputNotFound, StoreError, UsageError
from coldframe.probe_cli import main
from coldframe.probes.linear import linear_probe
from coldframe.probes.make_split import make_split
from coldframe.probes.selection import select_rows
from coldframe.probes.split import split_by_group
from coldframe.probes.split_manifest import SplitManifest, read_manifest
from tests.probes.memory import MemoryStore, separable_store, windows_of_random_videos


def parts(manifest: SplitManifest) -> dict[str, str]:
    return {video.sha256: video.part for video in manifest.videos}


def test_every_part_has_every_class_and_whole_sources() -> None:
    store = separable_store(more={"subject": [f"p{v // 2}" for v in range(30)]})
    manifest = make_split(store, by=("source", "subject"), label="label")
    for part in ("train", "validation", "test"):
        assert set(manifest.counts()[part]) == {"jump", "run", "walk"}
    side = parts(manifest)
    for first in range(0, 30, 2):
        assert side[store.videos["sha256"][first]] == side[store.videos["sha256"][first + 1]]
    assert sum(count["rows"] for classes in manifest.counts().values() for count in classes.values()) == 120


def test_ratios_are_of_sources() -> None:
    manifest = make_split(separable_store(videos=60), label="label", ratios=(0.8, 0.1, 0.1))
    counts = {part: sum(c["sources"] for c in classes.values()) for part, classes in manifest.counts().items()}
    assert counts == {"train": 48, "validation": 6, "test": 6}


def test_folds_test_every_video_once() -> None:
    store = separable_store()
    manifest = make_split(store, label="label", folds=5)
    tested: list[str] = []
    for division in manifest.divisions():
        tested += [digest for digest, part in division.items() if part == "test"]
        assert set(division.values()) == {"train", "validation", "test"}
    assert sorted(tested) == sorted(store.videos["sha256"])
    report = linear_probe(store, label="label", split=manifest)
    assert [result.seed for result in report.results] == [0, 1, 2, 3, 4]
    assert sum(result.part_rows["test"] for result in report.results) == 120
    assert report.mean("balanced_accuracy") == 1.0


def test_rare_classes_are_listed_and_in_no_part() -> None:
    store = separable_store()
    store.videos["label"][:4] = ["rare", "rare", "rare", "rarer"]
    manifest = make_split(store, label="label")
    assert set(manifest.excluded()) == {"rarer"}
    folds = make_split(store, label="label", folds=4)
    assert set(folds.excluded()) == {"rare", "rarer"}
    assert linear_probe(store, label="label", split=folds).selection.labels.names == ("jump", "run", "walk")


def test_copies_with_other_bytes_stay_together() -> None:
    store = windows_of_random_videos()
    rng = np.random.default_rng(0)
    tokens = store.tokens.reshape(60, 20, -1)
    tokens[40:] = tokens[:20] + 0.02 * rng.normal(size=(20, 20, 64))  # 20 videos encoded once more
    store.videos["label"][40:] = store.videos["label"][:20]
    manifest = make_split(store, label="label")
    confirmed = {(pair["first"], pair["second"]) for pair in manifest.near_duplicates["confirmed"]}
    digests = store.videos["sha256"]
    assert confirmed == {(digests[v], digests[40 + v]) for v in range(20)}
    side = parts(manifest)
    assert all(side[digests[v]] == side[digests[40 + v]] for v in range(20))
    chosen = select_rows(store, "label", ("source",))
    unaware = split_by_group(chosen.components, chosen.labels, seed=0)
    apart = {int(v): part for part, rows in unaware.parts().items() for v in store.columns["video"][rows]}
    assert any(apart[v] != apart[40 + v] for v in range(20))  # what sources and bytes alone would have done


def test_the_same_manifest_in_another_order() -> None:
    store, shuffled = separable_store(videos=30, windows=1), separable_store(videos=30, windows=1)
    order = np.random.default_rng(3).permutation(30)
    shuffled.videos = {name: [values[v] for v in order] for name, values in store.videos.items()}
    shuffled.tokens = store.tokens[order]
    assert parts(make_split(store, label="label")) == parts(make_split(shuffled, label="label"))


def test_another_seed_is_another_split() -> None:
    store = separable_store()
    assert make_split(store, label="label", seed=1).digest != make_split(store, label="label", seed=2).digest


def test_without_labels_sources_are_divided() -> None:
    manifest = make_split(separable_store(videos=60))
    assert {part: classes[""]["sources"] for part, classes in manifest.counts().items()} == {
        "train": 36, "validation": 12, "test": 12,
    }  # fmt: skip
    assert linear_probe(separable_store(videos=60), label="label", split=manifest).mean("top1") == 1.0


def test_written_and_read_back(tmp_path: Path) -> None:
    manifest = make_split(separable_store(), label="label")
    manifest.write(tmp_path / "split.json")
    read = read_manifest(tmp_path / "split.json")
    assert read == replace(manifest, path=tmp_path / "split.json")
    with pytest.raises(UsageError, match="exists, and results may have been quoted on it"):
        manifest.write(tmp_path / "split.json")


@pytest.mark.parametrize("what", ["part", "counts", "seed"])
def test_altered_manifests_are_refused(tmp_path: Path, what: str) -> None:
    file = tmp_path / "split.json"
    make_split(separable_store(), label="label").write(file)
    fields = json.loads(file.read_text())
    if what == "part":
        fields["videos"][0]["part"] = "train" if fields["videos"][0]["part"] != "train" else "test"
    elif what == "counts":
        fields["counts"]["test"]["jump"]["rows"] += 1
    else:
        fields["seed"] = 7
    file.write_text(json.dumps(fields))
    with pytest.raises(StoreError, match="has been altered"):
        read_manifest(file)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(UsageError, match=r"not a split|has the format 'other'"):
        read_manifest(tmp_path / "split.json")
    with pytest.raises(InputNotFound, match="Make one with"):
        read_manifest(tmp_path / "none.json")


def relabelled(store: MemoryStore) -> None:
    store.videos["label"][3] = "run"


def with_new_video(store: MemoryStore) -> None:
    store.videos["sha256"][3] = "ff" * 32


def with_joined_sources(store: MemoryStore) -> None:
    store.videos["source"] = ["one source"] * 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (relabelled, "1 videos have another label than in the split, such as /videos/3.mp4: 'run' here, 'jump' there"),
        (with_new_video, "1 of 30 labelled videos are not in the split, such as /videos/3.mp4"),
        (with_joined_sources, "leaky split"),
    ],
)
def test_a_store_that_no_longer_fits_is_refused(change: object, message: str) -> None:
    store = separable_store()
    manifest = make_split(store, label="label")
    change(store)  # type: ignore[operator]
    with pytest.raises(UsageError, match=message):
        linear_probe(store, label="label", split=manifest)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--folds", "2"], "folds is 2; allowed is 3 or more"),
        (["--ratios", "0.5,0.5"], "--ratios has 2 numbers"),
        (["--ratios", "a,b,c"], "--ratios is 'a,b,c'"),
        (["--folds", "3", "--ratios", "0.6,0.2,0.2"], "--ratios has no say beside --folds"),
        (["--ratios", "0.9,0.2,0.1"], "sums to 1|sum to 1"),
        (["--by", "person"], "no column 'person'"),
        (["--folds", "11"], "fewer than 2 classes have 11 or more sources"),
    ],
)
def test_wrong_requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, args: list[str], message: str) -> None:
    monkeypatch.setattr("coldframe.probes.split_cli.open_store", lambda path: separable_store())
    result = CliRunner().invoke(main, ["split", "S", "--label", "label", "--out", str(tmp_path / "s.json"), *args])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert any(part in result.stderr for part in message.split("|"))
    assert not (tmp_path / "s.json").exists()


def test_command_prints_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("coldframe.probes.split_cli.open_store", lambda path: separable_store())
    out = tmp_path / "s.json"
    result = CliRunner().invoke(main, ["split", "S", "--label", "label", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "test" in result.stdout
    assert "0 pairs of videos confirmed" in result.stdout
    other = CliRunner().invoke(main, ["split", "S", "--label", "label", "--json", "--out", str(tmp_path / "t.json")])
    assert json.loads(other.stdout)["digest"] == read_manifest(out).digest
