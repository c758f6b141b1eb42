"""Running a plan: with a stand-in for the library that really reads and writes the addresses it is given."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coldframe.errors import BundleError, MissingDependency, UsageError
from coldframe.export import Bundle, export_bundle, save_reference, tensorrt_runtime
from coldframe.export.cuda import Gpu
from coldframe.export.engine import Engine, EngineSpec, Profile, engine_spec, write_engine
from coldframe.export.engine_build import build_engine
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.tensorrt_library import load_library
from coldframe.export.tensorrt_runtime import TensorRTEncode, admit_engine, open_tensorrt
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, random_clips

STREAM = SimpleNamespace(cuda_stream=4711)
SPEC = EngineSpec(
    flavour="tensorrt",
    version="11.0.0",
    precision="fp32",
    compute_capability="9.0",
    gpu="NVIDIA H200",
    driver="580.65",
    weights_sha256="1" * 64,
    graph_sha256="2" * 64,
    graph_data_sha256="3" * 64,
    clip=(4, 32, 32, 3),
    profile=Profile(best=2, largest=4),
)
ENGINE = Engine(path=Path("bundle/engines/x.plan"), spec=SPEC, plan_bytes=4, plan_sha256="0" * 64)


class Context:
    """An execution context that takes 1 to 4 clips; `cls` becomes each clip's mean pixel, `patch` its number + 1."""

    def __init__(self) -> None:
        self.addresses: dict[str, int] = {}
        self.shape: tuple[int, ...] = ()
        self.streams: list[int] = []
        self.failing = ""

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return name == "clips" and 1 <= shape[0] <= 4

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        count = self.shape[0] + (self.failing == "shape")
        return {"clips": self.shape, "cls": (count, 48), "patch": (count, 4, 2, 2, 48)}[name]

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return self.failing != "address"

    def execute_async_v3(self, stream: int) -> bool:
        self.streams.append(stream)
        clips = self.at("clips", ctypes.c_uint8)
        self.at("cls", ctypes.c_float)[:] = clips.mean(axis=(1, 2, 3, 4))[:, None]
        self.at("patch", ctypes.c_float)[:] = np.arange(1, len(clips) + 1).reshape(-1, 1, 1, 1, 1)
        return self.failing != "run"

    def at(self, name: str, kind: Any) -> Any:
        shape = self.get_tensor_shape(name)
        return np.ctypeslib.as_array((kind * int(np.prod(shape))).from_address(self.addresses[name])).reshape(shape)


class Log:
    """The library's logger class, as far as ours derives from it."""

    Severity = SimpleNamespace(ERROR="error", INTERNAL_ERROR="internal", WARNING="warning")


def library(context: Context | None, *, takes_plan: bool = True) -> Any:
    class Runtime:
        def __init__(self, log: Any) -> None:
            self.log = log

        def deserialize_cuda_engine(self, plan: bytes) -> Any:
            if not takes_plan:
                self.log.log("error", "plan of another version")
                return None
            return SimpleNamespace(create_execution_context=lambda: context)

    return SimpleNamespace(ILogger=Log, Runtime=Runtime, __version__="11.0.0")


def test_plan_reads_clips_and_writes_outputs_of_the_real_batch() -> None:
    context = Context()
    encode = TensorRTEncode(library(context), ENGINE, b"plan", TINY)
    for count in (4, 1, 3):
        clips = random_clips(TINY, count, seed=count)
        got = encode(torch.from_numpy(clips), STREAM)
        cls, patch = got["cls"], got["patch"]
        assert tuple(cls.shape) == (count, 48)
        assert tuple(patch.shape) == (count, 4, 2, 2, 48)
        np.testing.assert_allclose(cls[:, 0].numpy(), clips.mean(axis=(1, 2, 3, 4)), rtol=1e-6)
        np.testing.assert_array_equal(patch[:, 0, 0, 0, 0].numpy(), np.arange(1, count + 1))
    assert context.streams == [4711] * 3


