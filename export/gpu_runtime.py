"""What every runtime on a GPU shares: clips go up, are split into batches that fit, encoded, and come down.

What encodes is given (`torch_cuda`, `tensorrt_runtime`). Everything of one runtime is queued on one CUDA stream of
its own; results come down into page-locked memory that is allocated anew for every call, so nothing is
overwritten later and no rows beyond the real batch exist.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from coldframe.errors import UsageError
from coldframe.export.cuda import Gpu, batches, receive
from coldframe.export.geometry import Geometry, HasGeometry, as_geometry
from coldframe.export.host import cpu_model
from coldframe.export.pixels import Clips, check_clips
from coldframe.export.tokens import Tokens

# By the names of `Geometry.outputs`, float32.
Outputs = dict[str, torch.Tensor]
# uint8 (b, T, H, W, 3) on the device, and the stream to queue on. What it gives may be overwritten by its next call.
DeviceEncode = Callable[[torch.Tensor, Any], Outputs]


class GpuRuntime:
    """uint8 clips in, tokens out, on the GPU. Calls from several threads take turns.

    Args:
        encode: what encodes one batch.
        geometry: what it takes and gives.
        backend, precision: for the record.
        max_batch: most clips that `encode` takes.
        stream: CUDA stream of this runtime.
        gpu: what it runs on.
        version: library and its version, such as `torch 2.13.0`.
    """

    threads = 1

    def __init__(
        self,
        encode: DeviceEncode,
        geometry: Geometry | HasGeometry,
        *,
        backend: str,
        precision: str,
        max_batch: int,
        stream: Any,
        gpu: Gpu,
        version: str,
    ) -> None:
        self.backend = backend
        self.precision = precision
        self.max_batch = max_batch
        self._encode = encode
        self._geometry = as_geometry(geometry)
        self._stream = stream
        self._device = torch.device("cpu" if stream is None else "cuda")
        self._gpu = gpu
        self._version = version
        self._lock = threading.Lock()

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 numpy `(B, T, H, W, 3)`, of any B. Every call gives fresh arrays."""
        # PyTorch has no read-only tensors, so a read-only array is copied.
        checked = torch.from_numpy(np.require(check_clips(clips, self._geometry), requirements="W"))
        pinned = self._stream is not None
        outputs = {
            name: torch.empty(shape, pin_memory=pinned)
            for name, shape in self._geometry.output_shapes(len(checked)).items()
        }
        with self._lock, self._queued():
            for part in batches(len(checked), self.max_batch):
                staged = checked[part].pin_memory() if pinned else checked[part]
                for name, got in self._encode(staged.to(self._device, non_blocking=True), self._stream).items():
                    outputs[name][part].copy_(got, non_blocking=True)
            if self._stream is not None:
                self._stream.synchronize()
        return Tokens.from_outputs({name: values.numpy() for name, values in outputs.items()})

    def encode_device(self, clips: Any, *, ready: Any = None) -> Outputs:
        """Encode clips that lie on the GPU already; the tokens stay there.

        The caller's current stream waits for the result, so it may be used at once.

        Args:
            clips, ready: what `cuda.receive` takes; uint8 `(B, T, H, W, 3)` of any B.

        Returns:
            `patch` `(B, T, h, w, D)` and whatever else `Geometry.outputs` names, float32, fresh.

        Raises:
            UsageError: another shape or dtype, or not on the GPU.
        """
        with self._lock:
            tensor = receive(clips, self._stream, ready)
            wanted = self._geometry.clip_shape
            if tensor.ndim != 5 or tuple(tensor.shape[1:]) != wanted or not len(tensor):
                raise UsageError(
                    f"clips have shape {tuple(tensor.shape)}; wanted is (B, {', '.join(map(str, wanted))})."
                )
            with self._queued():
                # A view of the producer's memory need not be contiguous, and TensorRT reads by address.
                whole = tensor.contiguous()
                parts = [
                    {name: got.clone() for name, got in self._encode(whole[part], self._stream).items()}
                    for part in batches(len(whole), self.max_batch)
                ]
                outputs = {name: torch.cat([part[name] for part in parts]) for name in self._geometry.outputs}
            here = torch.cuda.current_stream()
            here.wait_stream(self._stream)
            for out in outputs.values():
                out.record_stream(here)
        return outputs

    def _queued(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def provenance(self) -> dict[str, str]:
        """What computes, for the record of a run."""
        gpu = self._gpu
        return {
            "runtime": self._version,
            "provider": f"cuda, {gpu.name}, compute capability {gpu.compute_capability}, driver {gpu.driver}",
            "threads": str(self.threads),
            "cpu": cpu_model(),
        }
