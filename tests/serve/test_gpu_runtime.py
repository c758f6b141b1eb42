"""A GPU that is asked for is used or refused, before anything is read: no fallback (field case 35)."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner

from coldframe.cli import main
from coldframe.errors import BundleError, MissingDependency, UsageError
from coldframe.export import Bundle, export_bundle, onnx_runtime, save_reference, torch_cuda
from coldframe.export.cuda import Gpu
from coldframe.export.engine import engine_spec, write_engine
from coldframe.export.frame_attention import PerFrameEncoder
from coldframe.export.gpu_runtime import GpuRuntime
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.onnx_runtime import OnnxRuntime
from coldframe.export.tensorrt_library import load_library
from coldframe.export.torch_cuda import TorchEncode
from coldframe.progress import progress_bar
from coldframe.serve.execution import Execution
from coldframe.serve.extract import extract, make_recipe
from coldframe.serve.runtime import open_runtime, require_variant
from tests.export.conftest import TINY, lively_model, random_clips

ABSENT = "/nowhere/at/all"  # had the bundle been looked at first, the error would be about it
H200 = Gpu(name="NVIDIA H200", compute_capability="9.0", driver="580.65", memory_bytes=1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("gpu")
    save_reference(lively_model(TINY), root / "source")
    return export_bundle(root / "source", root / "bundle")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_onnxruntime_without_the_cuda_provider_is_refused_first(no_gpu: None) -> None:
    with pytest.raises(UsageError, match=r"device 'cuda' was asked for, but onnxruntime .* offers only .*CPUExecution"):
        open_runtime(ABSENT, backend="onnxruntime", device="cuda")


def test_onnxruntime_with_the_provider_but_no_gpu_is_refused_first(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    with pytest.raises(UsageError, match="'onnxruntime' on device 'cuda' was asked for, but there is no usable GPU"):
        open_runtime(ABSENT, backend="onnxruntime", device="cuda")


def test_session_that_fell_back_to_the_cpu_is_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that is listed may still fail to load; ONNX Runtime then warns and takes the CPU alone."""
    real = onnxruntime.InferenceSession
    asked: list[Any] = []

    def falls_back(path: str, options: Any, providers: list[Any]) -> Any:
        asked.extend(providers)
        return real(path, options, providers=["CPUExecutionProvider"])

    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "InferenceSession", falls_back)
    with pytest.raises(BundleError, match=r"would run .* on \['CPU.*'\]; asked was CUDAExecutionProvider"):
        OnnxRuntime(bundle.graph("fp32"), bundle.config, device="cuda")
    assert asked == [("CUDAExecutionProvider", {"use_tf32": "0"})]


@pytest.mark.parametrize("backend", ["torch", "tensorrt_rtx"])
def test_no_gpu_is_an_error_before_the_bundle_is_read(no_gpu: None, backend: Any) -> None:
    with pytest.raises(UsageError, match=f"'{backend}' on device 'cuda' was asked for, but there is no usable GPU"):
        open_runtime(ABSENT, backend=backend, device="cuda")


def test_gpu_backend_needs_no_device_to_be_named(no_gpu: None) -> None:
    with pytest.raises(UsageError, match="no usable GPU here"):
        open_runtime(ABSENT, backend="tensorrt_rtx")


