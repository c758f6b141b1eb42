"""ONNX graph of EfficientNet-Lite0: `clips` uint8 `(batch, T, H, W, 3)` to `patch` `(batch, T, h, w, 1280)`.

Normalisation is inside; batch norms are folded into the convolutions before them, in float64.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coldframe.export.efficientnet import EfficientNetLite0, same_padding
from coldframe.export.efficientnet_config import BATCH_NORM_EPS, BLOCKS, PIXEL_MEAN, PIXEL_STD
from coldframe.export.geometry import Geometry
from coldframe.export.graph import FLOAT, UINT8, GraphWriter, save_graph


def write_efficientnet(
    model: EfficientNetLite0, path: Path, *, geometry: Geometry, metadata: Mapping[str, str]
) -> None:
    """Write `model` at the sizes of `geometry` to `path`, and its weights to `path` + `.data`."""
    data_path = path.with_name(path.name + ".data")
    with data_path.open("wb") as data:
        writer = GraphWriter(data, data_path.name)
        _Network(writer, model, geometry).write()
    shapes = geometry.graph_shapes
    save_graph(writer, path, name=model.config.name, shapes=shapes, inputs={"clips": UINT8}, metadata=metadata)


class _Network:
    """The nodes; `size` is the height and width of the picture at each point."""

    def __init__(self, writer: GraphWriter, model: EfficientNetLite0, geometry: Geometry) -> None:
        self.writer = writer
        self.geometry = geometry
        self.weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
        self.size = (geometry.height, geometry.width)

    def write(self) -> None:
        writer, shape = self.writer, self.geometry
        hidden = self._relu6(self._conv(self._pixels(), "_conv_stem", "_bn0", stride=2), "stem")
        for index, block in enumerate(BLOCKS):
            name, given = f"_blocks.{index}", hidden
            if block.expand > 1:
                hidden = self._relu6(self._conv(hidden, f"{name}._expand_conv", f"{name}._bn0"), f"{name}.expanded")
            hidden = self._conv(
                hidden, f"{name}._depthwise_conv", f"{name}._bn1", stride=block.stride, groups=block.hidden
            )
            hidden = self._conv(self._relu6(hidden, f"{name}.mixed"), f"{name}._project_conv", f"{name}._bn2")
            if block.residual:
                hidden = writer.node("Add", hidden, given, name=f"{name}.out")
        hidden = self._relu6(self._conv(hidden, "_conv_head", "_bn1"), "head")
        hidden = writer.node("Transpose", hidden, name="channels.last", perm=[0, 2, 3, 1])
        grid = writer.integers(-1, shape.times, shape.rows, shape.cols, shape.dim)
        writer.node("Reshape", hidden, grid, name="patch")

    def _pixels(self) -> str:
        """uint8 clips to normalised frames `(batch * T, 3, H, W)`."""
        writer, shape = self.writer, self.geometry
        flat = writer.integers(-1, shape.height, shape.width, 3)
        pixels = writer.node("Cast", "clips", name="pixels", to=FLOAT)  # first: TensorRT reshapes no uint8
        pixels = writer.node("Reshape", pixels, flat, name="frames")
        pixels = writer.node("Sub", pixels, writer.weight("pixels.mean", np.multiply(PIXEL_MEAN, 255)), name="centred")
        scale = writer.weight("pixels.scale", 1 / np.multiply(PIXEL_STD, 255))
        pixels = writer.node("Mul", pixels, scale, name="normalised")
        return writer.node("Transpose", pixels, name="channels.first", perm=[0, 3, 1, 2])

    def _conv(self, source: str, name: str, norm: str, *, stride: int = 1, groups: int = 1) -> str:
        """A convolution with its batch norm folded in."""
        writer, weights = self.writer, self.weights
        scale = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + BATCH_NORM_EPS)
        kernel = weights[f"{name}.weight"] * scale[:, None, None, None]
        bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        width = kernel.shape[-1]
        (top, bottom), (left, right) = (same_padding(side, width, stride) for side in self.size)
        self.size = (-(-self.size[0] // stride), -(-self.size[1] // stride))
        return writer.node(
            "Conv",
            source,
            writer.weight(f"{name}.weight", kernel),
            writer.weight(f"{name}.bias", bias),
            name=name,
            strides=[stride, stride],
            pads=[top, left, bottom, right],
            group=groups,
        )

    def _relu6(self, source: str, name: str) -> str:
        low = self.writer.weight("zero", np.array(0.0))
        high = self.writer.weight("six", np.array(6.0))
        return self.writer.node("Clip", source, low, high, name=name)
