"""What linear, logistic and attentive probes report alike: intervals, calibration, pages."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss

from coldframe.probe_cli import main
from coldframe.probes.attentive import Options, attentive_probe
from coldframe.probes.linear import linear_probe
from coldframe.probes.logistic_probe import logistic_probe
from coldframe.probes.presets import PRESETS
from coldframe.probes.probe_report import ProbeReport
from coldframe.probes.report import to_dict, to_text
from coldframe.probes.svg_lines import Line, Plot, line_plot
from coldframe.probes.uncertainty import uncertainty
from coldframe.store import Store
from tests.probes.stores import NAMES, class_store

LITTLE = {"attentive": ["--heads", "2", "--lr", "1e-3", "--wd", "0", "--epochs", "2", "--batch", "8"]}
LITTLE |= {"logistic": ["-C", "1e-5", "-C", "1e-4"], "linear": []}
KINDS = pytest.mark.parametrize("kind", LITTLE)
WITH_PROBABILITIES = pytest.mark.parametrize("kind", ["attentive", "logistic"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return class_store(tmp_path_factory.mktemp("reports") / "S.zarr", videos=90, clips=4)


@pytest.fixture(scope="module")
def reports(store: Store) -> dict[str, ProbeReport[Any]]:
    options = Options(heads=2, rates=(1e-3,), weight_decays=(0.0,), epochs=2, batch=8)
    return {
        "linear": linear_probe(store, label="label"),
        "logistic": logistic_probe(store, label="label", strengths=[1e-5, 1e-4]),
        "attentive": attentive_probe(store, label="label", preset=PRESETS["levjepa"], options=options),
    }


def as_json(store: Store, kind: str, *more: object) -> dict[str, Any]:
    args = [kind, store.path, "--label", "label", *LITTLE[kind], "--json", *more]
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@WITH_PROBABILITIES
@pytest.mark.parametrize(
    ("metric", "reference"),
    [
        ("balanced_accuracy", balanced_accuracy_score),
        ("macro_f1", lambda true, said: f1_score(true, said, average="macro", labels=np.unique(true))),
    ],
)
def test_interval_is_that_of_whole_sources_drawn_again(
    reports: dict[str, ProbeReport[Any]], kind: str, metric: str, reference: Callable[..., float]
) -> None:
    result = reports[kind].results[0]
    labels, components = reports[kind].selection.labels.codes, reports[kind].selection.components.codes
    true, said, owner = labels[result.split.test], result.scores.argmax(axis=1), components[result.split.test]
    assert getattr(result, metric) == pytest.approx(reference(true, said))
    rng, sources = np.random.default_rng(99), np.unique(owner)
    rows_of = {source: np.flatnonzero(owner == source) for source in sources}
    values = []
    for _ in range(1000):
        drawn = np.concatenate([rows_of[source] for source in rng.choice(sources, len(sources))])
        values.append(reference(true[drawn], said[drawn]))
    interval = uncertainty(reports[kind]).seeds[0].intervals[metric]
    assert [interval.low, interval.high] == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.035)
    assert interval.sources == len(sources) >= 10


def test_three_seeds_of_an_attentive_head_share_the_test_sources(reports: dict[str, ProbeReport[Any]]) -> None:
    report = reports["attentive"]
    values = [result.balanced_accuracy for result in report.results]
    assert len(values) == 3
    assert report.mean("balanced_accuracy") == pytest.approx(np.mean(values))
    assert report.sd("balanced_accuracy") == pytest.approx(np.std(values, ddof=1))
    assert len({result.split_digest for result in report.results}) == 1
    found = uncertainty(report)
    spread, single = found.averaged["top1"], [one.intervals["top1"] for one in found.seeds]
    assert {one.sources for one in single} == {spread.sources}
    assert spread.low is not None
    assert min(one.low or 0 for one in single) <= spread.low <= max(one.low or 0 for one in single)


@WITH_PROBABILITIES
def test_calibration_is_that_of_the_saved_heads_predictions(
    store: Store, reports: dict[str, ProbeReport[Any]], tmp_path: Path, kind: str
) -> None:
    data = as_json(store, kind, "--save", tmp_path / "head")
    best = max(data["seeds"], key=lambda seed: seed["validation_balanced_accuracy"])
    predicted = CliRunner().invoke(main, ["predict", str(tmp_path / "head"), str(store.path)])
    lines = [json.loads(line) for line in predicted.stdout.splitlines()]
    probabilities = np.array([list(line["probabilities"].values()) for line in lines])
    true = store.column("video")[store.ok_rows()] % 3
    probabilities /= probabilities.sum(axis=1, keepdims=True)  # printed with a few digits
    test = next(result for result in reports[kind].results if result.seed == best["seed"]).split.test
    nll = log_loss(true[test], probabilities[test], labels=range(3))
    brier = np.square(probabilities[test] - np.eye(3)[true[test]]).sum(axis=1).mean()
    assert best["calibration"]["nll"] == pytest.approx(nll, rel=1e-4)
    assert best["calibration"]["brier"] == pytest.approx(brier, rel=1e-4)
    assert 0 < best["calibration"]["ece"] < 1
    every = [seed["calibration"]["nll"] for seed in data["seeds"]]
    assert data["calibration"]["nll"] == pytest.approx({"mean": np.mean(every), "sd": np.std(every, ddof=1)})
    assert data["no_calibration"] is None


def test_ridge_has_no_calibration_and_says_why(reports: dict[str, ProbeReport[Any]]) -> None:
    data = to_dict(reports["linear"])
    assert data["calibration"] is None
    assert all(seed["calibration"] is None for seed in data["seeds"])
    assert "scores are no probabilities" in data["no_calibration"]
    assert "No calibration: a ridge head's scores are no probabilities" in to_text(reports["linear"])
    assert "NLL" not in to_text(reports["linear"])
    assert "NLL" in to_text(reports["attentive"])


def test_other_readouts_have_every_entry_of_the_linear_one(reports: dict[str, ProbeReport[Any]]) -> None:
    found = {kind: to_dict(report) for kind, report in reports.items()}
    own = {"penalty", "fractions", "features"}
    for kind in ("attentive", "logistic"):
        assert found["linear"].keys() - own <= found[kind].keys()
        assert found["linear"]["seeds"][0].keys() - own <= found[kind]["seeds"][0].keys()


@KINDS
def test_page_has_every_part(store: Store, tmp_path: Path, kind: str) -> None:
    data = as_json(store, kind, "--report", tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text()
    assert "http" not in html
    parts = re.findall("<h2>(.*?)</h2>", html)
    curves = [] if kind == "linear" else ["Curves"]
    wanted = ["Scores", "Controls", "Classes", *curves, "Confusion", "What was extracted how", "The probe"]
    assert parts == ["Before quoting", *wanted]
    beside = json.loads((tmp_path / "r.json").read_text())
    for volatile in (beside["probe"], data):
        volatile.pop("reading", None)
    assert beside["probe"] == data
    interval = data["balanced_accuracy"]["interval"]
    assert f"95 % over sources {interval['low']:.3f} to {interval['high']:.3f}" in html
    assert store.recipe_id in html
    assert re.search(r"<dt>took</dt><dd>probe \d+\.\d s", html)
    assert all(name in html for name in NAMES)
    if kind == "linear":
        assert "Absent: a ridge head&#x27;s scores are no probabilities" in html
    else:
        assert f"<td>{data['calibration']['nll']['mean']:.3f}</td>" in html
    polylines = re.findall('<polyline class="(.*?)"', html)
    assert len(polylines) == {"linear": 0, "logistic": 3, "attentive": 3 * len(data.get("grid", []))}[kind]


def test_label_file_for_tokens(store: Store, tmp_path: Path) -> None:
    keys = store.video_column("sha256")
    lines = [f"{key},{NAMES[v % 3].upper()}\n" for v, key in enumerate(keys)]
    (tmp_path / "labels.csv").write_text("sha256,kind\n" + "".join(lines))
    args = ["attentive", store.path, "--labels", tmp_path / "labels.csv", "--label", "kind", *LITTLE["attentive"]]
    result = CliRunner().invoke(main, [str(arg) for arg in [*args, "--json"]])
    assert result.exit_code == 0, result.output
    found, wanted = json.loads(result.stdout), as_json(store, "attentive")
    assert [row["name"] for row in found["classes"]] == [name.upper() for name in NAMES]
    assert [seed["confusion"] for seed in found["seeds"]] == [seed["confusion"] for seed in wanted["seeds"]]


def test_lines_go_up_where_values_do_and_the_chosen_one_is_on_top() -> None:
    rising = Line(name="rising", points=((1, 0.2), (2, 0.6)), chosen=True)
    flat = Line(name="flat", points=((1, 0.4), (2, 0.4)), chosen=False)
    drawn = line_plot(Plot(title="t", x_name="epoch", lines=(rising, flat)))
    root = ET.fromstring(drawn.removeprefix("<h3>t</h3>"))
    lines = list(root.iter("polyline"))
    assert [line.get("class") for line in lines] == ["curve other", "curve"]
    (x0, y0), (x1, y1) = [tuple(map(float, point.split(","))) for point in (lines[1].get("points") or "").split()]
    assert x0 < x1
    assert y0 > y1
    ticks = {text.text: float(text.get("y") or 0) for text in root.iter("text")}
    assert ticks["0.2"] - 4 == pytest.approx(y0, abs=0.1)
    assert ticks["0.6"] - 4 == pytest.approx(y1, abs=0.1)
