"""`parity`: the same command under both programs, measuring again what a bundle claims."""

import json
from pathlib import Path

import pytest
from click import Group
from click.testing import CliRunner

from coldframe import cli, probe_cli
from coldframe.errors import BundleError
from coldframe.export import parity
from coldframe.export.bundle import Bundle, export_bundle
from coldframe.export.checkpoint import load_state, save_reference
from tests.export.conftest import TINY, lively_model


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("parity")
    state = lively_model(TINY).state_dict()
    milder = {name: tensor * 0.4 if name.endswith("qkv.weight") else tensor for name, tensor in state.items()}
    save_reference(load_state(TINY, milder), folder / "source")
    return export_bundle(folder / "source", folder / "bundle", precisions=("bf16", "fp32"))


@pytest.mark.parametrize("program", [cli.main, probe_cli.main], ids=["coldframe", "coldframe-probe"])
def test_parity_is_measured_again(bundle: Bundle, program: Group) -> None:
    result = CliRunner().invoke(program, ["parity", str(bundle.path), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["met"] is True
    assert {one["variant"] for one in answer["variants"]} == set(bundle.parity)
    assert answer["absent"] == {
        "onnxruntime/bf16": "onnxruntime does not compute in bf16 on a CPU; it offers fp32, fp16. "
        "bf16 is offered by torch, openvino."
    }
    for one in answer["variants"]:
        assert one["parity"]["cls_cosine"] == pytest.approx(bundle.parity[one["variant"]]["cls_cosine"], abs=1e-5)


def test_variant_over_budget_is_said_and_exits_with_1(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = parity.Budget(**{**vars(parity.BUDGETS["bf16"]), "relative_max_abs": 1e-9})
    monkeypatch.setitem(parity.BUDGETS, "bf16", strict)
    result = CliRunner().invoke(cli.main, ["parity", str(bundle.path)])
    assert result.exit_code == 1
    lines = {line.split(":")[0]: line for line in result.stdout.splitlines()}
    assert "NOT MET, refused: relative_max_abs is" in lines["openvino/bf16"]
    assert lines["openvino/fp32"].endswith(": met")
    assert "absent" in lines["onnxruntime/bf16"]


def test_precision_that_no_runtime_meets_is_not_exported(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = parity.Budget(**{**vars(parity.BUDGETS["bf16"]), "relative_max_abs": 1e-9})
    monkeypatch.setitem(parity.BUDGETS, "bf16", strict)
    with pytest.raises(BundleError, match=r"in bf16 misses its parity budget.*torch/bf16: .*openvino/bf16: "):
        export_bundle(bundle.path, tmp_path / "b", precisions=("fp32", "bf16"))
    assert list(tmp_path.iterdir()) == []


def test_bundle_of_other_precisions_is_another_bundle(bundle: Bundle) -> None:
    with pytest.raises(ValueError, match="differs in precisions"):
        export_bundle(bundle.path, bundle.path, precisions=("fp32",))


@pytest.mark.parametrize("precisions", [("bf16",), ("fp32", "int8"), ("fp32", "")])
def test_precisions_that_cannot_be_are_refused(bundle: Bundle, tmp_path: Path, precisions: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="allowed are fp32, fp16, bf16, and fp32 must be among them"):
        export_bundle(bundle.path, tmp_path / "b", precisions=precisions)