def test_outputs_of_one_run_survive_the_next() -> None:
    encode = TensorRTEncode(library(Context()), ENGINE, b"plan", TINY)
    first = encode(torch.from_numpy(random_clips(TINY, 2, seed=1)), STREAM)["cls"]
    kept = first.clone()
    second = encode(torch.from_numpy(random_clips(TINY, 2, seed=2)), STREAM)["cls"]
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("failing", "match"),
    [
        ("shape", r"has cls \(3, 48\), wanted is \(2, 48\)"),
        ("address", "refuses the memory of clips"),
        ("run", "cannot be run"),
    ],
)
def test_what_the_library_refuses_is_an_error(failing: str, match: str) -> None:
    context = Context()
    context.failing = failing
    encode = TensorRTEncode(library(context), ENGINE, b"plan", TINY)
    with pytest.raises(BundleError, match=match):
        encode(torch.from_numpy(random_clips(TINY, 2)), STREAM)


def test_batch_beyond_the_profile_is_refused_by_the_engine_itself() -> None:
    encode = TensorRTEncode(library(Context()), ENGINE, b"plan", TINY)
    with pytest.raises(BundleError, match="refuses 5 clips"):
        encode(torch.from_numpy(random_clips(TINY, 5)), STREAM)


def test_plan_that_the_library_does_not_take_says_why_and_what_to_do() -> None:
    with pytest.raises(BundleError, match=r"does not take .*plan of another version.*coldframe build-engine bundle "):
        TensorRTEncode(library(Context(), takes_plan=False), ENGINE, b"plan", TINY)
    with pytest.raises(BundleError, match=r"no execution context .*memory full"):
        TensorRTEncode(library(None), ENGINE, b"plan", TINY)


# --- admission ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tiny_model: LeVJEPA, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("run")
    save_reference(tiny_model, root / "source")
    return export_bundle(root / "source", root / "bundle")


def put_gpu(monkeypatch: pytest.MonkeyPatch, compute_capability: str) -> None:
    gpu = Gpu(name="NVIDIA L4", compute_capability=compute_capability, driver="580.65", memory_bytes=1)
    monkeypatch.setattr(tensorrt_runtime, "require_gpu", lambda asked: gpu)


def test_engine_for_the_gpu_here_is_admitted_and_another_refused(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = load_library("tensorrt_rtx").__version__
    spec = engine_spec(bundle, flavour="tensorrt_rtx", version=version, precision="fp32", compute_capability="8.9")
    engine = write_engine(bundle, spec, b"plan")
    put_gpu(monkeypatch, "8.9")
    assert admit_engine(bundle, "tensorrt_rtx", "fp32") == engine
    put_gpu(monkeypatch, "12.0")
    with pytest.raises(BundleError, match=r"compute_capability is '8.9', here it is '12.0'.*--compute-capability 12.0"):
        admit_engine(bundle, "tensorrt_rtx", "fp32")


def test_without_a_gpu_or_library_nothing_is_admitted(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="backend 'tensorrt_rtx' was asked for, but there is no usable GPU here"):
        admit_engine(bundle, "tensorrt_rtx", "fp32")
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingDependency, match=r"coldframe\[gpu\]"):
        admit_engine(bundle, "tensorrt", "fp32")


@pytest.mark.gpu
@pytest.mark.parametrize("flavour", ["tensorrt", "tensorrt_rtx"])
def test_engine_equals_the_reference(tiny_model: LeVJEPA, bundle: Bundle, flavour: Any) -> None:
    build_engine(bundle, flavour=flavour, precision="fp32", max_batch=4)
    runtime = open_tensorrt(bundle, flavour, "fp32")
    for count in (1, 2, 5, 7):
        clips = random_clips(TINY, count, seed=count)
        got, wanted = runtime(clips), TorchRuntime(tiny_model)(clips)
        np.testing.assert_allclose(got.cls, wanted.cls, atol=1e-4)
        np.testing.assert_allclose(got.patch, wanted.patch, atol=1e-4)
