"""The challenge file: every annotation, every class, the head's own numbers, and nothing that the challenge forbids."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from coldframe.errors import RecipeMismatch, UsageError
from coldframe.probe_cli import main
from coldframe.probes.anticipation import AnticipationReport, anticipation_probe
from coldframe.probes.attentive import Options
from coldframe.probes.challenge import require_challenge, write_challenge
from coldframe.probes.heads import forward
from coldframe.probes.presets import ACTION_PRESETS
from coldframe.store import Store
from tests.probes.stores import action_store

COLUMNS = ("verb_class", "noun_class")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    folder = tmp_path_factory.mktemp("challenge")
    return action_store(folder / "train.zarr"), action_store(folder / "test.zarr", videos=4, without_window=(2, 9))


@pytest.fixture(scope="module")
def report(stores: tuple[Store, Store]) -> AnticipationReport:
    options = Options(heads=2, rates=(1e-2,), weight_decays=(0.01,), epochs=20, batch=16)
    return anticipation_probe(
        stores[0], columns=COLUMNS, preset=ACTION_PRESETS["ek100-d1"], options=options, seeds=(0, 1)
    )


def read(file: Path) -> dict[str, Any]:
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ["test.json"]
        found: dict[str, Any] = json.loads(archive.read("test.json"))
        return found


def test_every_annotation_and_class_is_there(
    stores: tuple[Store, Store], report: AnticipationReport, tmp_path: Path
) -> None:
    done = write_challenge(tmp_path / "out.zip", report, stores[1], sls=(2, 3, 3))
    assert (done.annotations, done.guessed, done.has_actions) == (24, 2, False)
    found = read(tmp_path / "out.zip")
    assert {name: found[name] for name in found if name != "results"} == {
        "version": "0.2",
        "challenge": "action_anticipation",
        "sls_pt": 2,
        "sls_tl": 3,
        "sls_td": 3,
    }
    assert list(found["results"]) == stores[1].annotation_column("id")
    for entry in found["results"].values():
        assert list(entry["verb"]) == [str(code) for code in range(97)]
        assert list(entry["noun"]) == [str(code) for code in range(300)]
        assert all(np.isfinite(list(scores.values())).all() for scores in entry.values())


def test_scores_are_the_best_heads_logits_under_the_original_numbers(
    stores: tuple[Store, Store], report: AnticipationReport, tmp_path: Path
) -> None:
    write_challenge(tmp_path / "out.zip", report, stores[1], sls=(0, 0, 0))
    found = read(tmp_path / "out.zip")["results"]
    best = int(np.argmax(report.trained.validation[-1].merit))
    parameters = {name: value[best : best + 1] for name, value in report.trained.parameters.items()}
    for row in (0, 5, 23):
        tokens = torch.from_numpy(stores[1].patch([row]).reshape(1, -1, 16))
        with torch.no_grad():
            logits = forward(report.shape, parameters, [tokens], None, torch.zeros(tokens.shape[1], dtype=torch.long))
        for one, own in zip(report.tasks[:2], logits[:2], strict=True):
            known = {name: float(value) for (name,), value in zip(one.task.classes, own[0, 0], strict=True)}
            scores = found[f"a{row}"][one.task.name]
            for name, value in known.items():
                assert scores[name] == pytest.approx(value, abs=2e-3)
            others = [score for name, score in scores.items() if name not in known]
            assert max(others) < min(known.values()) - 900


def test_an_annotation_without_a_clip_has_the_commonest_classes(
    stores: tuple[Store, Store], report: AnticipationReport, tmp_path: Path
) -> None:
    write_challenge(tmp_path / "out.zip", report, stores[1], sls=(0, 0, 0))
    found = read(tmp_path / "out.zip")["results"]
    verbs = [report.rows.labels[i][0] for i in report.split.train.tolist()]
    order = sorted(found["a2"]["verb"], key=lambda code: -found["a2"]["verb"][code])
    counts = [verbs.count(code) for code in order]
    assert counts == sorted(counts, reverse=True)
    assert found["a2"] == found["a9"]


def test_a_hundred_actions_are_given_where_train_has_them(tmp_path: Path) -> None:
    store = action_store(tmp_path / "many.zarr", videos=97, clips=4, verbs=97, nouns=89)
    options = Options(heads=2, rates=(1e-2,), weight_decays=(0.01,), epochs=1, batch=16)
    made = anticipation_probe(store, columns=COLUMNS, preset=ACTION_PRESETS["ek100-d1"], options=options, seeds=(0,))
    assert len(made.tasks[2].task.classes) > 100
    done = write_challenge(tmp_path / "out.zip", made, store, sls=(1, 1, 1))
    assert done.has_actions
    known = {",".join(name) for name in made.tasks[2].task.classes}
    for entry in read(tmp_path / "out.zip")["results"].values():
        assert len(entry["action"]) == 100
        assert set(entry["action"]) <= known


def test_what_the_challenge_forbids_is_refused(
    stores: tuple[Store, Store], report: AnticipationReport, tmp_path: Path
) -> None:
    released = action_store(tmp_path / "r.zarr", videos=3, window="before_stop")
    with pytest.raises(UsageError, match="window before_stop, 1 s ahead"):
        require_challenge(COLUMNS, stores[0], released, (1, 1, 1))
    with pytest.raises(UsageError, match="each is 0 to 5"):
        require_challenge(COLUMNS, *stores, (1, 6, 1))
    with pytest.raises(UsageError, match="asks for verb and noun"):
        require_challenge(("verb",), *stores, (1, 1, 1))
    nearer = replace(stores[1].root, recipe=replace(stores[1].recipe, anticipation_s=0.5))
    with pytest.raises(UsageError, match=r"0.5 s ahead"):
        require_challenge(COLUMNS, stores[0], replace(stores[1], root=nearer), (1, 1, 1))
    farther = replace(stores[1].root, recipe=replace(stores[1].recipe, anticipation_s=2.0))
    with pytest.raises(RecipeMismatch, match="anticipation_s"):
        write_challenge(tmp_path / "o.zip", report, replace(stores[1], root=farther), sls=(1, 1, 1))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["anticipation", *map(str, arguments)])


def test_the_command_writes_it_and_names_words_that_are_no_numbers(stores: tuple[Store, Store], tmp_path: Path) -> None:
    train, test = (store.path for store in stores)
    quick = ("--preset", "ek100-d1", "--heads", 2, "--lr", "1e-2", "--wd", 0.01, "--epochs", 1, "--seeds", 1)
    out = ("--challenge", tmp_path / "o.zip", "--challenge-store", test, "--sls", 2, 3, 3)
    done = run(train, "--verb", "verb_class", "--noun", "noun_class", *quick, *out)
    assert done.exit_code == 0, done.output
    assert "24 annotations, 2 of them without a clip" in done.stderr
    assert len(read(tmp_path / "o.zip")["results"]) == 24
    words = run(train, "--verb", "participant_id", "--noun", "noun_class", *quick, *out)
    assert words.exit_code == 2
    assert "'P0" in words.output
    assert "is no class number of the challenge; allowed are 0 to 96" in words.output
    (tmp_path / "o.zip").write_bytes(b"a thesis")
    over = run(train, "--verb", "verb_class", "--noun", "noun_class", *quick, *out)
    assert over.exit_code == 2
    assert "is no challenge file" in over.output
    assert (tmp_path / "o.zip").read_bytes() == b"a thesis"
    part = run(train, "--verb", "verb_class", *quick, "--challenge", tmp_path / "p.zip")
    assert part.exit_code == 2
    assert "belong together" in part.output
