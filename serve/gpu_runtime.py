"""Opening a bundle on a GPU. What cannot run here is refused before the bundle, or any video, is read."""

import os
from typing import Any, Literal, get_args

from coldframe.errors import UsageError
from coldframe.export.bundle_files import Bundle, check_digests, open_bundle
from coldframe.export.config import LeVJEPAConfig
from coldframe.export.engine import FLAVOURS, Flavour
from coldframe.export.parity import BUDGETS
from coldframe.serve.reference import open_reference, reference_model

Device = Literal["cpu", "cuda"]
DEVICES: tuple[Device, ...] = get_args(Device)
GpuBackend = Flavour
GPU_BACKENDS = FLAVOURS  # these run nowhere else
_ON_CUDA = ("torch", "onnxruntime", *GPU_BACKENDS)


def is_gpu_request(backend: str, device: str | None) -> bool:
    """Whether `open_runtime` has to hand the request over to `open_gpu_runtime`."""
    return backend in GPU_BACKENDS or device not in (None, "cpu")


def check_gpu_request(backend: str, precision: str, device: str | None) -> None:
    """Refuse a request that cannot be met on this machine; reads no file.

    Raises:
        UsageError: an unknown device, backend or precision, a GPU backend on the CPU, or no usable GPU.
        MissingDependency: the backend's package is not installed.
    """
    if device is not None and device not in DEVICES:
        raise UsageError(f"device is {device!r}; allowed are {', '.join(DEVICES)}.")
    if backend not in _ON_CUDA:
        raise UsageError(f"backend {backend!r} does not run on device 'cuda'; these do: {', '.join(_ON_CUDA)}.")
    if device == "cpu":
        raise UsageError(f"backend {backend!r} runs on a GPU only, device is 'cpu'. Leave the device out, or use cuda.")
    if precision not in BUDGETS:
        raise UsageError(f"precision is {precision!r}; allowed are {', '.join(BUDGETS)}.")
    if backend == "onnxruntime":
        from coldframe.export.onnx_runtime import require_provider

        require_provider("cuda")
    elif backend in GPU_BACKENDS:
        from coldframe.export.tensorrt_library import load_library

        load_library("tensorrt" if backend == "tensorrt" else "tensorrt_rtx")
    from coldframe.export.cuda import require_gpu

    require_gpu(f"backend {backend!r} on device 'cuda'")


def require_gpu_variant(bundle: Bundle, backend: str, precision: str, device: str | None) -> None:
    """Refuse what this machine or the records of `bundle` rule out, before any video is read; loads nothing.

    Raises:
        UsageError, MissingDependency, BundleError: as `open_gpu_runtime`, but for what only opening can show.
    """
    check_gpu_request(backend, precision, device)
    if backend == "torch":
        _require_levjepa(bundle)
    elif backend in GPU_BACKENDS:
        from coldframe.export.tensorrt_runtime import admit_engine

        admit_engine(bundle, "tensorrt" if backend == "tensorrt" else "tensorrt_rtx", precision)
    else:
        _require_graph(bundle, precision)


def _require_levjepa(bundle: Bundle) -> None:
    if not isinstance(bundle.config, LeVJEPAConfig) or bundle.geometry != bundle.config.geometry():
        raise UsageError(
            f"torch computes {bundle.name} on the CPU only: on a GPU it is LeVJEPA at the released sizes, without "
            f"further layers. Use device cpu, or what runs the graph: onnxruntime, {', '.join(GPU_BACKENDS)}."
        )


def _require_graph(bundle: Bundle, precision: str) -> None:
    if precision not in bundle.precisions:
        raise UsageError(f"{bundle.path} has no {precision} graph; it offers {', '.join(bundle.precisions)}.")


def open_gpu_runtime(
    bundle: Bundle | str | os.PathLike[str], backend: str, precision: str, device: str | None, threads: int | None
) -> Any:
    """Open `bundle` on the GPU, if its parity there is within budget; the first opening measures it.

    Args:
        bundle: an opened bundle, or its path.
        backend: `tensorrt` or `tensorrt_rtx` (an engine that `coldframe build-engine` made), `torch` or `onnxruntime`.
        precision: arithmetic.
        device: `cuda`, or None for a backend that runs on nothing else.
        threads: host threads a call, used by `onnxruntime` alone.

    Raises:
        UsageError, MissingDependency: what `check_gpu_request` refuses, or the bundle lacks the graph or the engine.
        BundleError: the bundle is damaged, no engine fits this GPU, or parity is over budget.
    """
    check_gpu_request(backend, precision, device)
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    runtime: Any
    if backend in GPU_BACKENDS:
        from coldframe.export.tensorrt_runtime import open_tensorrt

        runtime = open_tensorrt(opened, "tensorrt" if backend == "tensorrt" else "tensorrt_rtx", precision)
    elif backend == "torch":
        from coldframe.export.levjepa import LeVJEPA
        from coldframe.export.torch_cuda import open_torch_cuda

        _require_levjepa(opened)
        model = reference_model(opened)
        assert isinstance(model, LeVJEPA), type(model)
        runtime = open_torch_cuda(model, precision=precision)
    else:
        runtime = _onnxruntime(opened, precision, threads)
    _require_parity(opened, runtime)
    return runtime


def _onnxruntime(bundle: Bundle, precision: str, threads: int | None) -> Any:
    from coldframe.export.onnx_runtime import OnnxRuntime

    _require_graph(bundle, precision)
    graph = bundle.graph(precision)
    check_digests(bundle, (graph.name, f"{graph.name}.data"))
    return OnnxRuntime(graph, bundle.geometry, precision=precision, threads=threads, device="cuda")


def _require_parity(bundle: Bundle, runtime: Any) -> None:
    from coldframe.export.cuda import require_gpu
    from coldframe.export.device_parity import require_device_parity

    gpu = require_gpu(f"backend {runtime.backend!r}")
    facts = {"backend": runtime.backend, "runtime": runtime.provenance()["runtime"], "gpu": gpu.name}
    facts |= {"compute_capability": gpu.compute_capability, "driver": gpu.driver}
    require_device_parity(bundle, runtime, runtime.precision, facts, lambda: open_reference(bundle))
