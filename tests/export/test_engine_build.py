"""Real ahead-of-time builds of the real graphs by TensorRT for RTX, which needs no GPU for that."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.errors import BundleError, MissingDependency, UsageError
from coldframe.export import Bundle, engine_build, export_bundle, save_reference
from coldframe.export.cuda import Gpu
from coldframe.export.engine import EngineSpec, Profile, list_engines
from coldframe.export.engine_build import build_engine, build_plan, target_spec
from coldframe.export.engine_cli import build_engine_command
from coldframe.export.graph import write_graph
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.tensorrt_library import load_library, targets
from tests.export.conftest import TINY, lively_model
from tests.export.hugging_face import small_vjepa2
from tests.export.image_folders import hugging_face_folder, timm_folder

RTX = load_library("tensorrt_rtx")
OUTPUTS = ("cls", "patch")


def spec(precision: str = "fp32", **changes: Any) -> EngineSpec:
    facts: dict[str, Any] = {
        "flavour": "tensorrt_rtx",
        "version": RTX.__version__,
        "precision": precision,
        "compute_capability": "8.9",
        "gpu": None,
        "driver": None,
        "weights_sha256": "1" * 64,
        "graph_sha256": "2" * 64,
        "graph_data_sha256": "3" * 64,
        "clip": (4, 32, 32, 3),
        "profile": Profile(best=4, largest=8),
    }
    return EngineSpec(**(facts | changes))


@pytest.fixture(scope="module")
def bundle(tiny_model: LeVJEPA, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("build")
    save_reference(tiny_model, root / "source")
    return export_bundle(root / "source", root / "bundle")


@pytest.fixture(scope="module")
def graphs(tiny_model: LeVJEPA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("typed")
    paths = {precision: folder / f"{precision}.onnx" for precision in ("fp32", "fp16", "bf16")}
    for precision, path in paths.items():
        write_graph(tiny_model, path, metadata={}, precision=precision)
    return paths


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_every_typed_graph_parses_and_builds(graphs: dict[str, Path], precision: str) -> None:
    plan = build_plan(RTX, graphs[precision], spec(precision), OUTPUTS)
    assert len(plan) > 100_000
    assert plan[:8] == b"vtrt\0\0\0\0"  # what a plan of this library begins with


def _vjepa2(source: Path) -> dict[str, Any]:
    small_vjepa2(source)
    return {}


def _clip_vit(source: Path) -> dict[str, Any]:
    hugging_face_folder("clip", source)
    return {"frames": 2, "precisions": ("fp32", "bf16")}


def _resnet(source: Path) -> dict[str, Any]:
    """Convolutions alone, without a vector a frame."""
    timm_folder("resnet18", source)
    return {"frames": 2, "precisions": ("fp32", "fp16")}


def _other_sizes(source: Path) -> dict[str, Any]:
    save_reference(lively_model(TINY), source)
    return {"frames": 3, "layers": (0,)}


@pytest.mark.parametrize("write", [_vjepa2, _clip_vit, _resnet, _other_sizes])
def test_graph_of_every_family_builds(write: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    bundle = export_bundle(tmp_path / "source", tmp_path / "bundle", **write(tmp_path / "source"))
    for precision in bundle.precisions:
        engine = build_engine(bundle, flavour="tensorrt_rtx", precision=precision, compute_capability="8.9")
        assert engine.spec.clip == bundle.geometry.clip_shape
        assert engine.plan_bytes > 100_000


def test_graph_with_other_outputs_is_refused(graphs: dict[str, Path]) -> None:
    with pytest.raises(BundleError, match=r"is not an encoder for clips .* its inputs and outputs are .*'cls'"):
        build_plan(RTX, graphs["fp32"], spec(), ("patch",))


def test_graph_of_another_precision_is_refused(graphs: dict[str, Path]) -> None:
    """A strongly typed network keeps the graph's types, so an engine that is called fp16 must have them."""
    with pytest.raises(BundleError, match=r"products in \['DataType.FLOAT'\], not in fp16"):
        build_plan(RTX, graphs["fp32"], spec("fp16"), OUTPUTS)


def test_graph_for_other_clips_is_refused(graphs: dict[str, Path]) -> None:
    with pytest.raises(BundleError, match=r"is not an encoder for clips \(8, 32, 32, 3\)"):
        build_plan(RTX, graphs["fp32"], spec(clip=(8, 32, 32, 3)), OUTPUTS)


def test_what_does_not_parse_is_refused_with_the_librarys_reason(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"tensorrt_rtx 1\.\d.* cannot parse .*bad.onnx: .{10}"):
        build_plan(RTX, tmp_path / "bad.onnx", spec(), OUTPUTS)


