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
from coldframe.export.config import LeVJEPAConfig
from coldframe.export.cuda import Gpu, batches, receive
from coldframe.export.host import cpu_model
from coldframe.export.pixels import Clips, check_clips
from coldframe.export.tokens import Tokens

# uint8 (b, T, H, W, 3) on the device, and the stream to queue on -> cls (b, D), patch (b, T, h, w, D), float32. What it
# gives back may be overwritten by its next call.
DeviceEncode = Callable[[torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor]]


class GpuRuntime:
    """uint8 clips in, tokens out, on the GPU. Calls from several threads take turns.

    Args:
        encode: what encodes one batch.
        config: shape of the encoder.
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
        config: LeVJEPAConfig,
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
        self._config = config
        self._stream = stream
        self._device = torch.device("cpu" if stream is None else "cuda")
        self._gpu = gpu
        self._version = version
        self._lock = threading.Lock()

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 numpy `(B, T, H, W, 3)`, of any B. Every call gives fresh arrays."""
        # PyTorch has no read-only tensors, so a read-only array is copied.
        checked = torch.from_numpy(np.require(check_clips(clips, self._config), requirements="W"))
        pinned = self._stream is not None
        config = self._config
        grid = (config.num_frames, config.grid, config.grid, config.embed_dim)
        cls = torch.empty((len(checked), config.embed_dim), pin_memory=pinned)
        patch = torch.empty((len(checked), *grid), pin_memory=pinned)
        with self._lock, self._queued():
            for part in batches(len(checked), self.max_batch):
                staged = checked[part].pin_memory() if pinned else checked[part]
                got_cls, got_patch = self._encode(staged.to(self._device, non_blocking=True), self._stream)
                cls[part].copy_(got_cls, non_blocking=True)
                patch[part].copy_(got_patch, non_blocking=True)
            if self._stream is not None:
                self._stream.synchronize()
        return Tokens(cls=cls.numpy(), patch=patch.numpy())

    def encode_device(self, clips: Any, *, ready: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode clips that lie on the GPU already; the tokens stay there.

        The caller's current stream waits for the result, so it may be used at once.

        Args:
            clips, ready: what `cuda.receive` takes; uint8 `(B, T, H, W, 3)` of any B.

        Returns:
            `cls` `(B, D)` and `patch` `(B, T, h, w, D)`, float32, fresh.

        Raises:
            UsageError: another shape or dtype, or not on the GPU.
        """
        with self._lock:
            tensor = receive(clips, self._stream, ready)
            wanted = (self._config.num_frames, self._config.img_size, self._config.img_size, 3)
            if tensor.ndim != 5 or tuple(tensor.shape[1:]) != wanted or not len(tensor):
                raise UsageError(
                    f"clips have shape {tuple(tensor.shape)}; wanted is (B, {', '.join(map(str, wanted))})."
                )
            with self._queued():
                # A view of the producer's memory need not be contiguous, and TensorRT reads by address.
                whole = tensor.contiguous()
                parts = [
                    tuple(out.clone() for out in self._encode(whole[part], self._stream))
                    for part in batches(len(whole), self.max_batch)
                ]
                cls, patch = (torch.cat([part[index] for part in parts]) for index in (0, 1))
            here = torch.cuda.current_stream()
            here.wait_stream(self._stream)
            for out in (cls, patch):
                out.record_stream(here)
        return cls, patch

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
