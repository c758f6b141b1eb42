"""Variants: a bundle's encoder in one runtime and one precision, loaded, and measured against the reference.

| precision | torch | onnxruntime | openvino |
|---|---|---|---|
| fp32 | the reference itself | fp32 graph | fp32 graph |
| bf16 | per frame, float32 sums | - (no bfloat16 product) | fp32 graph, bfloat16 hint |
| fp16 | - (slow on a CPU) | fp16 graph | - (no faster than fp32) |

Loading does not ask whether parity was met: measuring must load first. `coldframe.serve.runtime` asks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from coldframe.errors import UsageError
from coldframe.export.bundle_files import graph_file
from coldframe.export.geometry import Geometry
from coldframe.export.parity import BUDGETS, measure_parity, over_budget, remembered, variant
from coldframe.export.pixels import Clips
from coldframe.export.tokens import Tokens

if TYPE_CHECKING:
    from coldframe.export.encoder import Encoder

Backend = Literal["torch", "onnxruntime", "openvino"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
OFFERS: dict[Backend, tuple[str, ...]] = {
    "torch": ("fp32", "bf16"),
    "onnxruntime": ("fp32", "fp16"),
    "openvino": ("fp32", "bf16"),
}


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


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Parity of one variant, or why there is none.

    Attributes:
        backend, precision: the variant.
        record: what `parity.json` keeps; None if the variant does not run here.
        misses: every measure over budget, in words.
        absent: why the variant does not run here; empty if it does.
    """

    backend: Backend
    precision: str
    record: dict[str, Any] | None = None
    misses: tuple[str, ...] = ()
    absent: str = ""

    @property
    def key(self) -> str:
        """Its key in `parity.json`."""
        return variant(self.backend, self.precision)


def variant_files(backend: Backend, precision: str) -> tuple[str, ...]:
    """The bundle's files that the variant reads for its numbers, the small ones aside."""
    if backend == "torch":
        return ("model.safetensors",)
    graph = graph_file("fp32" if backend == "openvino" else precision)
    return (graph, f"{graph}.data")


def load_variant(
    folder: Path,
    geometry: Geometry,
    backend: Backend,
    precision: str,
    *,
    threads: int | None = None,
    model: "Encoder | None" = None,
) -> Runtime:
    """Load the bundle in `folder` for computing, whatever its parity.

    Args:
        folder: a bundle, finished or in the making.
        geometry: what its graphs take and give.
        backend, precision: the variant.
        threads: threads a call; None for one a usable core.
        model: the reference if it is loaded already; `torch` reads it from `folder` otherwise.

    Raises:
        UsageError: the backend does not compute in this precision, here or anywhere.
        MissingDependency: the backend is not installed.
        BundleError: the graph cannot be loaded.
    """
    require_offer(backend, precision)
    if backend == "torch":
        from coldframe.export.families import load_encoder
        from coldframe.export.torch_runtime import TorchRuntime

        return TorchRuntime(model or load_encoder(folder), geometry=geometry, precision=precision, threads=threads)
    graph = folder / variant_files(backend, precision)[0]
    if backend == "openvino":
        from coldframe.export.openvino_runtime import OpenVinoRuntime

        return OpenVinoRuntime(graph, geometry, precision=precision, threads=threads)
    from coldframe.export.onnx_runtime import OnnxRuntime

    return OnnxRuntime(graph, geometry, precision=precision, threads=threads)


def require_offer(backend: Backend, precision: str) -> None:
    """Raise `UsageError` unless `backend` computes in `precision`; nothing else is substituted."""
    if precision in OFFERS[backend]:
        return
    others = [other for other, offered in OFFERS.items() if precision in offered]
    raise UsageError(
        f"{backend} does not compute in {precision} on a CPU; it offers {', '.join(OFFERS[backend])}. "
        + (f"{precision} is offered by {', '.join(others)}." if others else f"No CPU runtime offers {precision}.")
    )


def measure_variants(
    folder: Path,
    model: "Encoder",
    geometry: Geometry,
    precisions: Sequence[str],
    say: Callable[[str], None],
) -> Iterator[Measured]:
    """Measure every variant of `precisions` against `model`, one after another: only one is in memory at a time.

    Clips are those of `parity.parity_clips`; the reference encodes each once for all variants. `torch` in fp32 is the
    reference and is not compared with itself.
    """
    from coldframe.export.torch_runtime import TorchRuntime

    reference_runtime = TorchRuntime(model, geometry=geometry)
    reference = remembered(reference_runtime)
    for precision in precisions:
        for backend in BACKENDS:
            if (backend, precision) == ("torch", "fp32"):
                continue
            say(f"measuring parity of {variant(backend, precision)} with the PyTorch reference")
            try:
                candidate = load_variant(folder, geometry, backend, precision, model=model)
            except UsageError as error:  # the runtime, or the processor, does not do it, or it is not installed
                yield Measured(backend=backend, precision=precision, absent=str(error))
                continue
            record = measure_parity(reference, candidate, geometry)
            misses = tuple(over_budget(record, precision))
            record["budget"] = asdict(BUDGETS[precision])
            record["provenance"] = {"candidate": candidate.provenance(), "reference": reference_runtime.provenance()}
            del candidate  # its weights would stay in memory while the next one loads
            yield Measured(backend=backend, precision=precision, record=record, misses=misses)
