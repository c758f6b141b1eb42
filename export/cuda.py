"""The GPU: whether there is one, what it is, and how clips reach it. Asking for it where there is none is an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils.dlpack

from coldframe.errors import UsageError

_DRIVER_FILE = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Facts about one GPU that decide whether a plan may run on it.

    Attributes:
        name: as the driver gives it.
        compute_capability: such as `9.0`.
        driver: version of the kernel driver, or `unknown`.
        memory_bytes: size of its memory.
    """

    name: str
    compute_capability: str
    driver: str
    memory_bytes: int


def find_gpu() -> Gpu | None:
    """The GPU that PyTorch would use, or None."""
    if not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(
        name=facts.name,
        compute_capability=f"{facts.major}.{facts.minor}",
        driver=driver_version(),
        memory_bytes=facts.total_memory,
    )


def require_gpu(asked: str) -> Gpu:
    """The GPU, for `asked`, such as `device 'cuda'`.

    Raises:
        UsageError: there is none that PyTorch can use. Nothing falls back to the CPU.
    """
    gpu = find_gpu()
    if gpu is None:
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        raise UsageError(
            f"{asked} was asked for, but there is no usable GPU here (PyTorch {torch.__version__}, built {built}, sees "
            "none). Run it on a machine with one, or ask for backend onnxruntime or torch on device cpu."
        )
    return gpu


def driver_version(path: Path = _DRIVER_FILE) -> str:
    """Version of NVIDIA's kernel driver from its own file: the first word that is a number with dots."""
    if path.is_file():
        for word in path.read_text(encoding="utf-8", errors="replace").split():
            if word.count(".") and word.replace(".", "").isdigit():
                return word
    return "unknown"


def receive(clips: Any, stream: Any, ready: Any = None) -> torch.Tensor:
    """Take over a producer's clips on the GPU, safe to read on `stream`, without a copy.

    The wait comes before anything touches the memory, a cast included: a cast before the wait reads what the
    producer has not written yet, gives plausible wrong numbers, and works in every debugger.

    Args:
        clips: a PyTorch tensor on the GPU, or anything with `__dlpack__`; uint8.
        stream: the `torch.cuda.Stream` that will read it.
        ready: a `torch.cuda.Event` recorded after the producer's last write, for producers whose DLPack export
            does not synchronise. None for producers that follow the DLPack protocol or write on the current stream.

    Raises:
        UsageError: the clips are not on the GPU, or not uint8.
    """
    if ready is not None:
        stream.wait_event(ready)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(clips)
    if not tensor.is_cuda:
        raise UsageError(f"clips lie on {tensor.device}; wanted is the GPU. Give numpy arrays to the runtime itself.")
    if tensor.dtype != torch.uint8:
        raise UsageError(f"clips are {tensor.dtype}; wanted is uint8 RGB. The encoder normalises by itself.")
    tensor.record_stream(stream)  # the allocator must not hand the memory out again before `stream` has read it
    return tensor


def new_stream() -> Any:
    """A CUDA stream of one's own: the default one waits for, and is waited for by, everybody."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def batches(count: int, largest: int) -> list[slice]:
    """Consecutive slices of at most `largest` that cover `count` clips, all full but the last."""
    return [slice(start, min(start + largest, count)) for start in range(0, count, largest)]


@contextmanager
def full_accumulation() -> Iterator[None]:
    """Sum matrix products in float32 and compute float32 ones in float32: PyTorch's CUDA defaults allow less."""
    matmul = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {name: getattr(matmul, name) for name in names}
    try:
        for name in names:
            setattr(matmul, name, False)
        yield
    finally:
        for name, value in before.items():
            setattr(matmul, name, value)