class Recorder:
    """Passes everything on to the real builder, and keeps what was asked of its configuration."""

    def __init__(self) -> None:
        self.flags_cleared: list[Any] = []
        self.capabilities: list[Any] = []
        self.shapes: list[Any] = []
        self.network_flags: list[int] = []
        self.config: type[Spy] = Spy
        self.plan: bytes | None = None  # instead of a real build

    def library(self) -> Any:
        names = (name for name in dir(RTX) if not name.startswith("__"))
        return SimpleNamespace(**{name: getattr(RTX, name) for name in names} | {"Builder": self.builder})

    def builder(self, log: Any) -> Any:
        real = RTX.Builder(log)

        def create_network(flags: int) -> Any:
            self.network_flags.append(flags)
            return real.create_network(flags)

        def create_optimization_profile() -> Any:
            profile = real.create_optimization_profile()

            def set_shape(*shapes: Any) -> None:
                self.shapes.append(shapes)
                profile.set_shape(*shapes)

            return SimpleNamespace(real=profile, set_shape=set_shape)

        def build(network: Any, config: Any) -> Any:
            return self.plan or real.build_serialized_network(network, config.real)

        return SimpleNamespace(
            create_network=create_network,
            create_builder_config=lambda: self.config(real.create_builder_config(), self),
            create_optimization_profile=create_optimization_profile,
            build_serialized_network=build,
        )


class Spy:
    def __init__(self, real: Any, outer: Recorder) -> None:
        object.__setattr__(self, "real", real)
        object.__setattr__(self, "outer", outer)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def clear_flag(self, flag: Any) -> None:
        self.outer.flags_cleared.append(flag)
        self.real.clear_flag(flag)

    def set_compute_capability(self, capability: Any, index: int) -> bool:
        self.outer.capabilities.append((capability, index))
        return bool(self.real.set_compute_capability(capability, index))

    def add_optimization_profile(self, profile: Any) -> int:
        return int(self.real.add_optimization_profile(profile.real))


def test_network_is_strongly_typed_without_tf32_and_its_batch_is_free(graphs: dict[str, Path]) -> None:
    recorder = Recorder()
    build_plan(recorder.library(), graphs["fp32"], spec(profile=Profile(best=2, largest=6)), OUTPUTS)
    assert recorder.network_flags == [1 << int(RTX.NetworkDefinitionCreationFlag.STRONGLY_TYPED)]
    assert recorder.flags_cleared == [RTX.BuilderFlag.TF32]
    assert recorder.capabilities == [(RTX.ComputeCapability.SM89, 0)]
    assert recorder.shapes == [("clips", (1, 4, 32, 32, 3), (2, 4, 32, 32, 3), (6, 4, 32, 32, 3))]


# --- into a bundle --------------------------------------------------------------------------------------------------


def test_build_goes_into_the_bundle_once(bundle: Bundle) -> None:
    told: list[str] = []
    arguments: dict[str, Any] = {"flavour": "tensorrt_rtx", "precision": "fp32", "compute_capability": "8.9"}
    first = build_engine(bundle, **arguments, say=told.append)
    written = first.path.stat().st_mtime_ns
    again = build_engine(bundle, **arguments, say=told.append)
    assert (again, again.path.stat().st_mtime_ns) == (first, written)
    assert told == ["building the tensorrt_rtx fp32 engine (minutes for a large encoder)"]
    assert first.spec.graph_sha256 == bundle.files["encoder.fp32.onnx"]["sha256"]
    assert first.spec.profile == Profile(smallest=1, best=4, largest=8)
    first.path.write_bytes(b"cut")
    with pytest.raises(BundleError, match="is not the plan its record describes"):
        build_engine(bundle, **arguments)
    first.path.with_name(f"{first.path.name}.json").unlink()
    assert build_engine(bundle, **arguments).read_plan()


def test_another_target_or_batch_is_another_engine(bundle: Bundle) -> None:
    before = len(list_engines(bundle))
    build_engine(bundle, flavour="tensorrt_rtx", precision="fp32", compute_capability="12.0", max_batch=2)
    assert len(list_engines(bundle)) == before + 1


