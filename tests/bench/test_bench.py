"""The bench measures in turns, says what it means, and each kind runs."""

import json

import pytest
from click.testing import CliRunner

from coldframe.bench import pipeline
from coldframe.bench.cli import KINDS, bench_command
from coldframe.bench.pipeline import Case
from coldframe.bench.report import Target, Timing, interleave
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
    monkeypatch.setattr(pipeline, "cases", lambda quick: [Case(name="small", config=SMALL, clips=4)])
    for kind in KINDS:
        result = CliRunner().invoke(bench_command, [kind, "--quick", "--json"])
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout.splitlines()[-1])
        assert set(report) == {"machine", "versions", "results", "targets"}
        assert all(row["value"] > 0 for row in report["results"])
        assert {"name", "value", "wants", "met"} == set(report["targets"][0])
