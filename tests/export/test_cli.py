"""`coldframe export`, called as a user would."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from coldframe.errors import UsageError
from coldframe.export.checkpoint import save_reference
from coldframe.export.cli import export_command
from coldframe.export.levjepa import LeVJEPA


@pytest.fixture
def source(tiny_model: LeVJEPA, tmp_path: Path) -> Path:
    save_reference(tiny_model, tmp_path / "released")
    (tmp_path / "released" / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    return tmp_path / "released"


def test_export_prints_identity_licence_and_parity(source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(export_command, [str(source), "--out", str(tmp_path / "b")], catch_exceptions=False)
    assert result.exit_code == 0
    for text in (
        "levjepa-48x2x3p16",
        "parameters",
        "sha256",
        "cc-by-nc-4.0",
        "NON-COMMERCIAL",
        "onnxruntime/fp32",
    ):
        assert text in result.stdout
    assert "UNTRAINED" not in result.stdout
    assert result.stderr == ""  # progress is for terminals
    again = CliRunner().invoke(export_command, [str(source), "--out", str(tmp_path / "b")], catch_exceptions=False)
    assert "already there, verified, unchanged" in again.stdout


def test_random_weights_are_called_untrained(tmp_path: Path) -> None:
    out = tmp_path / "b"
    runner = CliRunner()
    result = runner.invoke(
        export_command, ["levjepa-nano", "--random-init", "0", "--out", str(out)], catch_exceptions=False
    )
    assert "UNTRAINED   random weights from seed 0" in result.stdout
    assert "NON-COMMERCIAL" not in result.stdout
    result = runner.invoke(
        export_command,
        ["levjepa-nano", "--random-init", "0", "--out", str(out), "--json"],
        catch_exceptions=False,
    )
    facts = json.loads(result.stdout)
    assert (facts["name"], facts["untrained"], facts["unchanged"]) == ("levjepa-nano", True, True)
    assert facts["parameters"] == 2_817_408
    assert facts["parity"]["onnxruntime/fp32"]["patch_cosine_worst"] >= 0.99999


def test_refusal_comes_as_one_of_our_errors(tmp_path: Path) -> None:
    result = CliRunner().invoke(export_command, ["levjepa-nano", "--out", str(tmp_path / "b")])
    assert isinstance(result.exception, UsageError)
    assert "--random-init SEED" in str(result.exception)
    assert CliRunner().invoke(export_command, ["levjepa-nano"]).exit_code == 2


def test_help_shows_examples() -> None:
    text = CliRunner().invoke(export_command, ["--help"]).stdout
    assert "Export a frozen video encoder" in text
    assert "coldframe export levjepa-nano --random-init 0 --out encoders/nano" in text


# --- what is imported when ---------------------------------------------------------------------

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Block())
"""


def run_blocked(blocked: list[str], code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=blocked) + code],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_package_and_its_names_load_without_onnx_and_onnxruntime() -> None:
    code = "import coldframe.export as e\nprint([getattr(e, n).__name__ for n in e.__all__ if n != 'SIZES'])"
    run = run_blocked(["onnx", "onnxruntime"], code)
    assert run.returncode == 0, run.stderr
    assert "export_bundle" in run.stdout


EXPORT = """
from coldframe.export import export_bundle
try:
    print(export_bundle("levjepa-nano", {out!r}, random_init=0).parity.keys())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("blocked", "message"),
    [
        (["onnx"], "onnx is not installed"),
        (["onnxruntime", "openvino"], "a runtime that could measure fp32 (onnxruntime is not installed."),
    ],
)
def test_export_without_a_package_names_the_extra_and_leaves_nothing(
    blocked: list[str], message: str, tmp_path: Path
) -> None:
    run = run_blocked(blocked, EXPORT.format(out=str(tmp_path / "b")))
    assert run.stdout.startswith(f"MissingDependency {message}")
    assert "pip install 'coldframe[cpu]'" in run.stdout
    assert list(tmp_path.iterdir()) == []


def test_export_measures_what_is_installed(tmp_path: Path) -> None:
    run = run_blocked(["openvino"], EXPORT.format(out=str(tmp_path / "b")))
    assert run.stdout.strip() == "dict_keys(['onnxruntime/fp32'])"


def test_package_names_are_exactly_those_listed() -> None:
    import coldframe.export as package

    assert sorted(package.__all__) == sorted(package._HOMES)
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        _ = package.absent
