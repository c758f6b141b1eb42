"""Every readout that can be given a split reads its test part through the ledger."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coldframe.probe_cli import main
from coldframe.probes.make_split import make_split
from coldframe.probes.sealed import ledger_of
from coldframe.probes.split_manifest import SplitManifest, read_manifest
from coldframe.store import Store
from tests.probes.stores import class_store

COMMANDS = {
    "linear": [],
    "logistic": ["-C", "0.1", "-C", "1"],
    "multi-label": ["-C", "0.1", "-C", "1"],
    "attentive": ["--heads", "2", "--lr", "1e-2", "--wd", "0", "--epochs", "3", "--batch", "8"],
}
EVERY = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return class_store(tmp_path_factory.mktemp("sealed") / "S.zarr", videos=60)


@pytest.fixture
def manifest(store: Store, tmp_path: Path) -> SplitManifest:
    make_split(store, label="label", seed=3).write(tmp_path / "split.json")
    return read_manifest(tmp_path / "split.json")


def run(command: str, store: Store, manifest: SplitManifest, *more: str) -> Result:
    args = [command, store.path, "--label", "label", "--split", manifest.path, *COMMANDS[command], *more]
    return CliRunner().invoke(main, [str(arg) for arg in args])


@EVERY
def test_second_reading_needs_a_reason_and_is_counted(store: Store, manifest: SplitManifest, command: str) -> None:
    first = run(command, store, manifest)
    assert first.exit_code == 0, first.output
    assert "part read once" in first.stdout
    second = run(command, store, manifest)
    assert second.exit_code == 2
    assert "was read before (1 times" in second.stderr
    assert len(ledger_of(manifest).read_text().splitlines()) == 1
    third = run(command, store, manifest, "--again", "the label of video 3 was wrong", "--json")
    assert third.exit_code == 0, third.output
    data = json.loads(third.stdout)
    assert data["split"]["digest"] == manifest.digest
    assert data["split"]["test_reads"]["count"] == 2
    assert data["split"]["test_reads"]["reasons"] == ["the label of video 3 was wrong"]
    assert any("read 2 times (the label of video 3 was wrong)" in text for text in data["warnings"])


@EVERY
def test_options_that_a_split_decides_are_refused_beside_it(
    store: Store, manifest: SplitManifest, command: str
) -> None:
    seeds = ["--split-seed"] if command == "attentive" else ["--seed", "--seeds"]
    for option, value in [("--group", "source"), *((name, "1") for name in seeds)]:
        result = run(command, store, manifest, option, value)
        assert result.exit_code == 2
        assert f"{option} has no say beside --split" in result.stderr
    assert not ledger_of(manifest).exists()


@EVERY
def test_the_ledger_says_who_read(store: Store, manifest: SplitManifest, command: str) -> None:
    run(command, store, manifest)
    (entry,) = map(json.loads, ledger_of(manifest).read_text().splitlines())
    assert entry["split"] == manifest.digest
    assert entry["what"]["probe"] == command
    assert entry["what"]["recipe_id"] == store.recipe_id


@EVERY
def test_one_readout_counts_the_reading_of_another(store: Store, manifest: SplitManifest, command: str) -> None:
    other = "logistic" if command == "linear" else "linear"
    assert run(other, store, manifest).exit_code == 0
    assert "was read before" in run(command, store, manifest).stderr


@EVERY
def test_test_videos_are_those_of_the_file(store: Store, manifest: SplitManifest, command: str) -> None:
    result = run(command, store, manifest, "--json")
    (seed, *others) = json.loads(result.stdout)["seeds"]
    wanted = [video for video in manifest.videos if video.part == "test"]
    if command == "multi-label":
        assert (seed["test_videos"], seed["test_sources"]) == (len(wanted), len(wanted))
    else:
        assert seed["part_rows"]["test"] == sum(video.rows for video in wanted)
        assert seed["part_sources"]["test"] == len(wanted)
    assert all(one["split_digest"] == seed["split_digest"] for one in others)


@EVERY
def test_a_reason_without_a_split_is_a_mistake(store: Store, command: str) -> None:
    args = [command, store.path, "--label", "label", "--again", "why not"]
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == 2
    assert "name a --split" in result.stderr


def test_hours_of_training_are_not_spent_before_the_refusal(
    store: Store, manifest: SplitManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("linear", store, manifest)
    monkeypatch.setattr("coldframe.probes.attentive.train_heads", lambda *args, **more: pytest.fail("trained"))
    assert "was read before" in run("attentive", store, manifest).stderr


def test_training_that_fails_is_no_reading(store: Store, manifest: SplitManifest) -> None:
    wild = ["attentive", store.path, "--label", "label", "--split", manifest.path, "--heads", "2", "--lr", "1e30"]
    result = CliRunner().invoke(main, [str(arg) for arg in [*wild, "--wd", "0", "--epochs", "2", "--batch", "8"]])
    assert result.exit_code == 2
    assert "diverged" in result.stderr
    assert not ledger_of(manifest).exists()


def test_folds_are_for_heads_that_are_fitted_in_seconds(store: Store, tmp_path: Path) -> None:
    make_split(store, label="label", folds=3).write(tmp_path / "folds.json")
    folds = read_manifest(tmp_path / "folds.json")
    refused = run("attentive", store, folds)
    assert refused.exit_code == 2
    assert "the split has 3 folds" in refused.stderr
    assert not ledger_of(folds).exists()
    data = json.loads(run("logistic", store, folds, "--json").stdout)
    assert [seed["seed"] for seed in data["seeds"]] == [0, 1, 2]
    assert data["seed_meaning"].startswith("Each number is a fold")
    assert sum(seed["part_rows"]["test"] for seed in data["seeds"]) == data["rows"]["used"]
