"""Runtime: a bundle made ready to compute. uint8 clips in, tokens out, the same whatever runs underneath."""

import os
from typing import Any, cast

from coldframe.errors import BundleError, UsageError
from coldframe.export.bundle_files import Bundle, check_digests, open_bundle
from coldframe.export.parity import BUDGETS, over_budget, variant
from coldframe.export.variants import BACKENDS, Backend, Runtime, load_variant, require_offer, variant_files
from coldframe.serve.gpu_runtime import GpuBackend, is_gpu_request, open_gpu_runtime, require_gpu_variant
from coldframe.serve.reference import open_reference

__all__ = ["BACKENDS", "PRECISIONS", "Backend", "Runtime", "open_runtime", "require_variant"]

PRECISIONS = tuple(BUDGETS)


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
        backend: `openvino` and `onnxruntime` run the exported graph, `torch` the reference (`export.variants`).
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
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    require_variant(opened, backend, precision)
    if (backend, precision) == ("torch", "fp32"):
        return open_reference(opened, threads)
    known = cast(Backend, backend)  # anything else was refused
    check_digests(opened, variant_files(known, precision))
    return load_variant(opened.path, opened.geometry, known, precision, threads=threads)


def require_variant(bundle: Bundle, backend: Backend | GpuBackend, precision: str, device: str | None = None) -> None:
    """Refuse what `open_runtime` would refuse by the bundle's records alone, before any work; see there."""
    if is_gpu_request(backend, device):
        require_gpu_variant(bundle, backend, precision, device)
        return
    if backend not in BACKENDS:
        raise UsageError(f"backend is {backend!r}; allowed are {', '.join(BACKENDS)}.")
    if precision not in PRECISIONS:
        raise UsageError(f"precision is {precision!r}; allowed are {', '.join(PRECISIONS)}.")
    if precision not in bundle.precisions:
        raise UsageError(
            f"{bundle.path} has no {precision} graph; it offers {', '.join(bundle.precisions)}. "
            f"Use one of these, or export the encoder again with --precisions fp32,{precision}."
        )
    require_offer(backend, precision)
    if (backend, precision) != ("torch", "fp32"):  # which parity is measured against
        _require_parity(bundle, variant(backend, precision), precision)


def _require_parity(bundle: Bundle, key: str, precision: str) -> None:
    record: Any = bundle.parity.get(key)
    if record is None:
        raise BundleError(
            f"{bundle.path} has no parity record for {key}, so it is not run. Export it again where {key} runs."
        )
    try:
        if (bundle.geometry.has_cls or bundle.geometry.has_frame_cls) and record["cls_cosine"] is None:
            raise TypeError("cls_cosine is null, but the encoder has a [CLS]")
        misses = over_budget(record, precision)
    except (KeyError, TypeError) as error:
        raise BundleError(
            f"{bundle.path}: the parity record for {key} is incomplete ({error}). Export it again."
        ) from error
    if misses:
        raise BundleError(f"{bundle.path} as {key} misses its parity budget: {'; '.join(misses)}. Export it again.")
