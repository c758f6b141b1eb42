import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coldframe.probes.linear import linear_probe
from coldframe.probes.report import to_dict, to_text
from coldframe.probes.uncertainty import uncertainty
from coldframe.store.schema import Status
from tests.probes.memory import MemoryStore, memory_store, separable_store, windows_of_random_videos


def hard_store() -> MemoryStore:
    store = windows_of_random_videos()
    store.encoder["untrained"] = True
    store.columns["status"][:3] = Status.FAILED
    store.videos["label"][59] = ""
    store.videos["label"][58] = "rare"
    return store


def test_dict_holds_everything_and_is_json() -> None:
    store = hard_store()
    report = linear_probe(store, label="label")
    data = to_dict(report)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["encoder"] == {"name": "levjepa-tiny", "untrained": True, "licence": "MIT"}
    assert data["recipe_id"] == store.recipe.recipe_id
    assert data["rows"] == {
        "ok": 1197, "failed": 3, "absent": 0, "unlabelled": 20, "excluded": 20, "used": 1157, "padded": 0,
    }  # fmt: skip
    assert [row["name"] for row in data["classes"]] == [f"class {code}" for code in range(4)]
    assert sum(row["sources"] for row in data["classes"]) == data["sources"] == 58
    assert data["excluded_classes"] == [{"name": "rare", "rows": 20, "sources": 1}]
    assert [seed["seed"] for seed in data["seeds"]] == [0, 1, 2]
    assert all(len(seed["split_digest"]) == 64 for seed in data["seeds"])
    confusion = np.array(data["confusion"])
    assert np.array_equal(confusion, np.sum([seed["confusion"] for seed in data["seeds"]], axis=0))
    for number, row in enumerate(data["classes"]):
        assert row["test_rows"] == confusion[number].sum()
        assert row["recall"] == confusion[number, number] / confusion[number].sum()
    assert any("UNTRAINED" in text for text in data["warnings"])


def test_text_shows_what_was_read_and_what_came_out() -> None:
    report = linear_probe(hard_store(), label="label")
    text = to_text(report)
    data = to_dict(report)
    assert "encoder   levjepa-tiny  *** UNTRAINED" in text
    assert f"recipe    {data['recipe_id'][:12]}\n" in text
    assert "1157 used of 1197 ok (20 unlabelled, 20 in excluded classes); 3 failed, 0 absent" in text
    assert "by source + file content: 58 sources" in text
    assert "warning: classes with fewer than 3 sources are left out: 'rare' (1 sources, 20 rows)." in text
    assert "Each seed is another split by source" in text
    for seed in data["seeds"]:
        line = next(line for line in text.splitlines() if line.startswith(f"{seed['seed']} ") and "0.250" in line)
        cells = line.split()
        assert cells[1:3] == [str(seed["part_rows"]["test"]), str(seed["part_sources"]["test"])]
        assert cells[3] == f"{seed['balanced_accuracy']:.3f}"
        assert cells[5:8] == [f"{seed[name]:.3f}" for name in ("macro_f1", "top1", "majority_top1")]
        assert cells[9] == seed["split_digest"][:12]
    for line in ("mean", "sd"):
        values = [f"{data[name][line]:.3f}" for name in ("balanced_accuracy", "macro_f1", "top1")]
        assert re.search(rf"^{line} +{' +'.join(values)}$", text, re.M)
    matrix = text[text.index("true class by row") :].splitlines()[2:6]
    assert [line.split()[3:] for line in matrix] == [[str(n) for n in row] for row in data["confusion"]]


def test_one_seed_has_no_sd() -> None:
    report = linear_probe(separable_store(), label="label", seeds=[7])
    assert to_dict(report)["top1"]["sd"] is None
    assert re.search(r"^sd +- +- +-$", to_text(report), re.M)


def test_names_cannot_break_the_tables() -> None:
    store = separable_store(classes=("a\nb", "c\x1b[31m", "d"))
    text = to_text(linear_probe(store, label="label"))
    assert "0 a b" in text
    assert "\x1b" not in text


def test_many_classes_do_not_flood_the_terminal() -> None:
    rng = np.random.default_rng(0)
    labels = [f"c{v % 40:02}" for v in range(160)]
    report = linear_probe(memory_store(labels, rng.normal(size=(160, 8)), windows=1), label="label")
    text = to_text(report)
    assert "40 classes are too many to print" in text
    assert max(map(len, text.splitlines())) < 200
    assert np.shape(to_dict(report)["confusion"]) == (40, 40)


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.0, None), (0.0005, "Fewer than 1%"), (0.006, "1%"), (0.42, "42%"), (0.9995, "More than 99%"), (1.0, "100%")],
)
def test_a_few_replicates_are_not_called_none(monkeypatch: pytest.MonkeyPatch, share: float, said: str | None) -> None:
    def with_share(report: Any) -> Any:
        found = uncertainty(report)
        return replace(found, averaged={key: replace(one, absent_share=share) for key, one in found.averaged.items()})

    monkeypatch.setattr("coldframe.probes.report.uncertainty", with_share)
    text = to_text(linear_probe(separable_store(), label="label"))
    lines = [line for line in text.splitlines() if "of the replicates lack a class" in line]
    assert lines == ([] if said is None else [f"{said} of the replicates lack a class and average over the others."])
