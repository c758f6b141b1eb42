import json

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.errors import UsageError
from coldframe.probe_cli import main
from coldframe.probes.linear import linear_probe
from coldframe.probes.sample_efficiency import nested_subset
from coldframe.probes.selection import select_rows
from coldframe.probes.split import split_by_group
from tests.probes.memory import MemoryStore, memory_store, separable_store


def noisy_store() -> MemoryStore:
    """Classes overlap, so that more sources help."""
    rng = np.random.default_rng(0)
    labels = [f"class {v % 4}" for v in range(160)]
    means = rng.normal(size=(4, 24))
    tokens = means[np.arange(160) % 4] + 1.5 * rng.normal(size=(160, 24))
    return memory_store(labels, np.repeat(tokens, 3, axis=0) + 0.1 * rng.normal(size=(480, 24)), windows=3)


def test_subsets_are_nested_whole_sources() -> None:
    chosen = select_rows(separable_store(), "label", ("source",))
    train = split_by_group(chosen.components, chosen.labels, seed=0).train
    held: set[int] = set()
    for fraction in (0.05, 0.3, 0.6, 1.0):
        rows = nested_subset(chosen, train, fraction, draw=0)
        assert held <= set(rows.tolist())
        held = set(rows.tolist())
        codes = chosen.components.codes
        assert set(codes[rows].tolist()).isdisjoint(codes[np.setdiff1d(train, rows)].tolist())
        assert len(np.unique(codes[rows])) == max(1, round(fraction * 18))
    assert held == set(train.tolist())
    assert not np.array_equal(nested_subset(chosen, train, 0.3, 0), nested_subset(chosen, train, 0.3, 1))


def test_more_sources_help_and_all_of_them_are_the_probe() -> None:
    report = linear_probe(noisy_store(), label="label", seeds=[0], fractions=[1.0, 0.01, 0.1])
    small, tenth, whole = report.fractions
    assert [len(result.balanced_accuracy) for result in report.fractions] == [5, 3, 1]
    assert whole.balanced_accuracy == (report.results[0].balanced_accuracy,)
    assert small.mean < tenth.mean < whole.mean
    assert (small.sources, tenth.sources, whole.sources) == (1, 10, 96)
    assert small.classes_without_rows == (3,) * 5
    assert whole.sd is None
    a, b, c = tenth.balanced_accuracy
    mean = (a + b + c) / 3
    assert tenth.sd == pytest.approx((((a - mean) ** 2 + (b - mean) ** 2 + (c - mean) ** 2) / 2) ** 0.5)
    assert len({a, b, c}) > 1


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5, float("nan")])
def test_fractions_outside_are_refused(fraction: float) -> None:
    with pytest.raises(UsageError, match="allowed is above 0 up to 1"):
        linear_probe(separable_store(), label="label", fractions=[fraction])


def test_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldframe.probes.cli.open_store", lambda path: separable_store())
    args = ["linear", "S", "--label", "label", "--fraction", "0.1,1"]
    assert "share of train" in CliRunner().invoke(main, args).stdout
    data = json.loads(CliRunner().invoke(main, [*args, "--json"]).stdout)
    assert [entry["fraction"] for entry in data["fractions"]] == [0.1, 1.0]
    assert CliRunner().invoke(main, [*args[:-1], "x"]).exit_code == 2
