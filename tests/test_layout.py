"""The folders, the installed package and the direction of imports agree."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import coldframe

ROOT = Path(__file__).parents[1]
FOLDERS = ["export", "store", "serve", "probes", "bench"]

# who may import whom; the root package ties everything together
MAY_IMPORT = {
    "export": {"export"},
    "store": {"store"},
    "serve": {"serve", "store", "export"},
    "probes": {"probes", "store"},
    "bench": {"bench", "store", "serve", "export", "probes"},
}
# a heavy package is imported where its name says, and nowhere else
HEAVY = {
    "av": {"serve/container.py", "src/coldframe/motion.py"},
    "faiss": {"store/faiss_library.py"},
    "nvidia": {"serve/dali_graph.py"},
    "lance": {"store/convert.py"},
    "ml_dtypes": {"export/traced_graph.py"},
    "obstore": {"store/object_path.py"},
    "onnx": {"export/graph.py"},
    "onnx_ir": {"export/traced_graph.py"},
    "onnxruntime": {"export/onnx_runtime.py"},
    "pyarrow": {"serve/inputs.py", "store/convert.py"},
    "onnxscript": {"export/traced_graph.py"},
    "ray": {"serve/ray_workers.py"},
    "sklearn": {"bench/probe.py"},
    "openvino": {"export/openvino_model.py"},
    "tensorrt": {"export/tensorrt_library.py"},
    "tensorrt_rtx": {"export/tensorrt_library.py"},
    "timm": {"export/timm_images.py"},
    "transformers": {"export/transformers_images.py"},
}


def sources() -> list[Path]:
    return [file for folder in [*FOLDERS, "src/coldframe"] for file in sorted((ROOT / folder).glob("*.py"))]


def imported(file: Path) -> set[str]:
    """Names of all modules that a file imports when it runs, wherever in the file."""
    names = set()
    todo: list[ast.AST] = [ast.parse(file.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        todo.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_imported_from_its_real_file(folder: str) -> None:
    spec = importlib.util.find_spec(f"coldframe.{folder}")
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).resolve() == ROOT / folder / "__init__.py"


@pytest.mark.parametrize("folder", [*FOLDERS, "tests"])
def test_folder_name_is_not_installed(folder: str, tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", f"import {folder}"], cwd=tmp_path, capture_output=True)
    assert b"ModuleNotFoundError" in run.stderr


def test_every_package_folder_is_in_the_wheel_table() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shipped = {file.parent.name for file in ROOT.glob("*/__init__.py")} - {"tests"}
    assert shipped == set(FOLDERS) == set(wheel["sources"]) - {"src/coldframe"}


def test_wheel_holds_every_folder_under_one_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("coldframe-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {"coldframe", f"coldframe-{coldframe.__version__}.dist-info"}
    for file in sources():
        inside = file.relative_to(ROOT / "src") if file.is_relative_to(ROOT / "src") else None
        assert str(inside or Path("coldframe") / file.relative_to(ROOT)) in names


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_one_way(folder: str) -> None:
    for file in (ROOT / folder).glob("*.py"):
        parts = {name.split(".")[1] for name in imported(file) if name.startswith("coldframe.")}
        assert parts & set(FOLDERS) <= MAY_IMPORT[folder], file


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_package_is_imported_in_its_place_only(package: str) -> None:
    places = {
        str(file.relative_to(ROOT))
        for file in sources()
        if any(name.split(".")[0] == package for name in imported(file))
    }
    assert places == HEAVY[package]


@pytest.mark.parametrize(
    ("start", "absent"),
    [
        ("import coldframe.probes.cli", ["av", "onnxruntime", "pyarrow", "coldframe.serve", "coldframe.export"]),
        ("import coldframe.store.cli", ["av", "obstore", "onnx", "onnxruntime", "pyarrow", "torch"]),
        ("import coldframe.serve.runtime", ["onnxruntime", "tensorrt", "tensorrt_rtx", "torch"]),
        ("import coldframe.export", ["av", "onnx", "onnxruntime", "openvino", "timm", "transformers", "zarr"]),
        ("import coldframe.cli", ["torch", "zarr", "numpy"]),
    ],
)
def test_light_parts_start_light(start: str, absent: list[str]) -> None:
    code = f"{start}; import sys; print([m for m in {absent!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_test_that_the_decoding_cases_name_exists() -> None:
    file, missing, named = None, [], 0
    for words in re.findall(r"`([^`\n]+)`", (ROOT / "docs/decoding-cases.md").read_text()):
        found = re.fullmatch(r"(?:((?:serve|real)/)?(test_\w+\.py))?(?:::)?(test_\w+)?", words)
        if not found:
            continue
        folder, name, test = found.groups()
        file = ROOT / "tests" / (folder or "serve/") / name if name else file
        text = file.read_text() if file and file.exists() else ""
        named += 1
        if not text or (test and f"def {test}(" not in text):
            missing.append(words)
    assert named > 40
    assert not missing


def test_version_is_the_newest_in_the_changelog() -> None:
    heads = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## [")]
    assert heads[0].startswith(f"## [{coldframe.__version__}]")


def test_every_test_that_the_guide_to_operations_names_exists() -> None:
    named = re.findall(r"`((?:serve|store)/test_\w+\.py)(?:::(test_\w+))?`", (ROOT / "docs/operations.md").read_text())
    assert len(named) > 20
    missing = [f"{file}::{test}" for file, test in named if f"def {test}" not in (ROOT / "tests" / file).read_text()]
    assert not missing
