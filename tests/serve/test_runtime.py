"""Opening a bundle for computing: what is offered works, and nothing else is substituted."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coldframe.errors import BundleError, InputNotFound, UsageError
from coldframe.export import Bundle, LeVJEPAConfig, export_bundle, open_bundle, save_reference
from coldframe.export.checkpoint import load_state
from coldframe.export.levjepa import LeVJEPA
from coldframe.serve.runtime import BACKENDS, open_runtime

CONFIG = LeVJEPAConfig(img_size=32, num_frames=4, embed_dim=48, depth=1, num_heads=3)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("runtime")
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LeVJEPA(CONFIG).state_dict().items()}
    state = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_reference(load_state(CONFIG, state), root / "source")
    return export_bundle(root / "source", root / "bundle")


@pytest.fixture
def copy(bundle: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle.path, tmp_path / "copy"))


def clips(count: int = 2) -> Any:
    return np.random.default_rng(0).integers(0, 256, (count, 4, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_runtime_is_what_was_asked_for(bundle: Bundle, backend: Any) -> None:
    runtime = open_runtime(bundle, backend, threads=1)
    assert (runtime.backend, runtime.precision, runtime.threads) == (backend, "fp32", 1)
    facts = runtime.provenance()
    assert facts.keys() == {"runtime", "provider", "threads", "cpu"}
    assert facts["runtime"].split()[0] == backend


def test_backends_agree(bundle: Bundle) -> None:
    first, *others = (open_runtime(bundle.path, backend)(clips()) for backend in BACKENDS)
    for other in others:
        np.testing.assert_allclose(first.cls, other.cls, atol=1e-4)
        np.testing.assert_allclose(first.patch, other.patch, atol=1e-4)


def test_default_is_the_graph_on_all_usable_cores(bundle: Bundle) -> None:
    runtime = open_runtime(str(bundle.path))
    assert (runtime.backend, runtime.threads) == ("onnxruntime", len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"backend": "cuda"}, "backend is 'cuda'; allowed are torch, onnxruntime"),
        ({"precision": "fp8"}, "precision is 'fp8'; allowed are fp32"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_unknown_request_is_refused(bundle: Bundle, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        open_runtime(bundle, **arguments)


@pytest.mark.parametrize("backend", BACKENDS)
def test_precision_that_the_bundle_lacks_is_refused(bundle: Bundle, backend: Any) -> None:
    with pytest.raises(UsageError, match="has no fp32 graph; it offers int8"):
        open_runtime(replace(bundle, precisions=("int8",)), backend)


def test_missing_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="coldframe export"):
        open_runtime(tmp_path / "absent")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda parity: parity.clear(), "no parity record for onnxruntime/fp32"),
        (
            lambda parity: parity["onnxruntime/fp32"].update(patch_cosine_worst=0.9),
            "misses its parity budget.*worst is 0.9",
        ),
        (
            lambda parity: parity["onnxruntime/fp32"].update(cls_cosine=float("nan")),
            "misses its parity budget.*cls_cosine is nan",
        ),
        (lambda parity: parity["onnxruntime/fp32"].pop("prefix"), "parity record .* is incomplete"),
        (lambda parity: parity["onnxruntime/fp32"].update(cls_cosine=None), "parity record .* is incomplete"),
    ],
)
def test_variant_without_good_parity_is_refused(bundle: Bundle, change: Callable[[Any], object], match: str) -> None:
    parity = json.loads(json.dumps(bundle.parity))
    change(parity)
    with pytest.raises(BundleError, match=match):
        open_runtime(replace(bundle, parity=parity))


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("onnxruntime", "encoder.fp32.onnx"),
        ("onnxruntime", "encoder.fp32.onnx.data"),
        ("torch", "model.safetensors"),
    ],
)
def test_altered_weights_are_not_run(copy: Path, backend: Any, name: str) -> None:
    opened = open_bundle(copy)
    data = bytearray((copy / name).read_bytes())
    data[-5] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(BundleError, match="Export it again"):
        open_runtime(opened, backend)


def test_running_the_graph_needs_no_torch(bundle: Bundle) -> None:
    code = f"""
import sys
sys.modules["torch"] = sys.modules["onnx"] = None  # importing either fails
import numpy
from coldframe.serve.runtime import open_runtime
print(open_runtime({str(bundle.path)!r})(numpy.zeros((1, 4, 32, 32, 3), numpy.uint8)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "Tokens(cls=(1, 48)" in run.stdout
