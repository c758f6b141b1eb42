"""Strongly typed graphs: 16 bits where matrices are multiplied, float32 everywhere else.

Compared with the float32 reference: ONNX Runtime's own fp16 arithmetic, and the bf16 graph through the ONNX
reference evaluator, which no runtime's shortcuts reach. Tolerances are the rounding of 8 and 11 bits over two blocks.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from coldframe.errors import UsageError
from coldframe.export.checkpoint import load_state
from coldframe.export.graph import GRAPH_PRECISIONS, write_graph
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.onnx_runtime import OnnxRuntime
from coldframe.export.parity import compare
from coldframe.export.tokens import Tokens
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, random_clips

NARROW = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


@pytest.mark.parametrize("precision", NARROW)
def test_products_are_narrow_and_all_else_is_float32(tiny_model: LeVJEPA, tmp_path: Path, precision: str) -> None:
    path = tmp_path / "g.onnx"
    write_graph(tiny_model, path, metadata={}, precision=precision)
    onnx.shape_inference.infer_shapes_path(str(path), str(path), strict_mode=True)
    model = onnx.load(str(path), load_external_data=False)
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.output)}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "MatMul":
            assert {types[name] for name in (*node.input, *node.output)} == {NARROW[precision]}, node.name
        if node.op_type in ("Softmax", "LayerNormalization", "Gelu", "Mul", "Sub"):
            assert {types[name] for name in (*node.input, *node.output)} == {TensorProto.FLOAT}, node.name
    assert {types["cls"], types["patch"]} == {TensorProto.FLOAT}


def test_narrow_weights_take_half_the_space(tiny_model: LeVJEPA, tmp_path: Path) -> None:
    sizes = {}
    for precision in GRAPH_PRECISIONS:
        write_graph(tiny_model, tmp_path / precision, metadata={}, precision=precision)
        model = onnx.load(str(tmp_path / precision), load_external_data=False)
        floats = [tensor for tensor in model.graph.initializer if tensor.data_type != TensorProto.INT64]
        places = [{entry.key: entry.value for entry in tensor.external_data} for tensor in floats]
        assert len({place["offset"] for place in places}) == len(floats)
        sizes[precision] = sum(int(place["length"]) for place in places)
    assert sizes["fp16"] == sizes["bf16"] < 0.6 * sizes["fp32"]


def test_fp16_graph_is_near_the_reference(tiny_model: LeVJEPA, tmp_path: Path) -> None:
    write_graph(tiny_model, tmp_path / "g.onnx", metadata={}, precision="fp16")
    clips = random_clips(TINY, 2)
    found = compare(TorchRuntime(tiny_model)(clips), OnnxRuntime(tmp_path / "g.onnx", TINY, precision="fp16")(clips))
    assert found["patch_cosine_worst"] > 0.99998
    assert 1e-5 < found["relative_max_abs"] < 0.01  # it is not float32 in disguise


def test_bf16_graph_is_near_the_reference(tiny_model: LeVJEPA, tmp_path: Path) -> None:
    write_graph(tiny_model, tmp_path / "g.onnx", metadata={}, precision="bf16")
    clips = random_clips(TINY, 1)
    cls, patch = ReferenceEvaluator(str(tmp_path / "g.onnx")).run(None, {"clips": clips})
    found = compare(
        TorchRuntime(tiny_model)(clips), Tokens(cls=np.asarray(cls, np.float32), patch=np.asarray(patch, np.float32))
    )
    assert found["patch_cosine_worst"] > 0.999
    assert 1e-4 < found["relative_max_abs"] < 0.05


def test_weights_past_the_range_of_fp16_are_refused(tiny_model: LeVJEPA, tmp_path: Path) -> None:
    state = dict(tiny_model.state_dict())
    state["encoder.blocks.1.mlp.fc1.weight"] = state["encoder.blocks.1.mlp.fc1.weight"] * 1e6
    model = load_state(TINY, state)
    with pytest.raises(UsageError, match=r"mlp.fc1.weight reaches .* past the largest number of torch.float16.*bf16"):
        write_graph(model, tmp_path / "g.onnx", metadata={}, precision="fp16")
    write_graph(model, tmp_path / "g.onnx", metadata={}, precision="bf16")


def test_precision_that_no_graph_has_is_refused(tiny_model: LeVJEPA, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="precision is 'int8'; graphs are written in fp32, fp16, bf16"):
        write_graph(tiny_model, tmp_path / "g.onnx", metadata={}, precision="int8")
    assert list(tmp_path.iterdir()) == []
