"""Runtime: a bundle made ready to compute. uint8 clips in, tokens out, the same whatever runs underneath."""

import os
from typing import Any, Literal, Protocol, get_args

from coldframe.errors import BundleError, UsageError
from coldframe.export.bundle_files import Bundle, check_digests, open_bundle
from coldframe.export.parity import BUDGETS, over_budget, variant
from coldframe.export.pixels import Clips
from coldframe.export.tokens import Tokens
from coldframe.serve.gpu_runtime import GpuBackend, is_gpu_request, open_gpu_runtime

Backend = Literal["torch", "onnxruntime"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
PRECISIONS = tuple(BUDGETS)


class Runtime(Protocol):
    """Something that encodes clips.

    Attributes:
        backend, precision: what was asked for, and runs; there is no fallback.
        threads: threads that one call uses.
    """

    @property
    def backend(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def threads(self) -> int: ...

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)` RGB, into fresh arrays; any other input is a UsageError."""
        ...

    def provenance(self) -> dict[str, str]:
        """Runtime name and version, provider, threads and processor, for the record of a run."""
        ...


def open_runtime(
    bundle: Bundle | str | os.PathLike[str],
    backend: Backend | GpuBackend = "onnxruntime",
    precision: str = "fp32",
    threads: int | None = None,
    device: str | None = None,
) -> Runtime:
    """Open `bundle` for computing. The weights it reads are checked against their digests.

    Args:
        bundle: an opened bundle, or its path.
        backend: `onnxruntime` runs the exported graph, `torch` the reference itself.
        precision: arithmetic; one that the bundle offers.
        threads: threads a call; None for one a usable core.
        device: `cpu` or `cuda`; None for the backend's own, the CPU but for `gpu_runtime.GPU_BACKENDS`.

    Raises:
        UsageError: an unknown backend or precision, or one that the bundle does not offer.
        MissingDependency: the backend is not installed.
        BundleError: the bundle is damaged, or this variant has no parity record within budget.
    """
    if is_gpu_request(backend, device):
        gpu: Runtime = open_gpu_runtime(bundle, backend, precision, device, threads)
        return gpu
    if backend not in BACKENDS:
        raise UsageError(f"backend is {backend!r}; allowed are {', '.join(BACKENDS)}.")
    if precision not in PRECISIONS:
        raise UsageError(f"precision is {precision!r}; allowed are {', '.join(PRECISIONS)}.")
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    if precision not in opened.precisions:
        raise UsageError(
            f"{opened.path} has no {precision} graph; it offers {', '.join(opened.precisions)}. "
            "Use one of these, or export the encoder again."
        )
    return _torch(opened, threads) if backend == "torch" else _onnxruntime(opened, precision, threads)


def _torch(bundle: Bundle, threads: int | None) -> Runtime:
    """The reference. Parity is measured against it, so it has no record of its own."""
    from coldframe.export.checkpoint import load_reference, weights_sha256
    from coldframe.export.torch_runtime import TorchRuntime

    model = load_reference(bundle.path)
    found = weights_sha256(model)
    if found != bundle.weights_sha256:
        raise BundleError(
            f"{bundle.path} holds weights of digest {found}, not {bundle.weights_sha256}. Export it again."
        )
    return TorchRuntime(model, threads=threads)


def _onnxruntime(bundle: Bundle, precision: str, threads: int | None) -> Runtime:
    from coldframe.export.onnx_runtime import OnnxRuntime

    _require_parity(bundle, variant("onnxruntime", precision), precision)
    graph = bundle.graph(precision)
    check_digests(bundle, (graph.name, f"{graph.name}.data"))
    return OnnxRuntime(graph, bundle.config, precision=precision, threads=threads)


def _require_parity(bundle: Bundle, key: str, precision: str) -> None:
    record: Any = bundle.parity.get(key)
    if record is None:
        raise BundleError(f"{bundle.path} has no parity record for {key}, so it is not run. Export it again.")
    try:
        misses = over_budget(record, precision)
    except (KeyError, TypeError) as error:
        raise BundleError(
            f"{bundle.path}: the parity record for {key} is incomplete ({error}). Export it again."
        ) from error
    if misses:
        raise BundleError(f"{bundle.path} as {key} misses its parity budget: {'; '.join(misses)}. Export it again.")
