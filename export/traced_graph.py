"""ONNX graph of an image encoder, traced from the library's own forward: `clips` uint8 `(batch, T, H, W, 3)` in.

Outputs are `frame_cls` `(batch, T, D)`, where there is one vector a frame, and `patch` `(batch, T, h, w, D)`, float32.
`batch` is free and every frame is computed in one pass. Normalisation is inside. A dozen architectures of two libraries
are not written out node by node as the video encoders are: an image encoder has a few hundred tokens and no mask, so
the tracer's graph has nothing to lose in attention.

In `fp16` and `bf16` the graph is strongly typed as `graph` describes it: matrix products and convolutions take and
give 16 bits between casts, everything else stays float32.
"""

import logging
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import nn

from coldframe.errors import MissingDependency, UsageError
from coldframe.export.geometry import Geometry
from coldframe.export.image_encoder import ImageEncoder

try:
    import onnx_ir
    import onnxscript  # noqa: F401 (torch.onnx needs it, and says so less plainly)
except ImportError as error:
    raise MissingDependency("onnxscript", "images") from error

OPSET = 20  # as `graph`
_NARROW = {
    "fp16": (onnx_ir.DataType.FLOAT16, np.float16),
    "bf16": (onnx_ir.DataType.BFLOAT16, ml_dtypes.bfloat16),
}
_SMALL_BYTES = 256  # shapes and axes, which a runtime wants to see in the graph itself
_PRODUCTS = ("MatMul", "Gemm", "Conv")


class _ClipForward(nn.Module):
    """uint8 clips to the outputs of `geometry`, in its order."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, model: ImageEncoder, geometry: Geometry) -> None:
        super().__init__()
        self.model = model
        self.geometry = geometry
        self.register_buffer("mean", torch.tensor(model.pixel_mean) * 255, persistent=False)
        self.register_buffer("scale", 1 / (torch.tensor(model.pixel_std) * 255), persistent=False)

    def forward(self, clips: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shape = self.geometry
        pixels = (clips.float() - self.mean) * self.scale  # as TensorRT wants it: a cast comes first
        frames = pixels.reshape(-1, shape.height, shape.width, 3).permute(0, 3, 1, 2)
        tokens = self.model.frame_tokens(frames, shape.times)
        return (tokens.patch,) if tokens.frame_cls is None else (tokens.frame_cls, tokens.patch)


def write_traced(
    model: ImageEncoder, path: Path, *, geometry: Geometry, metadata: Mapping[str, str], precision: str = "fp32"
) -> None:
    """Write `model` at the sizes of `geometry` to `path`, and its weights to `path` + `.data`.

    Raises:
        UsageError: weights that the precision cannot hold.
    """
    traced = _trace(model, geometry)
    if precision != "fp32":
        _narrow_products(traced.graph, *_NARROW[precision])
    _forget_the_source(traced)
    traced.metadata_props.update(metadata)
    traced.producer_name = "coldframe"
    traced.graph.name = model.config.name
    onnx_ir.save(traced, path, external_data=f"{path.name}.data", size_threshold_bytes=_SMALL_BYTES)


def _trace(model: ImageEncoder, geometry: Geometry) -> Any:
    clips = torch.zeros(2, geometry.frames, geometry.height, geometry.width, 3, dtype=torch.uint8)
    notes = logging.getLogger("onnxscript")
    level = notes.level
    notes.setLevel(logging.ERROR)  # its optimiser tells what it leaves as it is
    with warnings.catch_warnings(), torch.no_grad(), _positions(model, geometry):
        # of the libraries' own use of what newer torch deprecates
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        program = torch.onnx.export(
            _ClipForward(model, geometry).eval(),
            (clips,),
            input_names=["clips"],
            output_names=list(geometry.outputs),
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes={"clips": {0: torch.export.Dim("batch")}},
            verbose=False,
        )
    notes.setLevel(level)
    assert program is not None
    return program.model


def _positions(model: ImageEncoder, geometry: Geometry) -> AbstractContextManager[None]:
    if model.config.family == "timm":
        return nullcontext()
    from coldframe.export.transformers_images import fixed_positions

    return fixed_positions(model, geometry.height, geometry.width)


def _narrow_products(graph: Any, kind: Any, numpy_type: Any) -> None:
    """Make every product of `graph` take and give 16 bits; a weight that only products read is stored so."""
    narrowed: dict[str, Any] = {}
    for node in list(graph):
        if node.op_type not in _PRODUCTS:
            continue
        for place, value in enumerate(node.inputs):
            if value is None:
                continue
            if value.name not in narrowed:
                narrowed[value.name] = _narrow_value(graph, node, value, kind, numpy_type)
            node.replace_input_with(place, narrowed[value.name])
        (given,) = node.outputs
        wide = onnx_ir.node("Cast", [given], {"to": onnx_ir.DataType.FLOAT}, name=f"{node.name}.wide")
        wide.outputs[0].name = f"{given.name}.wide"
        wide.outputs[0].type, wide.outputs[0].shape = given.type, given.shape
        given.type = onnx_ir.TensorType(kind)
        onnx_ir.convenience.replace_all_uses_with(given, wide.outputs[0])
        wide.replace_input_with(0, given)
        graph.insert_after(node, wide)


def _narrow_value(graph: Any, node: Any, value: Any, kind: Any, numpy_type: Any) -> Any:
    """`value` in 16 bits: a second initializer, or a cast before `node`, the first to read it."""
    name = f"{value.name}.narrow"
    if value.const_value is None:
        cast = onnx_ir.node("Cast", [value], {"to": kind}, name=name)
        cast.outputs[0].name = name
        cast.outputs[0].type, cast.outputs[0].shape = onnx_ir.TensorType(kind), value.shape
        graph.insert_before(node, cast)
        return cast.outputs[0]
    values = value.const_value.numpy()
    with np.errstate(over="ignore"):  # refused by name right below
        narrow = values.astype(numpy_type)
    if not np.isfinite(narrow.astype(np.float32)).all():
        raise UsageError(
            f"{value.name} reaches {np.abs(values).max():g}, past the largest number of {np.dtype(numpy_type).name}. "
            "Export the encoder in bf16, which has the range of float32."
        )
    constant = onnx_ir.Value(name=name, type=onnx_ir.TensorType(kind), shape=value.shape)
    constant.const_value = onnx_ir.Tensor(narrow, name=name)
    graph.register_initializer(constant)
    return constant


def _forget_the_source(model: Any) -> None:
    """Drop what the tracer notes of the exporting machine's files, and weights that nothing reads."""
    onnx_ir.passes.common.RemoveUnusedNodesPass()(model)
    model.doc_string = None
    model.metadata_props.clear()
    graph = model.graph
    graph.doc_string = None
    graph.metadata_props.clear()
    for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
        value.metadata_props.clear()
        value.doc_string = None
    for node in graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
