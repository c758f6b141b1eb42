"""The GPU variants that `gpu_check` runs: what each needs, and how it is opened without a bundle."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from coldframe.export.checkpoint import load_reference
from coldframe.export.config import SIZES
from coldframe.export.engine import EngineSpec, Flavour, Profile
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.pixels import Clips
from coldframe.export.tokens import Tokens
from coldframe.export.torch_runtime import TorchRuntime

MAX_BATCH = 8


class Workspace:
    """One untrained encoder, its graphs and its reference tokens, each made when first asked for.

    Args:
        encoder: a size name.
        folder: where graphs go; large ones have 1.2 GB.
    """

    def __init__(self, encoder: str, folder: Path) -> None:
        self.config = SIZES[encoder]
        self._encoder = encoder
        self._folder = folder
        self._known: dict[bytes, Tokens] = {}

    @cached_property
    def model(self) -> LeVJEPA:
        return load_reference(self._encoder, random_init=0)

    def graph(self, precision: str) -> Path:
        from coldframe.export.graph import write_graph  # here, so that a missing onnx ends only the parts that need it

        path = self._folder / f"encoder.{precision}.onnx"
        if not path.is_file():
            self._folder.mkdir(exist_ok=True)
            write_graph(self.model, path, metadata={}, precision=precision)
        return path

    def reference(self, clips: Clips) -> Tokens:
        """Tokens of the PyTorch reference on the CPU; equal clips are encoded once, for it is slow."""
        key = clips.tobytes()
        if key not in self._known:
            self._known[key] = TorchRuntime(self.model)(clips)
        return self._known[key]


@dataclass(frozen=True, kw_only=True)
class GpuVariant:
    """One runtime in one precision."""

    backend: str
    precision: str

    def open(self, workspace: Workspace) -> Any:
        """The runtime, ready to encode.

        Raises:
            UsageError: it cannot run here: a package, the GPU or its compute capability is missing.
            BundleError: the library fails on the graph.
        """
        if self.backend == "torch":
            from coldframe.export.torch_cuda import open_torch_cuda

            return open_torch_cuda(workspace.model, precision=self.precision, max_batch=MAX_BATCH)
        if self.backend == "onnxruntime":
            from coldframe.export.onnx_runtime import OnnxRuntime, require_provider

            require_provider("cuda")  # before a large graph is written
            return OnnxRuntime(
                workspace.graph(self.precision), workspace.config, precision=self.precision, device="cuda"
            )
        return _open_tensorrt(workspace, "tensorrt" if self.backend == "tensorrt" else "tensorrt_rtx", self.precision)


# TensorRT in the order of what is used most; builds of the large encoder take a minute each.
VARIANTS = tuple(
    GpuVariant(backend=backend, precision=precision)
    for backend in ("torch", "tensorrt", "tensorrt_rtx", "onnxruntime")
    for precision in ("bf16", "fp16", "fp32")
)


def _open_tensorrt(workspace: Workspace, flavour: Flavour, precision: str) -> Any:
    from coldframe.export.cuda import new_stream, require_gpu
    from coldframe.export.engine import Engine
    from coldframe.export.engine_build import build_plan, require_target
    from coldframe.export.gpu_runtime import GpuRuntime
    from coldframe.export.tensorrt_library import load_library
    from coldframe.export.tensorrt_runtime import TensorRTEncode

    library = load_library(flavour)
    gpu = require_gpu(f"backend {flavour!r}")
    require_target(library, flavour, gpu.compute_capability)
    config = workspace.config
    spec = EngineSpec(
        flavour=flavour,
        version=library.__version__,
        precision=precision,
        compute_capability=gpu.compute_capability,
        gpu=gpu.name,
        driver=gpu.driver,
        weights_sha256="",
        graph_sha256="",
        graph_data_sha256="",
        clip=config.geometry().clip_shape,
        profile=Profile(best=MAX_BATCH, largest=MAX_BATCH),
    )
    graph = workspace.graph(precision)
    plan = build_plan(library, graph, spec, config.geometry().outputs)
    engine = Engine(path=graph.with_suffix(".plan"), spec=spec, plan_bytes=len(plan), plan_sha256="")
    encode = TensorRTEncode(library, engine, plan, config)
    torch.cuda.synchronize()
    return GpuRuntime(
        encode,
        config,
        backend=flavour,
        precision=precision,
        max_batch=MAX_BATCH,
        stream=new_stream(),
        gpu=gpu,
        version=f"{flavour} {library.__version__}",
    )