@pytest.mark.parametrize(("backend", "extra"), [("tensorrt", "gpu"), ("tensorrt_rtx", "rtx")])
def test_missing_library_names_its_extra(backend: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(MissingDependency, match=rf"coldframe\[{extra}\]"):
        open_runtime(ABSENT, backend=backend)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"device": "cuda:1"}, "device is 'cuda:1'; allowed are cpu, cuda"),
        ({"device": "tensorrt"}, "device is 'tensorrt'; allowed are cpu, cuda"),
        ({"backend": "tensorrt", "device": "cpu"}, "backend 'tensorrt' runs on a GPU only, device is 'cpu'"),
        ({"backend": "abacus", "device": "cuda"}, "backend 'abacus' does not run on device 'cuda'"),
        ({"backend": "torch", "device": "cuda", "precision": "fp8"}, "precision is 'fp8'; allowed are fp32"),
    ],
)
def test_impossible_request_is_refused(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        open_runtime(ABSENT, **arguments)


def test_cpu_can_be_named(bundle: Bundle) -> None:
    assert open_runtime(bundle, device="cpu").provenance()["provider"] == "CPUExecutionProvider"


# --- before any video is read (field case 34) ----------------------------------------------------------------------


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a video whose planning would fail the test."""

    def planning(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a video was read")

    monkeypatch.setattr("coldframe.serve.cli.plan_videos", planning)
    monkeypatch.setattr("coldframe.serve.extract.plan_videos", planning)
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "v.mp4").write_bytes(b"not looked at")
    return tmp_path


@pytest.mark.parametrize("command", ["plan", "extract"])
@pytest.mark.parametrize("options", [["--backend", "torch", "--device", "cuda"], ["--backend", "tensorrt_rtx"]])
def test_commands_refuse_a_gpu_that_is_not_there(
    bundle: Bundle, no_gpu: None, no_reading: Path, command: str, options: list[str]
) -> None:
    arguments = [command, str(no_reading / "videos"), "--encoder", str(bundle.path), *options]
    store = ["--store", str(no_reading / "s.zarr")] if command == "extract" else []
    result = CliRunner().invoke(main, [*arguments, *store])
    assert result.exit_code == 2
    assert "there is no usable GPU here" in result.stderr
    assert not (no_reading / "s.zarr").exists()


def test_extraction_refuses_an_engine_for_another_gpu(
    bundle: Bundle, no_reading: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldframe.export.cuda.find_gpu", lambda: H200)
    version = load_library("tensorrt_rtx").__version__
    facts: dict[str, Any] = {"flavour": "tensorrt_rtx", "precision": "fp32", "compute_capability": "8.9"}
    engine = write_engine(bundle, engine_spec(bundle, version=version, **facts), b"plan")
    try:
        with pytest.raises(
            BundleError, match=r"compute_capability is .8\.9., here it is .9\.0.*coldframe build-engine"
        ):
            extract(
                [],
                bundle,
                str(no_reading / "s.zarr"),
                make_recipe(bundle),
                progress=progress_bar,
                how=Execution(backend="tensorrt_rtx"),
            )
    finally:
        engine.path.with_name(f"{engine.path.name}.json").unlink()


# --- admission by parity, with the CPU in the GPU's place ----------------------------------------------------------


def stand_in(monkeypatch: pytest.MonkeyPatch, model: LeVJEPA) -> None:
    """Let there be a GPU, on which `model` computes in the place of the bundle's own weights."""
    monkeypatch.setattr("coldframe.export.cuda.find_gpu", lambda: H200)

    def open_torch_cuda(reference: LeVJEPA, *, precision: str) -> GpuRuntime:
        return GpuRuntime(
            TorchEncode(PerFrameEncoder(model)),
            reference.config,
            backend="torch",
            precision=precision,
            max_batch=2,
            stream=None,
            gpu=H200,
            version="torch 2.13",
        )

    monkeypatch.setattr(torch_cuda, "open_torch_cuda", open_torch_cuda)


def test_runtime_within_its_budget_is_opened_and_its_parity_kept(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, lively_model(TINY))
    runtime = open_runtime(bundle, backend="torch", device="cuda")
    clips = random_clips(TINY, 3)
    np.testing.assert_allclose(runtime(clips).patch, open_runtime(bundle, "torch")(clips).patch, atol=3e-5)
    (kept,) = (bundle.path / "engines").glob("torch.fp32.*.parity.json")
    assert "NVIDIA H200" in kept.read_text()


def test_runtime_over_its_budget_is_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, lively_model(TINY, seed=9))
    monkeypatch.setattr("coldframe.export.device_parity.ENGINE_FOLDER", str(tmp_path))
    with pytest.raises(BundleError, match="torch/fp32 on this GPU misses its parity budget"):
        open_runtime(bundle, backend="torch", device="cuda")


def test_weights_that_are_not_the_bundles_are_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lively_model(TINY))
    with pytest.raises(BundleError, match="holds weights of digest"):
        open_runtime(replace(bundle, weights_sha256="7" * 64), backend="torch", device="cuda")


def test_torch_on_a_gpu_refuses_other_sizes_and_says_what_runs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save_reference(lively_model(TINY), tmp_path / "source")
    wide = export_bundle(tmp_path / "source", tmp_path / "bundle", layers=(0,))
    monkeypatch.setattr("coldframe.export.cuda.find_gpu", lambda: H200)
    for opened in (open_runtime, require_variant):
        with pytest.raises(UsageError, match=r"on a GPU it is LeVJEPA at the released sizes.*onnxruntime, tensorrt"):
            opened(wide, "torch", "fp32", device="cuda")


def test_other_encoders_run_by_their_graph_and_are_measured_against_their_own_reference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ONNX Runtime's CPU session in the place of its CUDA one."""
    save_reference(lively_model(TINY), tmp_path / "source")
    wide = export_bundle(tmp_path / "source", tmp_path / "bundle", layers=(0,))
    monkeypatch.setattr("coldframe.export.cuda.find_gpu", lambda: H200)
    monkeypatch.setattr(onnx_runtime, "require_provider", lambda device: None)
    monkeypatch.setitem(onnx_runtime._PROVIDERS, "cuda", onnx_runtime._PROVIDERS["cpu"])
    runtime = open_runtime(wide, "onnxruntime", device="cuda")
    clips = random_clips(TINY, 2)
    np.testing.assert_allclose(runtime(clips).layers[0], open_runtime(wide, "torch")(clips).layers[0], atol=3e-5)
    (kept,) = (wide.path / "engines").glob("onnxruntime.fp32.*.parity.json")
    assert '"layers": {' in kept.read_text()


def test_graph_that_the_bundle_lacks_is_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldframe.export.cuda.find_gpu", lambda: H200)
    monkeypatch.setattr(onnx_runtime, "require_provider", lambda device: None)
    for backend in ("onnxruntime", "tensorrt_rtx"):
        with pytest.raises(UsageError, match="has no fp32 graph; it offers int8"):
            open_runtime(replace(bundle, precisions=("int8",)), backend=backend, device="cuda")
    with pytest.raises(UsageError, match=r"has no tensorrt_rtx engine in fp32\. Build one: coldframe build-engine"):
        open_runtime(bundle, backend="tensorrt_rtx")
