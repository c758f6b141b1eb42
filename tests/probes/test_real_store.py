import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.probe_cli import main
from coldframe.store import Store, create_store, open_store, write_unit
from coldframe.store.plan import Column
from coldframe.store.schema import Tokens
from tests.store.plans import ENCODER, small_geometry, small_plan, small_result

CLIPS = [3, 2, 0, 4, 3, 2] * 5  # every sixth video cannot be used
LABELS = [("boil", "chop", "pour")[v % 3 if v % 6 != 2 else 2] if v != 7 else "" for v in range(30)]


def write(path: Path, tokens: Tokens = "cls") -> Store:
    """A complete store; each class is far out in a dimension of its own."""
    columns: dict[str, Column] = {"label": LABELS, "subject": np.arange(30) // 2}
    store = create_store(
        path,
        small_plan(CLIPS, tokens=tokens, columns=columns),
        geometry=small_geometry(tokens),
        encoder=ENCODER,
    )
    label = np.array([LABELS[v] for v in store.column("video")])
    offset = np.eye(8, dtype=np.float32)[[{"": 3, "boil": 0, "chop": 1, "pour": 2}[name] for name in label]] * 5
    for unit in range(store.unit_count):
        made = small_result(store, unit)
        rows = store.unit_range(unit)
        here = offset[rows.start : rows.stop]
        patch = made.patch
        if isinstance(patch, np.ndarray):
            patch = patch * 0.3 + here[:, None, None, None]
        write_unit(store, unit, replace(made, cls=made.tokens["cls"] * 0.3 + here, patch=patch))
    return open_store(path)


@pytest.mark.parametrize(("tokens", "features"), [("cls", "cls"), ("cls+mean", "mean"), ("full", "mean")])
def test_linear_on_a_store_on_disk(tmp_path: Path, tokens: Tokens, features: str) -> None:
    store = write(tmp_path / "S.zarr", tokens)
    args = ["linear", str(tmp_path / "S.zarr"), "--label", "label", "--features", features, "--json"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert (data["balanced_accuracy"]["mean"], data["balanced_accuracy"]["sd"]) == (1.0, 0.0)
    assert data["store"] == str(tmp_path / "S.zarr")
    assert data["recipe_id"] == store.recipe_id
    assert data["encoder"] == {"name": "levjepa-nano", "untrained": True, "licence": "none"}
    assert (data["rows"]["failed"], data["rows"]["unlabelled"], data["rows"]["used"]) == (5, 2, 68)
    assert "UNTRAINED" in data["warnings"][0]
    assert any("every file is its own source" in text for text in data["warnings"])


def test_group_by_a_number_column(tmp_path: Path) -> None:
    write(tmp_path / "S.zarr")
    args = ["linear", str(tmp_path / "S.zarr"), "--label", "label", "--group", "subject", "--json"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["sources"] == 15


def test_a_unit_that_is_not_committed_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "S.zarr"
    store = write(path)
    args = ["linear", str(path), "--label", "label", "--json"]
    (path / "units" / f"{store.unit_count - 1}.json").unlink()
    rows = json.loads(CliRunner().invoke(main, args).stdout)["rows"]
    assert rows["absent"] == len(store.unit_range(store.unit_count - 1))
    assert rows["ok"] + rows["failed"] + rows["absent"] == store.rows
    for unit in range(store.unit_count - 1):
        (path / "units" / f"{unit}.json").unlink()
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    assert result.stderr == f"coldframe-probe: error: the store {path} has no ok rows; nothing can be probed.\n"


@pytest.mark.parametrize("make", [False, True], ids=["nothing", "an empty folder"])
def test_something_else_than_a_store(tmp_path: Path, make: bool) -> None:
    path = tmp_path / "S.zarr"
    if make:
        path.mkdir()
    result = CliRunner().invoke(main, ["linear", str(path), "--label", "label"])
    assert result.exit_code == 2
    assert result.stderr.startswith("coldframe-probe: error: ")
    assert result.stderr.count("\n") == 1
