"""Runtime `torch` on a GPU: one attention a frame, and one CUDA graph for every batch size.

A clip is some 40 kernels a block, each a few microseconds: launched one by one they would leave the GPU waiting
for Python. A CUDA graph replays them in one launch, for fixed shapes, so each batch size up to `max_batch` is
captured when it first comes.
"""

from dataclasses import dataclass
from typing import Any

import torch

from coldframe.errors import UsageError
from coldframe.export.cuda import full_accumulation, new_stream, require_gpu
from coldframe.export.frame_attention import TORCH_DTYPES, PerFrameEncoder
from coldframe.export.gpu_runtime import GpuRuntime, Outputs
from coldframe.export.levjepa import LeVJEPA

MAX_BATCH = 8  # peers measured nothing gained beyond one clip of 3,137 tokens; 8 bounds memory
_WARM_UPS = 3  # libraries pick kernels and allocate workspaces in their first calls, which must not be captured


@dataclass(frozen=True, kw_only=True, eq=False)
class _Captured:
    """A CUDA graph with the tensors that it reads and writes."""

    graph: Any
    clips: torch.Tensor
    outputs: Outputs


class TorchEncode:
    """Encodes one batch by `encoder`; on a GPU through captured graphs, which give static outputs."""

    def __init__(self, encoder: PerFrameEncoder) -> None:
        self._encoder = encoder
        self._captured: dict[int, _Captured] = {}

    def __call__(self, clips: torch.Tensor, stream: Any) -> Outputs:
        with torch.inference_mode(), full_accumulation():
            if stream is None:
                return self._run(clips)
            if len(clips) not in self._captured:
                self._captured[len(clips)] = self._capture(clips, stream)
            captured = self._captured[len(clips)]
            captured.clips.copy_(clips, non_blocking=True)
            captured.graph.replay()
            return captured.outputs

    def _capture(self, like: torch.Tensor, stream: Any) -> _Captured:
        clips = torch.zeros_like(like)
        for _ in range(_WARM_UPS):
            self._encoder(clips)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs = self._run(clips)
        return _Captured(graph=graph, clips=clips, outputs=outputs)

    def _run(self, clips: torch.Tensor) -> Outputs:
        cls, patch = self._encoder(clips)
        return {"cls": cls, "patch": patch}


def open_torch_cuda(model: LeVJEPA, *, precision: str, max_batch: int = MAX_BATCH) -> GpuRuntime:
    """The reference's weights on the GPU in `precision`, one of `TORCH_DTYPES`.

    Raises:
        UsageError: there is no GPU, or the precision is unknown or too narrow for the weights.
    """
    gpu = require_gpu("backend 'torch' on device 'cuda'")
    if precision not in TORCH_DTYPES:
        raise UsageError(f"precision is {precision!r}; torch on cuda offers {', '.join(TORCH_DTYPES)}.")
    encoder = PerFrameEncoder(model, device="cuda", dtype=TORCH_DTYPES[precision])
    torch.cuda.synchronize()  # the weights went up on another stream
    return GpuRuntime(
        TorchEncode(encoder),
        model.config,
        backend="torch",
        precision=precision,
        max_batch=max_batch,
        stream=new_stream(),
        gpu=gpu,
        version=f"torch {torch.__version__}",
    )
