"""PyTorch on a GPU: refused without one; with one, equal to the reference within the budgets."""

import numpy as np
import pytest
import torch

from coldframe.errors import UsageError
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.parity import cosine
from coldframe.export.torch_cuda import open_torch_cuda
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, random_clips


def test_without_a_gpu_it_is_refused(tiny_model: LeVJEPA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="backend 'torch' on device 'cuda' was asked for, but there is no usable GPU"):
        open_torch_cuda(tiny_model, precision="bf16")


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "worst"), [("fp32", 0.99999), ("bf16", 0.995), ("fp16", 0.9999)])
def test_gpu_equals_the_reference_at_every_batch_size(tiny_model: LeVJEPA, precision: str, worst: float) -> None:
    runtime = open_torch_cuda(tiny_model, precision=precision, max_batch=4)
    for count in (1, 2, 5, 7, 2):
        clips = random_clips(TINY, count, seed=count)
        got, wanted = runtime(clips), TorchRuntime(tiny_model)(clips)
        assert cosine(got.patch, wanted.patch).min() >= worst
        assert cosine(got.cls, wanted.cls).min() >= worst


@pytest.mark.gpu
def test_clips_of_a_late_producer_are_waited_for(tiny_model: LeVJEPA) -> None:
    runtime = open_torch_cuda(tiny_model, precision="fp32")
    clips = random_clips(TINY, 2)
    wanted = runtime(clips)
    source = torch.from_numpy(clips).cuda()
    producer = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    producer.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(producer):
        late = torch.zeros_like(source)
        torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # about 0.1 s
        late.copy_(source)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
    got = runtime.encode_device(late, ready=ready)
    np.testing.assert_array_equal(got["cls"].cpu().numpy(), wanted.cls)
    np.testing.assert_array_equal(got["patch"].cpu().numpy(), wanted.patch)
