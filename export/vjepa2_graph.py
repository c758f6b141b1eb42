"""ONNX graphs of V-JEPA 2, written node by node: the encoder, and its predictor.

Encoder: `clips` uint8 `(batch, T, H, W, 3)` to `patch` float32 `(batch, T / tubelet, h, w, D)`, and one output a
further layer. Predictor: `patch` and `target_ids` int64 `(batch, targets)` to `predicted` `(batch, targets, D)`.
What the two graphs share with LeVJEPA's (`graph`): the order of dims within a head, scaled queries, patches as a matrix
product. Attention is full; one product a time step keeps the scores of a block small.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.export.config import LAYER_NORM_EPS
from coldframe.export.geometry import Geometry
from coldframe.export.graph import FLOAT, INT64, UINT8, GraphWriter, save_graph
from coldframe.export.pixels import IMAGENET_MEAN, IMAGENET_STD
from coldframe.export.rope import rope_angles
from coldframe.export.vjepa2 import MASK_INDEX, VJEPA2
from coldframe.export.vjepa2_config import BlockSizes

Weights = Mapping[str, NDArray[np.float32]]
_END = 2**31 - 1  # of a slice that goes to the last token


def predictor_steps(geometry: Geometry, released_steps: int) -> int:
    """Time steps that the predictor's graph knows positions of.

    The released ones, or one clip and 8 steps (2 s on the nominal clock) beyond the clip, whichever is most.
    """
    return max(released_steps, geometry.times + max(geometry.times, 8))


def predictor_shapes(geometry: Geometry) -> dict[str, list[str | int]]:
    """Shape of every input and output of the predictor's graph."""
    patch: list[str | int] = ["batch", geometry.times, geometry.rows, geometry.cols, geometry.dim]
    return {"patch": patch, "target_ids": ["batch", "targets"], "predicted": ["batch", "targets", geometry.dim]}


def write_encoder(model: VJEPA2, path: Path, *, geometry: Geometry, metadata: Mapping[str, str]) -> None:
    """Write the encoder at the sizes of `geometry` to `path`, and its weights to `path` + `.data`."""
    config, data_path = model.config, path.with_name(path.name + ".data")
    weights = _arrays(model, "encoder.")
    with data_path.open("wb") as data:
        writer = GraphWriter(data, data_path.name)
        angles = rope_angles(config.encoder.head_dim, frames=geometry.times, rows=geometry.rows, cols=geometry.cols)
        cos, sin = rope_tables(writer, angles)
        step = geometry.rows * geometry.cols
        spans = [(start, start + step) for start in range(0, geometry.patches, step)]
        blocks = Blocks(writer, weights, config.encoder, cos, sin, spans)
        tokens = _embed(writer, weights, geometry, config.tubelet_size, config.patch_size)
        for index in range(config.num_hidden_layers):
            tokens = blocks.block(tokens, f"encoder.blocks.{index}")
            if index in geometry.layers:
                _output(blocks, tokens, geometry, f"patch_l{index}")
        _output(blocks, tokens, geometry, "patch")
    save_graph(writer, path, name=config.name, shapes=geometry.graph_shapes, inputs={"clips": UINT8}, metadata=metadata)


