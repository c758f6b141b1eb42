"""Building a TensorRT plan from a bundle's graph, with either library.

The graph carries its precision: the network is strongly typed and the builder has nothing to choose. TF32, which
the builder allows by default and which would make float32 products of 10 bits, is switched off.

`tensorrt` keeps a timing cache beside its plans: measured kernel times of one library version on one GPU, so that
a second build (another precision, another batch) skips most measuring. `tensorrt_rtx` has none; it measures nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldframe.errors import BundleError, UsageError
from coldframe.export.bundle_files import Bundle, check_digests
from coldframe.export.engine import (
    ENGINE_FOLDER,
    Engine,
    EngineSpec,
    Flavour,
    Profile,
    engine_spec,
    list_engines,
    write_engine,
    write_whole,
)
from coldframe.export.tensorrt_library import load_library, make_log, targets

_TYPES = {"fp32": "FLOAT", "fp16": "HALF", "bf16": "BF16"}
DEFAULT_BATCH = 4  # what an extraction encodes at a time


def build_engine(
    bundle: Bundle,
    *,
    flavour: Flavour,
    precision: str,
    compute_capability: str | None = None,
    max_batch: int = 8,
    say: Callable[[str], None] = lambda stage: None,
) -> Engine:
    """Build a plan into `bundle`; one that is there already is checked and left as it is.

    Args:
        bundle: the exported encoder; needs a graph of `precision`.
        flavour: library that builds and will run it.
        precision: `fp32`, `fp16` or `bf16`.
        compute_capability: target of a `tensorrt_rtx` plan, such as `8.9`; None for the GPU here.
        max_batch: most clips that one execution takes; larger batches are split by the runtime.
        say: told the name of each stage as it begins.

    Raises:
        UsageError: the bundle lacks the graph, or the target is not offered or not here.
        MissingDependency: the library is not installed.
        BundleError: the graph was altered, or the library cannot parse or build it.
    """
    if type(max_batch) is not int or max_batch < 1:
        raise UsageError(f"max_batch is {max_batch!r}; allowed is a whole number from 1.")
    profile = Profile(best=min(DEFAULT_BATCH, max_batch), largest=max_batch)
    library = load_library(flavour)
    spec = target_spec(bundle, library, flavour, precision, compute_capability, profile)
    graph = bundle.graph(precision)
    check_digests(bundle, (graph.name, f"{graph.name}.data"))
    for engine in list_engines(bundle):
        if engine.spec == spec:
            engine.read_plan()
            return engine
    say(f"building the {flavour} {precision} engine (minutes for a large encoder)")
    plan = build_plan(library, graph, spec, bundle.geometry.outputs, timing_cache=_timing_cache_path(bundle, spec))
    return write_engine(bundle, spec, plan)


def target_spec(
    bundle: Bundle, library: Any, flavour: Flavour, precision: str, capability: str | None, profile: Profile
) -> EngineSpec:
    """What will be built: for `tensorrt` on the GPU here, for `tensorrt_rtx` for the capability asked for."""
    # Here, because PyTorch takes seconds to load and an ahead-of-time build does not need it.
    gpu = None
    if flavour == "tensorrt" or capability is None:
        from coldframe.export.cuda import require_gpu

        gpu = require_gpu(f"building a {flavour} engine for the GPU here")
    if flavour == "tensorrt" and gpu is not None and capability not in (None, gpu.compute_capability):
        raise UsageError(
            f"compute capability {capability} was asked for, but tensorrt tunes on the GPU it runs on, and that is "
            f"{gpu.name} ({gpu.compute_capability}). Build there, or use --flavour tensorrt_rtx."
        )
    target = capability if gpu is None else gpu.compute_capability
    assert target is not None
    require_target(library, flavour, target)
    return engine_spec(
        bundle,
        flavour=flavour,
        version=library.__version__,
        precision=precision,
        compute_capability=target,
        gpu=gpu.name if gpu else None,
        driver=gpu.driver if gpu else None,
        profile=profile,
    )


def require_target(library: Any, flavour: Flavour, compute_capability: str) -> None:
    """Refuse a compute capability that `tensorrt_rtx` does not build for; `tensorrt` takes the GPU that is here."""
    offered = targets(library)
    if flavour == "tensorrt_rtx" and compute_capability not in offered:
        raise UsageError(
            f"compute capability is {compute_capability}; tensorrt_rtx {library.__version__} builds for "
            f"{', '.join(offered)}. For other GPUs use --flavour tensorrt on the GPU itself."
        )


def build_plan(
    library: Any, graph: Path, spec: EngineSpec, outputs: tuple[str, ...], *, timing_cache: Path | None = None
) -> bytes:
    """Parse `graph`, which gives `outputs`, and build it as `spec` says.

    Raises:
        BundleError: the library cannot parse or build it, or the network is not of `spec.precision`.
    """
    log = make_log(library)
    builder = library.Builder(log)
    network = builder.create_network(1 << int(library.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = library.OnnxParser(network, log)
    if not parser.parse_from_file(str(graph)):
        told = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise BundleError(f"{spec.flavour} {spec.version} cannot parse {graph}: {told or '; '.join(log.messages)}")
    _check_network(library, network, graph, spec, outputs)
    config = builder.create_builder_config()
    config.clear_flag(library.BuilderFlag.TF32)
    if spec.flavour == "tensorrt_rtx":
        config.num_compute_capabilities = 1
        config.set_compute_capability(targets(library)[spec.compute_capability], 0)
    shapes = [(count, *spec.clip) for count in (spec.profile.smallest, spec.profile.best, spec.profile.largest)]
    profile = builder.create_optimization_profile()
    profile.set_shape("clips", *shapes)
    config.add_optimization_profile(profile)
    if timing_cache is not None:
        known = timing_cache.read_bytes() if timing_cache.is_file() else b""
        config.set_timing_cache(config.create_timing_cache(known), False)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BundleError(f"{spec.flavour} {spec.version} cannot build {graph}: {'; '.join(log.messages)}")
    if timing_cache is not None:
        timing_cache.parent.mkdir(exist_ok=True)
        write_whole(timing_cache, bytes(config.get_timing_cache().serialize()))
    return bytes(plan)


def _check_network(library: Any, network: Any, graph: Path, spec: EngineSpec, outputs: tuple[str, ...]) -> None:
    """Names, types and shapes at the edge, and that matrix products really are of the precision asked for."""
    ends = [network.get_input(index) for index in range(network.num_inputs)]
    ends += [network.get_output(index) for index in range(network.num_outputs)]
    given = {end.name: (end.dtype, end.shape[0]) for end in ends}
    wide = library.DataType.FLOAT
    wanted = {"clips": (library.DataType.UINT8, -1), **dict.fromkeys(outputs, (wide, -1))}
    if given != wanted or tuple(ends[0].shape[1:]) != spec.clip:
        raise BundleError(
            f"{graph} is not an encoder for clips {spec.clip} with a free batch: its inputs and outputs are "
            f"{ {end.name: (str(end.dtype), tuple(end.shape)) for end in ends} }. Export the bundle again."
        )
    layers = (network.get_layer(index) for index in range(network.num_layers))
    kinds = (library.LayerType.MATRIX_MULTIPLY, library.LayerType.CONVOLUTION)
    products = {layer.get_output(0).dtype for layer in layers if layer.type in kinds}
    if products != {getattr(library.DataType, _TYPES[spec.precision])}:
        raise BundleError(
            f"{graph} computes its products in {sorted(str(kind) for kind in products)}, not in "
            f"{spec.precision}: a strongly typed network keeps what the graph says. Export the bundle again."
        )


def _timing_cache_path(bundle: Bundle, spec: EngineSpec) -> Path | None:
    """One cache per library version, GPU and driver, since times of another one mislead; None where there is none."""
    if spec.flavour != "tensorrt":
        return None
    gpu = "".join(char if char.isalnum() else "-" for char in f"{spec.gpu}.{spec.driver}")
    return bundle.path / ENGINE_FOLDER / f"{spec.flavour}.{spec.version}.{gpu}.timing"
