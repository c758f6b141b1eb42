"""Asking for a GPU where there is none is an error, and clips are waited for before they are touched."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.dlpack

from coldframe.errors import UsageError
from coldframe.export.cuda import batches, driver_version, full_accumulation, receive, require_gpu


def test_no_gpu_is_an_error_that_says_what_pytorch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"device 'cuda' was asked for, but there is no usable GPU here .*PyTorch 2\."):
        require_gpu("device 'cuda'")


def test_facts_of_the_gpu_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    facts = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=150_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
    gpu = require_gpu("device 'cuda'")
    assert (gpu.name, gpu.compute_capability, gpu.memory_bytes) == ("NVIDIA H200", "9.0", 150_000_000_000)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        ("", "unknown"),
    ],
)
def test_driver_version_is_read_from_its_file(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version
    assert driver_version(tmp_path / "absent") == "unknown"


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 17])
def test_slices_cover_every_clip_once(count: int) -> None:
    parts = batches(count, 8)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(count))
    assert all(part.stop - part.start <= 8 for part in parts)


class World:
    """Streams, events and memory that only write down what happens to them."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, dtype: torch.dtype = torch.uint8, on_gpu: bool = True
    ) -> None:
        self.log: list[str] = []
        self.stream = SimpleNamespace(
            wait_event=lambda event: self.log.append(f"wait for {event}"),
            wait_stream=lambda stream: self.log.append(f"wait for {stream}"),
        )
        self.dtype, self.on_gpu = dtype, on_gpu
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the producer's stream")
        monkeypatch.setattr(torch.cuda, "stream", self.entered)
        monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", self.take)

    @contextmanager
    def entered(self, stream: Any) -> Iterator[None]:
        assert stream is self.stream
        self.log.append("enter")
        yield
        self.log.append("leave")

    def take(self, clips: Any) -> Any:
        self.log.append("take the memory")
        return SimpleNamespace(
            is_cuda=self.on_gpu,
            device="cuda:0" if self.on_gpu else "cpu",
            dtype=self.dtype,
            record_stream=lambda stream: self.log.append("keep the memory"),
        )


def test_memory_is_taken_after_the_wait_and_on_our_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    receive("clips", world.stream, "its event")
    assert world.log == [
        "wait for its event",
        "wait for the producer's stream",
        "enter",
        "take the memory",
        "leave",
        "keep the memory",
    ]


@pytest.mark.parametrize(
    ("facts", "match"),
    [({"on_gpu": False}, "clips lie on cpu"), ({"dtype": torch.float32}, "clips are torch.float32; wanted is uint8")],
)
def test_wrong_memory_is_refused(monkeypatch: pytest.MonkeyPatch, facts: Any, match: str) -> None:
    world = World(monkeypatch, **facts)
    with pytest.raises(UsageError, match=match):
        receive("clips", world.stream)


def test_accumulation_settings_are_put_back() -> None:
    matmul = torch.backends.cuda.matmul
    before = (matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction)
    with full_accumulation():
        assert not matmul.allow_tf32
        assert not matmul.allow_fp16_reduced_precision_reduction
        assert not matmul.allow_bf16_reduced_precision_reduction
    assert (matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction) == before
