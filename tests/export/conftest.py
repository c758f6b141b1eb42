"""A tiny encoder whose every parameter matters.

The random start of a real run has zero biases and near-uniform attention, which would hide a swapped bias
or a wrong rotation. Here weights are large and biases random.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coldframe.export.checkpoint import load_state
from coldframe.export.config import LeVJEPAConfig
from coldframe.export.graph import write_graph
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.onnx_runtime import OnnxRuntime

# 4 frames of 2 x 2 patches; heads of 16 dims: 3 axes of 4, and 4 dims that do not turn
TINY = LeVJEPAConfig(img_size=32, num_frames=4, embed_dim=48, depth=2, num_heads=3)


def lively_model(config: LeVJEPAConfig, seed: int = 0) -> LeVJEPA:
    """A model with random values in every parameter, large enough that attention is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LeVJEPA(config).state_dict().items()}
    state = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if ".norm" in name and name.endswith("weight"):
            state[name] = 1 + 0.2 * values
        elif name.endswith("qkv.weight"):
            state[name] = values * (2.5 / shape[1] ** 0.5)
        elif name.endswith("weight"):
            state[name] = values / shape[1:].numel() ** 0.5
        else:
            state[name] = 0.3 * values
    return load_state(config, state)


def random_clips(config: LeVJEPAConfig, count: int, seed: int = 0) -> NDArray[np.uint8]:
    shape = (count, config.num_frames, config.img_size, config.img_size, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(scope="session")
def tiny_model() -> LeVJEPA:
    return lively_model(TINY)


@pytest.fixture(scope="session")
def tiny_graph(tiny_model: LeVJEPA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "encoder.fp32.onnx"
    write_graph(tiny_model, path, metadata={"weights_sha256": "0" * 64})
    return path


@pytest.fixture(scope="session")
def tiny_onnx(tiny_graph: Path) -> OnnxRuntime:
    return OnnxRuntime(tiny_graph, TINY, threads=1)
