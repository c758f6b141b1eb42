"""What all GPU runtimes share, with the CPU in the GPU's place: splitting, real batch sizes, fresh arrays."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coldframe.errors import UsageError
from coldframe.export.cuda import Gpu
from coldframe.export.frame_attention import PerFrameEncoder
from coldframe.export.gpu_runtime import GpuRuntime, Outputs
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.torch_cuda import TorchEncode
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, random_clips

H200 = Gpu(name="NVIDIA H200", compute_capability="9.0", driver="580.65", memory_bytes=1)


def runtime(encode: Any, max_batch: int = 4) -> GpuRuntime:
    return GpuRuntime(
        encode,
        TINY,
        backend="torch",
        precision="fp32",
        max_batch=max_batch,
        stream=None,
        gpu=H200,
        version="torch 2.13",
    )


class Reused:
    """An encoder that writes into the same memory every time, as a captured graph or a plan does."""

    def __init__(self, model: LeVJEPA, largest: int) -> None:
        self.encode = TorchEncode(PerFrameEncoder(model))
        shapes = TINY.geometry().output_shapes(largest)
        self.memory = {name: torch.full(shape, 777.0) for name, shape in shapes.items()}
        self.sizes: list[int] = []

    def __call__(self, clips: torch.Tensor, stream: Any) -> Outputs:
        count = len(clips)
        self.sizes.append(count)
        for name, values in self.encode(clips, stream).items():
            self.memory[name][:count] = values
        return {name: values[:count] for name, values in self.memory.items()}


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1]), (2, [2]), (4, [4]), (5, [4, 1]), (7, [4, 3]), (8, [4, 4]), (9, [4, 4, 1])]
)
def test_batches_are_split_and_every_row_is_its_own_clip(tiny_model: LeVJEPA, count: int, sizes: list[int]) -> None:
    encode = Reused(tiny_model, 4)
    clips = random_clips(TINY, count, seed=count)
    got, wanted = runtime(encode)(clips), TorchRuntime(tiny_model)(clips)
    assert encode.sizes == sizes
    assert len(got) == count  # no stale rows of the largest batch
    np.testing.assert_allclose(got.cls, wanted.cls, atol=3e-5)
    np.testing.assert_allclose(got.patch, wanted.patch, atol=3e-5)


def test_outputs_are_not_overwritten_by_the_next_call(tiny_model: LeVJEPA) -> None:
    encoder = runtime(Reused(tiny_model, 4))
    clips = random_clips(TINY, 2)
    first = encoder(clips[:1])
    kept = first.patch.copy()
    encoder(clips[1:])
    np.testing.assert_array_equal(first.patch, kept)


def test_a_strided_batch_is_read_as_it_looks(tiny_model: LeVJEPA) -> None:
    clips = random_clips(TINY, 3)
    encoder = runtime(TorchEncode(PerFrameEncoder(tiny_model)))
    strided = np.ascontiguousarray(clips[:, :, ::-1])[:, :, ::-1]
    np.testing.assert_array_equal(encoder(strided).patch, encoder(clips).patch)


@pytest.mark.parametrize("clips", [np.zeros((1, 4, 32, 32, 3), np.float32), np.zeros((0, 4, 32, 32, 3), np.uint8)])
def test_wrong_clips_are_refused(tiny_model: LeVJEPA, clips: Any) -> None:
    with pytest.raises(UsageError, match="wanted is a uint8 array"):
        runtime(TorchEncode(PerFrameEncoder(tiny_model)))(clips)


def test_record_of_a_run_names_gpu_and_driver(tiny_model: LeVJEPA) -> None:
    facts = runtime(TorchEncode(PerFrameEncoder(tiny_model))).provenance()
    assert facts.keys() == {"runtime", "provider", "threads", "cpu"}
    assert facts["provider"] == "cuda, NVIDIA H200, compute capability 9.0, driver 580.65"


def test_every_output_of_the_geometry_comes_down_row_by_row() -> None:
    """Vectors a frame and further layers, whose shapes are not those of [CLS] and patches."""
    geometry = replace(TINY.geometry(), has_cls=False, has_frame_cls=True, layers=(1,))

    def encode(clips: torch.Tensor, stream: Any) -> Outputs:
        marks = clips[:, 0, 0, 0, 0].float()
        shapes = geometry.output_shapes(len(clips)).items()
        return {
            name: marks.view(-1, *[1] * (len(shape) - 1)).expand(shape) + number
            for number, (name, shape) in enumerate(shapes)
        }

    encoder = GpuRuntime(
        encode, geometry, backend="torch", precision="fp32", max_batch=2, stream=None, gpu=H200, version="torch 2.13"
    )
    clips = random_clips(TINY, 5)
    got, marks = encoder(clips), clips[:, 0, 0, 0, 0].astype(np.float32)
    assert not got.has_cls
    for number, values in enumerate((got.frame_cls, got.patch, got.layers[1])):
        expected = np.broadcast_to((marks + number).reshape(-1, *[1] * (values.ndim - 1)), values.shape)
        np.testing.assert_array_equal(values, expected)
