"""The commands end to end on stores on disk: fit, save, predict, refuse."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from safetensors.numpy import save_file

from coldframe.probe_cli import main
from coldframe.probes.ridge import fit_ridge
from coldframe.probes.saved import load_probe
from coldframe.probes.selection import select_rows
from coldframe.probes.split import split_by_group
from coldframe.probes.training import choose_setting
from coldframe.store import Store, open_store
from tests.probes.stores import NAMES, class_store

EPOCHS = 12
FAST = ["--heads", "2", "--lr", "1e-2", "--lr", "1e-5", "--wd", "0.01", "--epochs", str(EPOCHS), "--batch", "8"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return class_store(tmp_path_factory.mktemp("readout") / "S.zarr")


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def attentive(store: Store, *args: object) -> Result:
    return run("attentive", store.path, "--label", "label", *FAST, *args)


def test_attentive_finds_classes_that_one_frame_shows(store: Store) -> None:
    result = attentive(store, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["balanced_accuracy"]["mean"] > 0.8  # chance is a third
    assert data["balanced_accuracy"]["sd"] is not None
    assert data["chosen"] == {"rate": 0.01, "weight_decay": 0.01}
    assert len(data["grid"]) == 6
    assert [seed["seed"] for seed in data["seeds"]] == [0, 1, 2]
    assert all(len(head["validation_balanced_accuracy"]) == EPOCHS for head in data["grid"])
    assert "preset levjepa (modified)" in data["protocol"]
    assert "linear" not in data["protocol"]
    assert len(data["differences"]) == 5
    assert data["reading"]["rows"] == EPOCHS * data["seeds"][0]["part_rows"]["train"]
    assert data["reading"]["rows_per_s"] > 0
    assert any("UNTRAINED" in text for text in data["warnings"])
    assert json.loads(attentive(store, "--json").stdout)["seeds"] == data["seeds"]


def test_attentive_text_and_presets(store: Store) -> None:
    for preset in ("vjepa2-d4", "videoglue"):
        result = attentive(store, "--preset", preset, "--epochs", "1", "--seeds", "1", "--temporal-position")
        assert result.exit_code == 0, result.output
        assert f"preset {preset} (modified)" in result.stdout
        assert "rows/s" in result.stdout
        assert "learned temporal position" in result.stdout
        assert "1 seeds: at least 3" in result.stdout


@pytest.mark.parametrize("kind", ["attentive", "logistic", "linear"])
def test_saved_probe_predicts_what_it_learnt(store: Store, tmp_path: Path, kind: str) -> None:
    probe, out = tmp_path / "head.safetensors", tmp_path / "predictions.jsonl"
    args = {"attentive": FAST, "logistic": ["-C", "0.1"], "linear": ["--seeds", "1"]}[kind]
    fitted = run(kind, store.path, "--label", "label", *args, "--save", probe, "--json")
    assert fitted.exit_code == 0, fitted.output
    card, tensors = load_probe(probe)
    assert card.names == NAMES
    assert card.recipe_id == store.recipe_id
    assert card.split_digest in fitted.stdout
    assert all(value.size for value in tensors.values())
    result = run("predict", probe, store.path, "--out", out)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["row"] for line in lines] == store.ok_rows().tolist()
    values = ["score", "scores"] if kind == "linear" else ["probability", "probabilities"]
    assert list(lines[0]) == ["row", "path", "start_s", "end_s", "label", *values]
    true = [NAMES[v % 3] for v in store.column("video")[store.ok_rows()]]
    assert np.mean([line["label"] == name for line, name in zip(lines, true, strict=True)]) > 0.9
    if kind == "linear":  # scores of a ridge head are no probabilities, and are not called so
        head = fit_ridge(store.cls(), np.array([NAMES.index(name) for name in true]), 3)[0]
        assert card.penalty > 0
        assert (card.kind, sorted(tensors)) == ("ridge", sorted(["mean", "scale", "weight", "intercept"]))
        assert tensors["weight"].shape == head.weight.shape
        again = replace(head, **tensors, penalty=card.penalty).scores(store.cls())
        np.testing.assert_allclose([list(line["scores"].values()) for line in lines], again, atol=1e-6)
    else:
        assert all(abs(sum(line["probabilities"].values()) - 1) < 1e-5 for line in lines)
    assert run("predict", probe, store.path).stdout == out.read_text()


@pytest.mark.parametrize("kind", ["logistic", "linear"])
def test_predicting_on_another_recipe_is_refused_with_the_difference(store: Store, tmp_path: Path, kind: str) -> None:
    probe = tmp_path / "head.safetensors"
    assert run(kind, store.path, "--label", "label", "--save", probe).exit_code == 0
    other = class_store(tmp_path / "other.zarr", fps=15.0)
    result = run("predict", probe, other.path, "--out", tmp_path / "none.jsonl")
    assert result.exit_code == 2
    assert "fps: 15.0 here, 7.5 in the saved probe" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "none.jsonl").exists()


def test_files_that_are_no_probes(store: Store, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    save_file({"x": np.zeros(1)}, tmp_path / "foreign")
    for name, message in (
        ("missing", "there is no saved probe"),
        ("text", "is not a saved probe"),
        ("foreign", "without a probe's card"),
    ):
        result = run("predict", tmp_path / name, store.path)
        assert result.exit_code == 2
        assert message in result.stderr


def test_files_of_others_are_not_replaced(store: Store, tmp_path: Path) -> None:
    for name in ("labels.csv", "split.json", "foreign"):
        (tmp_path / name).write_text("path,label\n")
    save_file({"x": np.zeros(1)}, tmp_path / "foreign")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    linear = ["linear", store.path, "--label", "label"]
    for name in before:
        result = run(*linear, "--save", tmp_path / name)
        assert result.exit_code == 2
        assert f"{name} is there already and is no saved probe" in result.stderr
    for suffix in ("html", "json"):
        result = run(*linear, "--report", tmp_path / "r.html", "--save", tmp_path / f"r.{suffix}")
        assert "is a file of the report too" in result.stderr
    for _ in range(2):  # one of ours is replaced
        assert run(*linear, "--save", tmp_path / "head").exit_code == 0
    result = run("predict", tmp_path / "head", store.path, "--out", tmp_path / "labels.csv")
    assert "holds no predictions" in result.stderr
    for _ in range(2):
        assert run("predict", tmp_path / "head", store.path, "--out", tmp_path / "p.jsonl").exit_code == 0
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--preset", "levjepa", "--heads", "3"], "3 attention heads, which do not divide its width 8"),
        (["--preset", "mlap4"], "the store keeps the blocks none"),
        (["--device", "cuda"], "PyTorch sees 0 CUDA devices"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--save", "/nowhere/head"], "the folder /nowhere does not exist"),
        (["--lr", "1e30", "--lr", "1e29"], "diverged"),
    ],
)
def test_wrong_requests_are_one_line_and_2(store: Store, args: list[str], message: str) -> None:
    given = ["--heads", "2", "--wd", "0", "--epochs", "2", "--batch", "8"] if "--lr" in args else FAST
    result = run("attentive", store.path, "--label", "label", *given, *args)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "option"), [("attentive", "--lr"), ("attentive", "--wd"), ("logistic", "-C"), ("multi-label", "-C")]
)
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_numbers_that_are_none_are_refused_before_anything_is_read(command: str, option: str, value: str) -> None:
    result = run(command, "nowhere.zarr", "--label", "label", option, value)
    assert result.exit_code == 2
    assert "Invalid value for" in result.stderr


def test_a_rate_that_is_named_twice_is_one(store: Store) -> None:
    result = attentive(store, "--lr", "1e-2", "--wd", "0.01", "--seeds", "1", "--json")  # FAST names both once
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["seeds"]) == 1


def test_a_linear_probe_has_no_other_device(store: Store, tmp_path: Path) -> None:
    assert run("linear", store.path, "--label", "label", "--save", tmp_path / "head").exit_code == 0
    result = run("predict", tmp_path / "head", store.path, "--device", "cuda")
    assert result.exit_code == 2
    assert "a ridge probe runs on the CPU only" in result.stderr


def test_a_store_of_cls_only_has_nothing_to_attend_to(tmp_path: Path) -> None:
    store = class_store(tmp_path / "S.zarr", "cls")
    assert "needs patch tokens; this store's token tier is 'cls'" in attentive(store).stderr


def test_logistic_and_knn_report(store: Store) -> None:
    result = run("logistic", store.path, "--label", "label", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["balanced_accuracy"]["mean"] == 1.0
    assert len({seed["split_digest"] for seed in data["seeds"]}) > 1
    assert "UNTRAINED" in run("logistic", store.path, "--label", "label", "-C", "1").stdout
    result = run("knn", store.path, "--label", "label", "-k", "5", "--json")
    assert json.loads(result.stdout)["scores"][0]["balanced_accuracy"] == 1.0
    assert "own source kept" in run("knn", store.path, "--label", "label", "-k", "5", "--features", "mean").stdout


def test_test_rows_are_read_after_the_choice_and_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_store(store.path)
    chosen = select_rows(opened, "label", ("source",))
    test = set(chosen.rows[split_by_group(chosen.components, chosen.labels, seed=0).test].tolist())
    events: list[str] = []
    read, choose = Store.stored_into, choose_setting

    def stored_into(self: Store, array: str, rows: NDArray[np.int64], rooms: Sequence[NDArray[Any]]) -> None:
        events.extend("test row" for row in rows.tolist() if row in test)
        read(self, array, rows, rooms)

    def choosing(*args: Any) -> tuple[float, float]:
        events.append("choice")
        return choose(*args)

    monkeypatch.setattr(Store, "stored_into", stored_into)
    monkeypatch.setattr("coldframe.probes.attentive.choose_setting", choosing)
    assert attentive(opened).exit_code == 0
    assert events == ["choice", *["test row"] * len(test)]
