"""Device hand-over: a DALI result becomes a torch tensor, on the consumer's stream and with an event to wait for.

DALI works on streams of its own. Whoever reads its memory on another stream without waiting reads unfinished
pictures, now and then, and without an error; whoever gives it back too early has it overwritten. So a result is
taken in three steps: DLPack makes the consumer's stream wait for DALI, the pixels are copied on that stream, and an
event behind the copy is waited for before DALI gets its memory back. A square is small; the copy costs nothing.

Written against DALI 2.4 and torch 2.13, tested with stand-ins. It never ran on a GPU.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

# DLPack has no 0: the legacy default stream is 1 (Python array API standard, `__dlpack__`).
_LEGACY_DEFAULT_STREAM = 1


class DeviceTensor(Protocol):
    """What is used of DALI's `TensorGPU`."""

    def device_id(self) -> int: ...

    def __dlpack__(self, *, stream: int) -> Any: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class OnDevice:
    """A tensor that torch owns.

    Attributes:
        tensor: on the device.
        ready: event behind the last write. A consumer on another stream calls `stream.wait_event(ready)` before its
            first kernel, TensorRT's `execute_async_v3` included.
    """

    tensor: "torch.Tensor"
    ready: "torch.cuda.Event"

    def on_host(self) -> NDArray[np.uint8]:
        """The values as a NumPy array."""
        self.ready.synchronize()
        return cast(NDArray[np.uint8], self.tensor.cpu().numpy())


def hand_over(result: DeviceTensor, stream: "torch.cuda.Stream | None" = None) -> OnDevice:
    """Copy `result` into memory of torch. `result` may be released as soon as this returns.

    Args:
        result: a DALI output in device memory.
        stream: where the consumer works; None for torch's current stream on that device.
    """
    import torch

    if stream is None:
        stream = torch.cuda.current_stream(result.device_id())
    with torch.cuda.stream(stream):
        capsule = result.__dlpack__(stream=stream.cuda_stream or _LEGACY_DEFAULT_STREAM)
        tensor = torch.utils.dlpack.from_dlpack(capsule).clone()
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(stream)
    ready.synchronize()
    return OnDevice(tensor=tensor, ready=ready)
