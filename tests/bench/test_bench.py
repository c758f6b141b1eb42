"""The bench measures in turns, says what it means, and each kind runs."""

import json

import pytest
from click.testing import CliRunner

from coldframe.bench import pipeline
from coldframe.bench.cli import KINDS, bench_command
from coldframe.bench.pipeline import Case
from coldframe.bench.report import Result, Target, Timing, interleave
from tests.serve.conftest import SMALL


def test_contenders_take_turns() -> None:
    calls: list[str] = []
    timings = interleave([lambda: calls.append("a"), lambda: calls.append("b")], runs=3, warmups=1)
    assert calls == ["a", "b"] * 4
    assert [len(timing.seconds) for timing in timings] == [3, 3]


def test_median_and_spread() -> None:
    timing = Timing(seconds=(1.0, 2.0, 3.0, 4.0, 100.0))
    assert timing.median == 3.0
    assert timing.spread == (4.0 - 2.0) / 3.0


def test_target_is_met_at_its_value() -> None:
    assert Target(name="x", value=0.8, wants=0.8).met
    assert not Target(name="x", value=0.79, wants=0.8).met


def test_every_kind_runs_and_ends_with_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MILLION", 160_000)
    monkeypatch.setattr(pipeline, "cases", lambda quick: [Case(name="small", config=SMALL, clips=20, encoded_alone=8)])
    for kind in KINDS:
        result = CliRunner().invoke(bench_command, [kind, "--quick", "--json"])
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout.splitlines()[-1])
        assert set(report) == {"machine", "versions", "results", "targets"}
        assert all(row["value"] > 0 for row in report["results"])
        assert {"name", "value", "wants", "met"} == set(report["targets"][0])
        if kind == "pipeline":
            assert sum(row["name"].startswith("small: pipeline, ") for row in report["results"]) == 1
            assert [f"{units} units" in str(report["results"]) for units in (334, 500)] == [True, True]


def test_all_runs_the_kinds_in_turn_and_ends_with_all_of_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {kind: f"tests.bench.test_bench:measure_{kind}" for kind in ("one", "two")}
    monkeypatch.setattr("coldframe.bench.cli.KINDS", kinds)
    result = CliRunner().invoke(bench_command, ["all", "--quick", "--json"])
    lines = result.stdout.splitlines()
    tables = [line for line in lines if line.startswith(("one ", "two "))]
    assert [line.split()[0] for line in tables] == ["one", "two"]
    assert [target["name"] for target in json.loads(lines[-1])["targets"]] == ["one", "two"]


def measure_one(quick: bool) -> tuple[list[Result], list[Target]]:
    return [Result(name="one", value=1.0, unit="s", spread=0.0)], [Target(name="one", value=1.0, wants=float(quick))]


def measure_two(quick: bool) -> tuple[list[Result], list[Target]]:
    return [Result(name="two", value=2.0, unit="s", spread=0.0)], [Target(name="two", value=2.0, wants=float(quick))]