def write_predictor(model: VJEPA2, path: Path, *, geometry: Geometry, metadata: Mapping[str, str]) -> None:
    """Write the predictor for clips of `geometry` to `path`, and its weights to `path` + `.data`."""
    config, data_path = model.config, path.with_name(path.name + ".data")
    weights = _arrays(model, "predictor.")
    steps = predictor_steps(geometry, config.frames_per_clip // config.tubelet_size)
    with data_path.open("wb") as data:
        writer = GraphWriter(data, data_path.name)
        angles = rope_angles(config.predictor.head_dim, frames=steps, rows=geometry.rows, cols=geometry.cols)
        ids = _token_ids(writer, geometry)
        # (batch, 1, n, d): every token turns by its own position
        cos, sin = (
            writer.node(
                "Unsqueeze",
                writer.node("Gather", table, ids, name=f"{table}.rows", axis=0),
                writer.integers(1),
                name=f"{table}.heads",
            )
            for table in rope_tables(writer, angles)
        )
        step = geometry.rows * geometry.cols
        spans = [(start, start + step) for start in range(0, geometry.patches, step)]
        blocks = Blocks(writer, weights, config.predictor, cos, sin, [*spans, (geometry.patches, _END)])
        tokens = _predictor_tokens(blocks, geometry)
        for index in range(config.pred_num_hidden_layers):
            tokens = blocks.block(tokens, f"predictor.predictor_blocks.{index}")
        bounds = (writer.integers(geometry.patches), writer.integers(_END), writer.integers(1))
        tokens = writer.node("Slice", tokens, *bounds, name="targets")
        tokens = blocks.norm(tokens, "predictor.predictor_norm")
        writer.node("Identity", blocks.linear(tokens, "predictor.predictor_proj"), name="predicted")
    save_graph(
        writer,
        path,
        name=f"{config.name}-predictor",
        shapes=predictor_shapes(geometry),
        inputs={"patch": FLOAT, "target_ids": INT64},
        metadata=metadata,
    )


def rope_tables(writer: GraphWriter, angles: NDArray[np.float64]) -> tuple[str, str]:
    """Cosine, and sine with the sign of the first half turned, of `(n, d)` angles in the order of `halves`."""
    turned = angles[:, halves(angles.shape[1])]
    sine = np.sin(turned)
    sine[:, : angles.shape[1] // 2] *= -1
    return writer.weight("rope.cos", np.cos(turned)), writer.weight("rope.sin", sine)


def halves(head_dim: int) -> NDArray[np.int64]:
    """Even dims of a head first, then odd ones: adjacent pairs become two halves."""
    return np.concatenate((np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)))


def _arrays(model: VJEPA2, start: str) -> dict[str, NDArray[np.float32]]:
    state = model.state_dict().items()
    return {name: tensor.detach().cpu().numpy() for name, tensor in state if name.startswith(start)}


def _embed(writer: GraphWriter, weights: Weights, geometry: Geometry, tubelet: int, side: int) -> str:
    """uint8 clips to `(B, n, D)`: tubelets of pixels, normalised, times the embedding."""
    cut = writer.integers(0, geometry.times, tubelet, geometry.rows, side, geometry.cols, side, 3)
    pixels = writer.node("Cast", "clips", name="pixels", to=FLOAT)  # first: TensorRT reshapes no uint8
    pieces = writer.node("Reshape", pixels, cut, name="patches.cut")
    pieces = writer.node("Transpose", pieces, name="patches.order", perm=[0, 1, 3, 5, 2, 4, 6, 7])
    values = tubelet * side * side * 3
    pixels = writer.node("Reshape", pieces, writer.integers(0, geometry.patches, values), name="patches")
    mean = np.tile(np.multiply(IMAGENET_MEAN, 255), values // 3)
    scale = np.tile(1 / np.multiply(IMAGENET_STD, 255), values // 3)
    pixels = writer.node("Sub", pixels, writer.weight("pixels.mean", mean), name="pixels.centred")
    pixels = writer.node("Mul", pixels, writer.weight("pixels.scale", scale), name="pixels.normalised")
    kernel = weights["encoder.patch_embed.proj.weight"]  # (D, 3, tubelet, side, side)
    flat = kernel.transpose(0, 2, 3, 4, 1).reshape(geometry.dim, -1)
    return writer.linear(pixels, flat, weights["encoder.patch_embed.proj.bias"], name="encoder.patch_embed.proj")


def _output(blocks: "Blocks", tokens: str, geometry: Geometry, name: str) -> None:
    """Give `tokens`, through the final norm, as output `name`."""
    writer = blocks.writer
    normed = blocks.norm(tokens, "encoder.norm", name=f"{name}.norm")
    grid = writer.integers(0, geometry.times, geometry.rows, geometry.cols, geometry.dim)
    writer.node("Reshape", normed, grid, name=name)


def _token_ids(writer: GraphWriter, geometry: Geometry) -> str:
    """Ids of context and targets, `(batch, n)`."""
    context = writer.integer_constant("context.ids", np.arange(geometry.patches, dtype=np.int64)[None])
    batch = writer.node("Shape", "patch", name="batch.size", start=0, end=1)
    shape = writer.node("Concat", batch, writer.integers(geometry.patches), name="context.shape", axis=0)
    rows = writer.node("Expand", context, shape, name="context.rows")
    return writer.node("Concat", rows, "target_ids", name="token.ids", axis=1)


def _predictor_tokens(blocks: "Blocks", geometry: Geometry) -> str:
    """Embedded context, and the mask token once a target: `(B, n, d)`."""
    writer = blocks.writer
    flat = writer.node("Reshape", "patch", writer.integers(0, geometry.patches, geometry.dim), name="context.flat")
    context = blocks.linear(flat, "predictor.predictor_embed")
    masks = blocks.weights["predictor.mask_tokens"]  # (tokens, 1, 1, d)
    mask = writer.weight("predictor.mask_token", masks[MASK_INDEX % len(masks)])
    counts = writer.node("Shape", "target_ids", name="targets.size")
    shape = writer.node("Concat", counts, writer.integers(masks.shape[-1]), name="targets.shape", axis=0)
    targets = writer.node("Expand", mask, shape, name="targets.rows")
    return writer.node("Concat", context, targets, name="embedded", axis=1)


@dataclass(frozen=True)
class Blocks:
    """Nodes of pre-norm transformer blocks with full attention.

    Attributes:
        cos, sin: tables that broadcast to `(B, heads, n, d)`.
        spans: pieces of the queries, each attended in one product.
    """

    writer: GraphWriter
    weights: Weights
    sizes: BlockSizes
    cos: str
    sin: str
    spans: list[tuple[int, int]]

    def norm(self, source: str, key: str, *, name: str | None = None) -> str:
        scale, bias = (
            self.writer.weight(f"{key}.{part}", self.weights[f"{key}.{part}"]) for part in ("weight", "bias")
        )
        given = name or key
        return self.writer.node("LayerNormalization", source, scale, bias, name=given, axis=-1, epsilon=LAYER_NORM_EPS)

    def linear(self, source: str, key: str) -> str:
        return self.writer.linear(source, self.weights[f"{key}.weight"], self.weights[f"{key}.bias"], name=key)

    def block(self, tokens: str, name: str) -> str:
        writer = self.writer
        read = self._attention(self.norm(tokens, f"{name}.norm1"), f"{name}.attn")
        tokens = writer.node("Add", tokens, read, name=f"{name}.read")
        hidden = self.linear(self.norm(tokens, f"{name}.norm2"), f"{name}.mlp.fc1")
        hidden = writer.node("Gelu", hidden, name=f"{name}.mlp.act", approximate="none")
        return writer.node("Add", tokens, self.linear(hidden, f"{name}.mlp.fc2"), name=f"{name}.out")

    def _attention(self, source: str, name: str) -> str:
        writer, dim = self.writer, self.sizes.embed_dim
        query, key, value = (self._heads(source, part, name) for part in range(3))
        key = writer.node("Transpose", key, name=f"{name}.turned", perm=[0, 1, 3, 2])
        reads = [self._read(query, key, value, span, f"{name}.{index}") for index, span in enumerate(self.spans)]
        read = writer.node("Concat", *reads, name=f"{name}.reads", axis=2)
        read = writer.node("Transpose", read, name=f"{name}.merged", perm=[0, 2, 1, 3])
        read = writer.node("Reshape", read, writer.integers(0, -1, dim), name=f"{name}.flat")
        return self.linear(read, f"{name}.proj")

    def _read(self, query: str, key: str, value: str, span: tuple[int, int], name: str) -> str:
        writer = self.writer
        bounds = (writer.integers(span[0]), writer.integers(span[1]), writer.integers(2))
        piece = writer.node("Slice", query, *bounds, name=f"{name}.queries")
        scores = writer.node("MatMul", piece, key, name=f"{name}.scores")
        shares = writer.node("Softmax", scores, name=f"{name}.shares", axis=-1)
        return writer.node("MatMul", shares, value, name=f"{name}.reads")

    def _heads(self, source: str, part: int, name: str) -> str:
        """Query (0), key (1) or value (2), `(B, heads, n, d)`; the first two with positions, queries scaled."""
        writer, sizes = self.writer, self.sizes
        weight = self.weights[f"{name}.qkv.weight"].reshape(3, sizes.num_heads, sizes.head_dim, sizes.embed_dim)[part]
        bias = self.weights[f"{name}.qkv.bias"].reshape(3, sizes.num_heads, sizes.head_dim)[part]
        if part < 2:
            order = halves(sizes.head_dim)
            weight, bias = weight[:, order], bias[:, order]
        if part == 0:
            scale = np.float32(sizes.head_dim**-0.5)
            weight, bias = weight * scale, bias * scale
        name = f"{name}.{'qkv'[part]}"
        joined = writer.linear(source, weight.reshape(-1, sizes.embed_dim), bias.reshape(-1), name=name)
        split = writer.integers(0, -1, sizes.num_heads, sizes.head_dim)
        heads = writer.node("Reshape", joined, split, name=f"{name}.split")
        heads = writer.node("Transpose", heads, name=f"{name}.heads", perm=[0, 2, 1, 3])
        return heads if part == 2 else self._rotate(heads, name)

    def _rotate(self, source: str, name: str) -> str:
        """Turn pairs that lie in two halves: x * cos + swapped(x) * sin."""
        writer, half = self.writer, self.sizes.head_dim // 2
        first, second = writer.split(source, (half, half), axis=3, name=f"{name}.halves")
        swapped = writer.node("Concat", second, first, name=f"{name}.swapped", axis=3)
        along = writer.node("Mul", source, self.cos, name=f"{name}.along")
        across = writer.node("Mul", swapped, self.sin, name=f"{name}.across")
        return writer.node("Add", along, across, name=f"{name}.rotated")
