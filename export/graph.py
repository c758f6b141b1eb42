"""The encoder as an ONNX graph, written node by node.

Input `clips`: uint8 `(batch, T, H, W, 3)`; `batch` is free. Outputs: `cls` `(batch, D)` and `patch`
`(batch, T, h, w, D)`, float32. ImageNet normalisation is inside.

The graph computes what `levjepa` computes, arranged for speed:

* Tokens are ordered patches first, [CLS] last. Frame t's queries then read a prefix of the keys, which is
  the block-causal rule without a mask: half of the score matrix is never computed, no mask can get lost.
* Rows of the query and key projections are reordered within each head so that the adjacent pairs of the
  rotary positions become two halves. Scores are dot products over a head, so an order of dims that both
  share does not change them.
* Queries carry the 1 / sqrt(d) of attention in their weights.
* The patch embedding, a convolution whose stride is its kernel, is a matrix product over cut-out patches.

Weights always lie in a second file beside the graph (`<name>.data`), written one at a time.

A graph in `fp16` or `bf16` is strongly typed: the precision is in its tensors, and a runtime has nothing to
choose. Matrix products take and give 16 bits. Everything that sums over a row or adds up along the depth stays
float32 between casts: pixels, LayerNorm, softmax, GELU, the rotation and the residual stream. Outputs are float32.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from coldframe.errors import MissingDependency, UsageError
from coldframe.export.config import LAYER_NORM_EPS, LeVJEPAConfig
from coldframe.export.geometry import Geometry
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.pixels import IMAGENET_MEAN, IMAGENET_STD
from coldframe.export.rope import rope_angles

try:
    import onnx
    from onnx import TensorProto, helper
except ImportError as error:
    raise MissingDependency("onnx", "cpu") from error

FLOAT, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8
OPSET = 20  # the first with an exact Gelu operator
IR_VERSION = 9
_PAGE_BYTES = 4096  # weights start on pages, so that a runtime can map the file
# Element type of matrix products by precision.
_TYPES = {
    "fp32": (TensorProto.FLOAT, torch.float32),
    "fp16": (TensorProto.FLOAT16, torch.float16),
    "bf16": (TensorProto.BFLOAT16, torch.bfloat16),
}
GRAPH_PRECISIONS = tuple(_TYPES)


class GraphWriter:
    """Collects nodes, and writes weights straight to the data file.

    Args:
        data: open data file.
        location: its name as the graph refers to it, relative to the graph's folder.
        precision: type of matrix products and of their weights, one of `GRAPH_PRECISIONS`.
    """

    def __init__(self, data: BinaryIO, location: str, precision: str = "fp32") -> None:
        self._narrow, self._narrow_torch = _TYPES[precision]
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._data = data
        self._location = location

    def weight(self, name: str, values: NDArray[np.floating[Any]], *, narrow: bool = False) -> str:
        """A constant in the data file: float32, or of the precision's type if `narrow`; equal names share one."""
        if any(known.name == name for known in self.initializers):
            return name
        array = np.ascontiguousarray(values, dtype="<f4")
        shape, kind = array.shape, TensorProto.FLOAT
        if narrow and self._narrow != kind:
            array, kind = self._narrowed(name, array), self._narrow
        self._data.write(b"\0" * (-self._data.tell() % _PAGE_BYTES))
        place = {"location": self._location, "offset": self._data.tell(), "length": array.nbytes}
        self._data.write(array.data)
        tensor = TensorProto(name=name, data_type=kind, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        return name

    def _narrowed(self, name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """The bytes of `array` in the precision's type, rounded to nearest even."""
        narrow = torch.from_numpy(array).to(self._narrow_torch)
        if not torch.isfinite(narrow).all():
            raise UsageError(
                f"{name} reaches {np.abs(array).max():g}, past the largest number of {self._narrow_torch}. "
                "Export the encoder in bf16, which has the range of float32."
            )
        return narrow.view(torch.uint8).numpy()

    def narrow(self, source: str) -> str:
        """`source`, which is float32, as the precision's type: what a matrix product takes."""
        if self._narrow == TensorProto.FLOAT:
            return source
        return self.node("Cast", source, name=f"{source}.narrow", to=self._narrow)

    def wide(self, source: str) -> str:
        """`source`, which a matrix product gave, as float32."""
        if self._narrow == TensorProto.FLOAT:
            return source
        return self.node("Cast", source, name=f"{source}.wide", to=TensorProto.FLOAT)

    def integers(self, *values: int) -> str:
        """An int64 vector in the graph itself; equal ones are shared."""
        name = "int_" + "_".join(map(str, values))
        if all(known.name != name for known in self.initializers):
            self.initializers.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
        return name

    def integer_constant(self, name: str, values: NDArray[np.int64]) -> str:
        """An int64 array in the graph itself."""
        self.initializers.append(helper.make_tensor(name, TensorProto.INT64, values.shape, values.reshape(-1).tolist()))
        return name

    def node(self, op: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Add a node with one output, which takes the node's name."""
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def split(self, source: str, sizes: tuple[int, ...], *, axis: int, name: str) -> list[str]:
        """Cut `source` along `axis` into pieces of `sizes`."""
        outputs = [f"{name}.{index}" for index in range(len(sizes))]
        self.nodes.append(helper.make_node("Split", [source, self.integers(*sizes)], outputs, name=name, axis=axis))
        return outputs

    def linear(self, source: str, weight: NDArray[np.float32], bias: NDArray[np.float32], *, name: str) -> str:
        """`source @ weight.T + bias`, all narrow, with `weight` as PyTorch keeps it: `(out, in)`."""
        factor = self.weight(f"{name}.weight", weight.T, narrow=True)
        product = self.node("MatMul", source, factor, name=f"{name}.product")
        return self.node("Add", product, self.weight(f"{name}.bias", bias, narrow=True), name=name)


def write_graph(
    model: LeVJEPA,
    path: Path,
    *,
    metadata: Mapping[str, str],
    precision: str = "fp32",
    geometry: Geometry | None = None,
) -> None:
    """Write `model` to `path`, and its weights to `path` + `.data`.

    Args:
        model: the reference whose weights are taken.
        path: graph file to make, such as `encoder.fp32.onnx`.
        metadata: text kept in the graph. Put the digest of the weights in: graphs of equal shape are
            otherwise equal byte for byte, and caches keyed by the graph would mix up their weights.
        precision: type of matrix products and of their weights, one of `GRAPH_PRECISIONS`.
        geometry: sizes and layers of the export; None for those that the model was released with.

    Raises:
        UsageError: an unknown precision, or weights that it cannot hold.
    """
    if precision not in GRAPH_PRECISIONS:
        raise UsageError(f"precision is {precision!r}; graphs are written in {', '.join(GRAPH_PRECISIONS)}.")
    config, shape = model.config, geometry or model.config.geometry()
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}
    data_path = path.with_name(path.name + ".data")
    with data_path.open("wb") as data:
        writer = GraphWriter(data, data_path.name, precision)
        _EncoderGraph(writer, config, shape, weights).write()
    save_graph(writer, path, name=config.name, shapes=shape.graph_shapes, inputs={"clips": UINT8}, metadata=metadata)


def save_graph(
    writer: GraphWriter,
    path: Path,
    *,
    name: str,
    shapes: Mapping[str, list[str | int]],
    inputs: Mapping[str, int],
    metadata: Mapping[str, str],
) -> None:
    """Write the collected nodes to `path` and check them.

    Args:
        shapes: shape of every input and output by name; a string names a free axis.
        inputs: element type of each input; everything else in `shapes` is a float32 output.
    """
    values = {
        key: helper.make_tensor_value_info(key, inputs.get(key, TensorProto.FLOAT), sizes)
        for key, sizes in shapes.items()
    }
    graph = helper.make_graph(
        writer.nodes,
        name,
        [values[key] for key in inputs],
        [value for key, value in values.items() if key not in inputs],
        writer.initializers,
    )
    proto = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="coldframe",
    )
    helper.set_model_props(proto, dict(metadata))
    path.write_bytes(proto.SerializeToString())
    onnx.checker.check_model(str(path))


class _EncoderGraph:
    """The nodes of one encoder. Shapes in comments; n = T*h*w + 1 tokens, [CLS] last."""

    def __init__(
        self,
        writer: GraphWriter,
        config: LeVJEPAConfig,
        geometry: Geometry,
        weights: Mapping[str, NDArray[np.float32]],
    ) -> None:
        self.writer = writer
        self.config = config
        self.geometry = geometry
        self.weights = weights
        self.frame_patches = geometry.rows * geometry.cols
        self.patches = geometry.patches
        # Even dims of a head first, then odd ones.
        self.halves = np.concatenate((np.arange(0, config.head_dim, 2), np.arange(1, config.head_dim, 2)))

    def write(self) -> None:
        writer = self.writer
        self.cos, self.sin = self._rope_tables()
        tokens = self._embed()
        for index in range(self.config.depth):
            tokens = self._block(tokens, f"encoder.blocks.{index}")
            if index in self.geometry.layers:
                self._output(tokens, f"patch_l{index}", norm=f"layers.{index}.norm")
        cls = self._output(tokens, "patch", norm="encoder.norm")
        writer.node("Squeeze", cls, writer.integers(1), name="cls")

    def _output(self, tokens: str, name: str, *, norm: str) -> str:
        """Give the patch tokens among `tokens`, through the final norm, as output `name`; returns [CLS]."""
        writer, shape = self.writer, self.geometry
        weights = ("encoder.norm.weight", "encoder.norm.bias")
        scale, bias = (writer.weight(key, self.weights[key]) for key in weights)
        tokens = writer.node("LayerNormalization", tokens, scale, bias, name=norm, axis=-1, epsilon=LAYER_NORM_EPS)
        patches, cls = writer.split(tokens, (self.patches, 1), axis=1, name=f"{name}.parts")
        grid = writer.integers(0, shape.times, shape.rows, shape.cols, shape.dim)
        writer.node("Reshape", patches, grid, name=name)
        return cls

    def _rope_tables(self) -> tuple[str, str]:
        """Cosine, and sine with the sign of the first half turned: `(n, d)` each, no turn for [CLS]."""
        config, shape = self.config, self.geometry
        angles = rope_angles(config.head_dim, frames=shape.times, rows=shape.rows, cols=shape.cols)
        angles = np.pad(angles, ((0, 1), (0, 0)))[:, self.halves]
        sine = np.sin(angles)
        sine[:, : config.head_dim // 2] *= -1
        return self.writer.weight("rope.cos", np.cos(angles)), self.writer.weight("rope.sin", sine)

    def _embed(self) -> str:
        """uint8 clips to `(B, n, D)`."""
        writer, config = self.writer, self.config
        side, shape = config.patch_size, self.geometry
        cut = writer.integers(0, shape.frames, shape.rows, side, shape.cols, side, 3)
        # First of all, because TensorRT takes uint8 as an input and as what is cast, but in no other operator.
        pixels = writer.node("Cast", "clips", name="pixels", to=TensorProto.FLOAT)
        pieces = writer.node("Reshape", pixels, cut, name="patches.cut")
        pieces = writer.node("Transpose", pieces, name="patches.order", perm=[0, 1, 2, 4, 3, 5, 6])
        flat = writer.integers(0, self.patches, side * side * 3)
        pixels = writer.node("Reshape", pieces, flat, name="patches")  # (B, n - 1, side * side * 3)
        mean = np.tile(np.multiply(IMAGENET_MEAN, 255), side * side)
        scale = np.tile(1 / np.multiply(IMAGENET_STD, 255), side * side)
        pixels = writer.node("Sub", pixels, writer.weight("pixels.mean", mean), name="pixels.centred")
        pixels = writer.node("Mul", pixels, writer.weight("pixels.scale", scale), name="pixels.normalised")
        kernel = self.weights["encoder.patch_embed.proj.weight"]  # (D, 3, 1, side, side)
        kernel = kernel[:, :, 0].transpose(0, 2, 3, 1).reshape(config.embed_dim, -1)
        bias = self.weights["encoder.patch_embed.proj.bias"]
        patches = writer.linear(writer.narrow(pixels), kernel, bias, name="encoder.patch_embed.proj")
        patches = writer.wide(patches)
        return writer.node("Concat", patches, self._cls_rows(patches), name="embedded", axis=1)

    def _cls_rows(self, patches: str) -> str:
        """The [CLS] embedding once a clip: `(B, 1, D)`, with B read from `patches`."""
        writer = self.writer
        batch = writer.node("Shape", patches, name="batch.size", start=0, end=1)
        shape = writer.node("Concat", batch, writer.integers(1, self.config.embed_dim), name="cls.shape", axis=0)
        token = writer.weight("encoder.cls_token", self.weights["encoder.cls_token"])
        return writer.node("Expand", token, shape, name="cls.rows")

    def _norm(self, source: str, name: str) -> str:
        scale = self.writer.weight(f"{name}.weight", self.weights[f"{name}.weight"])
        bias = self.writer.weight(f"{name}.bias", self.weights[f"{name}.bias"])
        return self.writer.node("LayerNormalization", source, scale, bias, name=name, axis=-1, epsilon=LAYER_NORM_EPS)

    def _linear(self, source: str, name: str) -> str:
        weights = self.weights
        return self.writer.linear(source, weights[f"{name}.weight"], weights[f"{name}.bias"], name=name)

    def _block(self, tokens: str, name: str) -> str:
        writer = self.writer
        read = self._attention(writer.narrow(self._norm(tokens, f"{name}.norm1")), f"{name}.attn")
        tokens = writer.node("Add", tokens, writer.wide(read), name=f"{name}.read")
        hidden = self._linear(writer.narrow(self._norm(tokens, f"{name}.norm2")), f"{name}.mlp.fc1")
        hidden = writer.node("Gelu", writer.wide(hidden), name=f"{name}.mlp.act", approximate="none")
        hidden = self._linear(writer.narrow(hidden), f"{name}.mlp.fc2")
        return writer.node("Add", tokens, writer.wide(hidden), name=f"{name}.out")

    def _attention(self, source: str, name: str) -> str:
        """One attention a frame over the keys up to its end, and one for [CLS] over all: `(B, n, D)`."""
        writer, config = self.writer, self.config
        query, key, value = self._projections(source, name)  # each (B, heads, n, d)
        key = writer.node("Transpose", key, name=f"{name}.turned", perm=[0, 1, 3, 2])
        frames = self.geometry.times
        pieces = writer.split(query, (self.frame_patches,) * frames + (1,), axis=2, name=f"{name}.queries")
        reads = [self._read(pieces[-1], key, value, f"{name}.cls")]
        # The longest prefix first: later frames then reuse its memory instead of asking for more each time.
        for frame in reversed(range(frames)):
            seen = (frame + 1) * self.frame_patches
            keys = self._prefix(key, seen, f"{name}.keys.{frame}", axis=3)
            values = self._prefix(value, seen, f"{name}.values.{frame}", axis=2)
            reads.append(self._read(pieces[frame], keys, values, f"{name}.frame.{frame}"))
        read = writer.node("Concat", *reversed(reads), name=f"{name}.reads", axis=2)
        read = writer.node("Transpose", read, name=f"{name}.merged", perm=[0, 2, 1, 3])
        shape = writer.integers(0, self.patches + 1, config.embed_dim)
        read = writer.node("Reshape", read, shape, name=f"{name}.flat")
        return self._linear(read, f"{name}.proj")

    def _read(self, query: str, keys: str, values: str, name: str) -> str:
        """Attention of one piece of queries over all the keys given; `keys` is `(B, heads, d, k)`."""
        writer = self.writer
        scores = writer.node("MatMul", query, keys, name=f"{name}.scores")
        shares = writer.node("Softmax", writer.wide(scores), name=f"{name}.shares", axis=-1)
        return writer.node("MatMul", writer.narrow(shares), values, name=f"{name}.reads")

    def _prefix(self, source: str, end: int, name: str, *, axis: int) -> str:
        writer = self.writer
        bounds = (writer.integers(0), writer.integers(end), writer.integers(axis))
        return writer.node("Slice", source, *bounds, name=name)

    def _projections(self, source: str, name: str) -> tuple[str, str, str]:
        """Queries and keys with their positions, and values."""
        config = self.config
        heads = (3, config.num_heads, config.head_dim)
        weight = self.weights[f"{name}.qkv.weight"].reshape(*heads, config.embed_dim)
        bias = self.weights[f"{name}.qkv.bias"].reshape(heads)
        parts = []
        for index, part in enumerate("qkv"):
            rows, shift = weight[index], bias[index]
            if part != "v":
                rows, shift = rows[:, self.halves], shift[:, self.halves]
            if part == "q":
                scale = np.float32(config.head_dim**-0.5)
                rows, shift = rows * scale, shift * scale
            flat = rows.reshape(config.embed_dim, config.embed_dim)
            joined = self.writer.linear(source, flat, shift.reshape(-1), name=f"{name}.{part}")
            parts.append(self._heads(joined, f"{name}.{part}"))
        query, key, value = parts
        return self._rotate(query, f"{name}.q"), self._rotate(key, f"{name}.k"), value

    def _heads(self, source: str, name: str) -> str:
        """`(B, n, D)` to `(B, heads, n, d)`."""
        config = self.config
        shape = self.writer.integers(0, self.patches + 1, config.num_heads, config.head_dim)
        split = self.writer.node("Reshape", source, shape, name=f"{name}.split")
        return self.writer.node("Transpose", split, name=f"{name}.heads", perm=[0, 2, 1, 3])

    def _rotate(self, source: str, name: str) -> str:
        """Turn pairs that lie in two halves: x * cos + swapped(x) * sin."""
        writer, half = self.writer, self.config.head_dim // 2
        source = writer.wide(source)
        first, second = writer.split(source, (half, half), axis=3, name=f"{name}.halves")
        swapped = writer.node("Concat", second, first, name=f"{name}.swapped", axis=3)
        along = writer.node("Mul", source, self.cos, name=f"{name}.along")
        across = writer.node("Mul", swapped, self.sin, name=f"{name}.across")
        return writer.narrow(writer.node("Add", along, across, name=f"{name}.rotated"))
