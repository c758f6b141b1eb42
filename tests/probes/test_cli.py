import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from click.testing import CliRunner, Result

import coldframe
from coldframe.probe_cli import main
from tests.probes.memory import MemoryStore, separable_store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = separable_store(more={"subject": [f"p{v // 2}" for v in range(30)], "fps": [v + 0.5 for v in range(30)]})
    monkeypatch.setattr("coldframe.probes.cli.open_store", lambda path: made)
    return made


def run(args: Sequence[str]) -> Result:
    return CliRunner().invoke(main, ["linear", "S.zarr", *args])


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert coldframe.__version__ in result.stdout


def test_tables(store: MemoryStore) -> None:
    result = run(["--label", "label"])
    assert result.exit_code == 0, result.output
    assert "Linear probe" in result.stdout
    assert "1.000" in result.stdout
    assert result.stderr == ""


def test_json_is_one_object_and_nothing_else(store: MemoryStore) -> None:
    result = run(["--label", "label", "--json", "--seed", "5", "--seeds", "2"])
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert [seed["seed"] for seed in data["seeds"]] == [5, 6]
    assert data["group"] == ["source"]
    assert data["features"] == "cls"


def test_groups_add_up(store: MemoryStore) -> None:
    plain = json.loads(run(["--label", "label", "--json"]).stdout)
    joined = json.loads(run(["--label", "label", "--json", "--group", "source", "--group", "subject"]).stdout)
    assert (plain["sources"], joined["sources"]) == (30, 15)
    assert joined["group"] == ["source", "subject"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--label", "lable"], "no column 'lable' for its videos. Columns: fps, label, path, sha256, source"),
        (["--label", "label", "--group", "person"], "no column 'person'"),
        (["--label", "fps"], "30 distinct numbers in 30 videos"),
        (["--label", "label", "--features", "mean"], "need patch tokens"),
    ],
)
def test_wrong_requests_are_one_line_and_2(store: MemoryStore, args: list[str], message: str) -> None:
    result = run(args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("coldframe-probe: error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_damaged_features_are_one_line_and_1(store: MemoryStore) -> None:
    store.tokens[0] = float("nan")
    result = run(["--label", "label"])
    assert result.exit_code == 1
    assert result.stderr.startswith("coldframe-probe: error: row 0 is marked ok but")


@pytest.mark.parametrize("args", [[], ["--label", "label", "--seeds", "0"], ["--label", "label", "--features", "x"]])
def test_wrong_options_are_2(store: MemoryStore, args: list[str]) -> None:
    assert run(args).exit_code == 2


def test_probes_start_without_heavy_packages() -> None:
    heavy = "torch onnx onnxruntime av openvino faiss pyarrow sklearn xarray coldframe.serve coldframe.export"
    code = f"import sys, coldframe.probes.cli; print([n for n in {heavy.split()} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
