"""Geometry: what an exported encoder takes and gives, whatever family it is of. Needs nothing heavy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, Self, get_args

from coldframe.errors import UsageError

Attention = Literal["block_causal", "full", "per_frame"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
MOST_FRAMES = 64


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Shapes of one export: uint8 clips `(B, frames, height, width, 3)` in, tokens out.

    Attributes:
        frames, height, width: input; height and width in pixels.
        times, rows, cols, dim: patch tokens of a clip are `(times, rows, cols, dim)`.
        has_cls: whether there is a [CLS] token `(dim,)` as well.
        attention: `block_causal` (tokens of a frame read it and earlier ones, [CLS] reads all), `full` (every
            token reads every other), or `per_frame` (frames are encoded one by one).
        layers: blocks, counted from 0, whose patch tokens are given too, each through the final norm.
        has_frame_cls: whether there is one vector a frame, `frame_cls` `(times, dim)`.
    """

    frames: int
    height: int
    width: int
    times: int
    rows: int
    cols: int
    dim: int
    has_cls: bool
    attention: Attention
    layers: tuple[int, ...] = ()
    has_frame_cls: bool = False

    def __post_init__(self) -> None:
        for name in ("frames", "height", "width", "times", "rows", "cols", "dim"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UsageError(f"geometry {name} is {value!r}; allowed is a whole number from 1.")
        if self.attention not in ATTENTIONS:
            raise UsageError(f"geometry attention is {self.attention!r}; allowed are {', '.join(ATTENTIONS)}.")

    @property
    def image_size(self) -> int | tuple[int, int]:
        """Side of the square picture in pixels, or its height and width."""
        return self.height if self.height == self.width else (self.height, self.width)

    @property
    def patches(self) -> int:
        """Patch tokens of a clip."""
        return self.times * self.rows * self.cols

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what comes out, as a graph and `Tokens.from_outputs` call it."""
        vectors = ("cls",) * self.has_cls + ("frame_cls",) * self.has_frame_cls
        return (*vectors, "patch", *(f"patch_l{layer}" for layer in self.layers))

    @property
    def clip_shape(self) -> tuple[int, int, int, int]:
        """`(frames, height, width, 3)`."""
        return self.frames, self.height, self.width, 3

    def output_shapes(self, count: int) -> dict[str, tuple[int, ...]]:
        """Shape of every output for `count` clips, by name."""
        patch = (count, self.times, self.rows, self.cols, self.dim)
        vectors = {"cls": (count, self.dim), "frame_cls": (count, self.times, self.dim)}
        return {name: vectors.get(name, patch) for name in self.outputs}

    @property
    def graph_shapes(self) -> dict[str, list[str | int]]:
        """Shape of every input and output of the graph, by name; `batch` is free."""
        shapes = {"clips": (1, *self.clip_shape), **self.output_shapes(1)}
        return {name: ["batch", *shape[1:]] for name, shape in shapes.items()}

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `has_frame_cls` only where it is true, so that bundles from before it existed read the same."""
        fields = {**asdict(self), "layers": list(self.layers)}
        if not self.has_frame_cls:
            del fields["has_frame_cls"]
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "layers": tuple(fields["layers"])})


class HasGeometry(Protocol):
    """A configuration: it stands for the sizes that it was released with."""

    def geometry(self) -> Geometry: ...


def as_geometry(shape: Geometry | HasGeometry) -> Geometry:
    return shape if isinstance(shape, Geometry) else shape.geometry()


def parse_image_size(text: str) -> tuple[int, int]:
    """`224` or `HEIGHTxWIDTH` to height and width in pixels."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise UsageError(
            f"image size is {text!r}; allowed is a number of pixels such as 224, or HEIGHTxWIDTH: 256x192."
        )
    return int(parts[0]), int(parts[-1])


def parse_layers(text: str) -> tuple[int, ...]:
    """`20,21,22` to ascending block numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise UsageError(f"layers is {text!r}; allowed are block numbers from 0, such as 20,21,22.")
    return tuple(sorted({int(part) for part in parts}))


def check_input(frames: int, image_size: tuple[int, int], *, patch_size: int, tubelet: int) -> None:
    """Refuse a clip that cannot be cut into whole patches."""
    if type(frames) is not int or not tubelet <= frames <= MOST_FRAMES or frames % tubelet:
        more = f" in steps of {tubelet}" if tubelet > 1 else ""
        raise UsageError(f"frames is {frames!r}; allowed is {tubelet} to {MOST_FRAMES}{more}.")
    for name, side in zip(("height", "width"), image_size, strict=True):
        if type(side) is not int or side < patch_size or side % patch_size:
            raise UsageError(f"image {name} is {side!r} pixels; allowed is a multiple of the patch size {patch_size}.")


def check_layers(layers: tuple[int, ...], depth: int) -> None:
    """Refuse blocks that do not exist, and the last one, whose output is `patch` already."""
    for layer in layers:
        if not 0 <= layer < depth:
            raise UsageError(f"layer {layer} does not exist: blocks are counted from 0 to {depth - 1}.")
        if layer == depth - 1:
            raise UsageError(f"layer {layer} is the last block, whose output is `patch` already. Leave it out.")


def export_name(name: str, geometry: Geometry, released: Geometry) -> str:
    """`name`, with what differs from the released sizes: `levjepa-large-t8-256x192`."""
    frames = f"-t{geometry.frames}" if geometry.frames != released.frames else ""
    size = (geometry.height, geometry.width)
    pixels = f"-{size[0]}x{size[1]}" if size != (released.height, released.width) else ""
    return f"{name}{frames}{pixels}"
