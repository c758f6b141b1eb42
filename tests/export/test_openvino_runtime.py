"""What OpenVINO is given is the exported graph, rearranged: what became of it, and that the numbers stayed."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.export.config import SIZES, LeVJEPAConfig
from coldframe.export.graph import write_graph
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.onnx_runtime import OnnxRuntime
from coldframe.export.openvino_model import compile_graph
from coldframe.export.openvino_runtime import OpenVinoRuntime
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, lively_model, random_clips

NANO = SIZES["levjepa-nano"]


def operators(compiled: Any) -> Counter[str]:
    """Kinds of nodes that the plugin runs, counted."""
    return Counter(str(node.get_rt_info()["layerType"].value) for node in compiled.get_runtime_model().get_ops())


def test_every_rotation_is_one_operator(tiny_graph: Path) -> None:
    """Queries and keys of each block; a plugin that no longer knows the form would run five nodes for each."""
    compiled = compile_graph(tiny_graph, TINY.geometry(), precision="fp32", threads=1)
    assert operators(compiled)["RoPE"] == 2 * TINY.depth


def test_rearranged_graph_gives_the_references_tokens(tiny_model: LeVJEPA, tiny_graph: Path) -> None:
    clips = random_clips(TINY, 3)
    found = OpenVinoRuntime(tiny_graph, TINY, threads=1)(clips)
    wanted = TorchRuntime(tiny_model, threads=1)(clips)
    np.testing.assert_allclose(found.patch, wanted.patch, atol=5e-5)
    np.testing.assert_allclose(found.cls, wanted.cls, atol=5e-5)


def test_a_row_is_the_same_to_the_bit_in_any_batch(tiny_graph: Path) -> None:
    runtime, clips = OpenVinoRuntime(tiny_graph, TINY, threads=1), random_clips(TINY, 5)
    together = runtime(clips)
    for index in range(5):
        alone = runtime(clips[index : index + 1])
        assert np.array_equal(together.patch[index], alone.patch[0])
        assert np.array_equal(together.cls[index], alone.cls[0])


def test_two_sessions_in_two_threads_give_what_one_gives(tiny_graph: Path) -> None:
    """Field case 37: sessions of one process must not share state, or numbers depend on who else is encoding."""
    batches = [random_clips(TINY, 2, seed=seed) for seed in range(16)]
    wanted = [OpenVinoRuntime(tiny_graph, TINY, threads=1)(clips).patch for clips in batches]
    sessions: list[OpenVinoRuntime | OnnxRuntime] = [
        OpenVinoRuntime(tiny_graph, TINY, threads=1),
        OnnxRuntime(tiny_graph, TINY, threads=1),
    ]

    def encode_all(session: OpenVinoRuntime | OnnxRuntime) -> list[NDArray[np.float32]]:
        return [session(clips).patch for clips in batches]

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(encode_all, session) for session in sessions]
        mine, others = (run.result() for run in runs)
    for expected, one, other in zip(wanted, mine, others, strict=True):
        assert np.array_equal(one, expected)
        np.testing.assert_allclose(other, expected, atol=1e-4)


@pytest.fixture(scope="module")
def nano_graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LeVJEPAConfig]:
    """Nano's sizes, with two of its blocks: tokens of a clip take 2.4 MB, so that keeping them would show."""
    config = replace(NANO, depth=2)
    path = tmp_path_factory.mktemp("nano") / "encoder.fp32.onnx"
    write_graph(lively_model(config), path, metadata={})
    return path, config


@pytest.mark.parametrize("runtime", [OpenVinoRuntime, OnnxRuntime])
def test_memory_stays_flat_over_calls(nano_graph: tuple[Path, LeVJEPAConfig], runtime: Any) -> None:
    path, config = nano_graph
    encode, clips = runtime(path, config, threads=1), random_clips(config, 1)
    for _ in range(4):
        encode(clips)
    before = resident_bytes()
    for _ in range(12):
        tokens = encode(clips)
    assert resident_bytes() - before < 3 * tokens.patch.nbytes


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
