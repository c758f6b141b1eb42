"""The steps of the hand-over come in the order that makes it safe. Stand-ins for CUDA; it never ran on a GPU."""

from typing import Any

import numpy as np
import pytest
import torch

from coldframe.serve.device_handover import OnDevice, hand_over


class Stream:
    def __init__(self, steps: list[str], handle: int) -> None:
        self.steps, self.cuda_stream = steps, handle

    def __enter__(self) -> "Stream":
        self.steps.append("enter stream")
        return self

    def __exit__(self, *exc: object) -> None:
        self.steps.append("leave stream")


class Event:
    def __init__(self, steps: list[str]) -> None:
        self.steps = steps

    def record(self, stream: Stream) -> None:
        self.steps.append(f"record on {stream.cuda_stream}")

    def synchronize(self) -> None:
        self.steps.append("wait for event")


class Tensor:
    """DALI's tensor, its DLPack capsule and torch's view of it in one."""

    def __init__(self, steps: list[str], values: torch.Tensor) -> None:
        self.steps, self.values = steps, values

    def device_id(self) -> int:
        return 3

    def __dlpack__(self, *, stream: int) -> "Tensor":
        self.steps.append(f"make {stream} wait for DALI")
        return self

    def clone(self) -> torch.Tensor:
        self.steps.append("copy")
        return self.values.clone()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(made))
    monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", lambda capsule: capsule)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(made, 1000 + device))
    return made


@pytest.mark.parametrize(("handle", "in_dlpack"), [(77, 77), (0, 1)])
def test_memory_is_read_after_dali_and_given_back_after_the_copy(steps: list[str], handle: int, in_dlpack: int) -> None:
    stream: Any = Stream(steps, handle)
    hand_over(Tensor(steps, torch.zeros(2)), stream)
    assert steps == [
        "enter stream",
        f"make {in_dlpack} wait for DALI",
        "copy",
        f"record on {handle}",
        "leave stream",
        "wait for event",
    ]


def test_current_stream_of_the_tensors_device_is_the_default(steps: list[str]) -> None:
    hand_over(Tensor(steps, torch.zeros(2)))
    assert "make 1003 wait for DALI" in steps


def test_values_arrive_on_the_host(steps: list[str]) -> None:
    values = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    found: OnDevice = hand_over(Tensor(steps, values))
    np.testing.assert_array_equal(found.on_host(), values.numpy())
    assert steps[-1] == "wait for event"