def test_altered_graph_is_not_built(bundle: Bundle) -> None:
    path = bundle.path / "encoder.fp32.onnx.data"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        with pytest.raises(BundleError, match="was altered"):
            build_engine(bundle, flavour="tensorrt_rtx", precision="fp32", compute_capability="8.6")
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (
            {"compute_capability": "9.0"},
            r"compute capability is 9\.0; tensorrt_rtx .* builds for 7\.5, 8\.0",
        ),
        ({"compute_capability": "NE"}, "builds for 7.5"),
        ({"compute_capability": None}, "there is no usable GPU here"),
        ({"precision": "fp16"}, "has no fp16 graph; it offers fp32"),
        ({"max_batch": 0}, "max_batch is 0; allowed is a whole number from 1"),
    ],
)
def test_impossible_request_is_refused(bundle: Bundle, arguments: dict[str, Any], match: str) -> None:
    whole: dict[str, Any] = {"flavour": "tensorrt_rtx", "precision": "fp32", "compute_capability": "8.9"} | arguments
    with pytest.raises(UsageError, match=match):
        build_engine(bundle, **whole)


def test_targets_are_read_from_the_library() -> None:
    assert targets(RTX)["8.9"] == RTX.ComputeCapability.SM89
    assert targets(RTX)["12.1"] == RTX.ComputeCapability.SM121
    assert targets(SimpleNamespace()) == {}  # the datacenter library has no such list


# --- the datacenter flavour, whose library cannot be installed here -------------------------------------------------

H200 = Gpu(name="NVIDIA H200", compute_capability="9.0", driver="580.65", memory_bytes=1)


def test_datacenter_engine_is_for_the_gpu_here(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldframe.export.cuda.find_gpu", lambda: H200)
    library = SimpleNamespace(__version__="11.0.0")
    built = target_spec(bundle, library, "tensorrt", "fp32", None, Profile())
    assert (built.gpu, built.driver, built.compute_capability) == ("NVIDIA H200", "580.65", "9.0")
    assert target_spec(bundle, library, "tensorrt", "fp32", "9.0", Profile()) == built
    with pytest.raises(UsageError, match=r"8.9 was asked for, but tensorrt tunes .* NVIDIA H200 \(9.0\)"):
        target_spec(bundle, library, "tensorrt", "fp32", "8.9", Profile())


def test_datacenter_engine_needs_a_gpu(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="there is no usable GPU here"):
        target_spec(bundle, SimpleNamespace(__version__="11.0.0"), "tensorrt", "fp32", None, Profile())


def test_timing_cache_is_kept_by_version_gpu_and_driver(bundle: Bundle) -> None:
    def name(**changes: Any) -> str:
        facts = {"flavour": "tensorrt", "version": "11.0.0", "gpu": "NVIDIA H200", "driver": "580.65"} | changes
        path = engine_build._timing_cache_path(bundle, spec(**facts))
        assert path is not None
        return path.name

    assert len({name(), name(version="11.1.0"), name(gpu="NVIDIA L4"), name(driver="581")}) == 4
    assert engine_build._timing_cache_path(bundle, spec()) is None


def test_timing_cache_is_read_and_written_back(graphs: dict[str, Path], tmp_path: Path) -> None:
    """With the calls of the other library answered by hand: here they exist but do nothing and warn."""
    seen: list[Any] = []

    class Config(Spy):
        def create_timing_cache(self, known: bytes) -> str:
            seen.append(known)
            return "cache"

        def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
            seen.append((cache, ignore_mismatch))
            return True

        def get_timing_cache(self) -> Any:
            return SimpleNamespace(serialize=lambda: b"times")

    recorder = Recorder()
    recorder.config, recorder.plan = Config, b"plan"
    library = recorder.library()
    path = tmp_path / "engines" / "cache.timing"
    for _ in range(2):
        build_plan(library, graphs["fp32"], spec(), OUTPUTS, timing_cache=path)
    assert seen == [b"", ("cache", False), b"times", ("cache", False)]
    assert path.read_bytes() == b"times"


@pytest.mark.parametrize(("flavour", "extra"), [("tensorrt", "gpu"), ("tensorrt_rtx", "rtx")])
def test_missing_library_names_its_extra(flavour: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, flavour, None)
    with pytest.raises(MissingDependency, match=rf"{flavour} is not installed.*coldframe\[{extra}\]"):
        load_library(flavour)


def test_command_builds_and_says_what_the_engine_is_for(bundle: Bundle) -> None:
    arguments = [str(bundle.path), "--flavour", "tensorrt_rtx", "--precision", "fp32", "--compute-capability", "8.9"]
    text = CliRunner().invoke(build_engine_command, arguments, catch_exceptions=False).stdout
    assert "any GPU of compute capability 8.9" in text
    assert "parity      not measured yet" in text
    facts = json.loads(CliRunner().invoke(build_engine_command, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert facts["profile"] == {"smallest": 1, "best": 4, "largest": 8}
    assert np.isclose(facts["bytes"], Path(facts["engine"]).stat().st_size)
    assert TINY.num_frames == facts["clip"][0]
