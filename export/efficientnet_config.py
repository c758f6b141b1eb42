"""EfficientNet-Lite0's configuration: one architecture, at any input size. Needs nothing heavy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from coldframe.errors import UsageError
from coldframe.export.geometry import Geometry, check_input

STRIDE = 32  # pixels a side that one output position stands for
HEAD_CHANNELS = 1280
STEM_CHANNELS = 32
CLASSES = 1000
BATCH_NORM_EPS = 1e-3
# TensorFlow's EfficientNet-Lite reads (value - 127) / 128.
PIXEL_MEAN = (127 / 255,) * 3
PIXEL_STD = (128 / 255,) * 3


class MBConv(NamedTuple):
    """One inverted residual block: expand, depthwise, project."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    expand: int

    @property
    def hidden(self) -> int:
        return self.inputs * self.expand

    @property
    def residual(self) -> bool:
        return self.stride == 1 and self.inputs == self.outputs


def _stages() -> tuple[MBConv, ...]:
    """All blocks, from (repeats, kernel, first stride, expansion, channels) of the paper's table for B0."""
    table = (
        (1, 3, 1, 1, 16),
        (2, 3, 2, 6, 24),
        (2, 5, 2, 6, 40),
        (3, 3, 2, 6, 80),
        (3, 5, 1, 6, 112),
        (4, 5, 2, 6, 192),
    )
    blocks, inputs = [], STEM_CHANNELS
    for repeats, kernel, stride, expand, outputs in (*table, (1, 3, 1, 6, 320)):
        for repeat in range(repeats):
            blocks.append(MBConv(inputs, outputs, kernel, stride if repeat == 0 else 1, expand))
            inputs = outputs
    return tuple(blocks)


BLOCKS = _stages()


@dataclass(frozen=True, kw_only=True)
class EfficientNetConfig:
    """EfficientNet-Lite0 over frames, one by one.

    Attributes:
        img_size: side of the released input in pixels.
        num_frames: frames a clip, unless an export says otherwise; frames do not see each other.
    """

    model_type: str = "efficientnet_lite0"
    img_size: int = 224
    num_frames: int = 16

    def __post_init__(self) -> None:
        if (self.model_type, self.img_size) != ("efficientnet_lite0", 224):
            raise UsageError(f"config is {asdict(self)}; only efficientnet_lite0, released at 224 px, is implemented.")

    @property
    def name(self) -> str:
        return "efficientnet-lite0"

    @property
    def parameters(self) -> int:
        """Parameters, the classifier among them."""
        count = STEM_CHANNELS * 27 + 2 * STEM_CHANNELS
        for block in BLOCKS:
            hidden = block.hidden
            expand = block.inputs * hidden + 2 * hidden if block.expand > 1 else 0
            count += expand + hidden * block.kernel**2 + 2 * hidden + hidden * block.outputs + 2 * block.outputs
        return count + BLOCKS[-1].outputs * HEAD_CHANNELS + 2 * HEAD_CHANNELS + HEAD_CHANNELS * CLASSES + CLASSES

    def geometry(
        self, *, frames: int | None = None, image_size: tuple[int, int] | None = None, layers: tuple[int, ...] = ()
    ) -> Geometry:
        """Shapes of an export: no [CLS]; `mean` over a frame's grid is the released pooled vector."""
        frames = self.num_frames if frames is None else frames
        height, width = image_size or (self.img_size, self.img_size)
        check_input(frames, (height, width), patch_size=STRIDE, tubelet=1)
        if layers:
            raise UsageError(
                f"layers is {layers}; blocks of {self.name} have other widths than its output. Leave it out."
            )
        return Geometry(
            frames=frames,
            height=height,
            width=width,
            times=frames,
            rows=height // STRIDE,
            cols=width // STRIDE,
            dim=HEAD_CHANNELS,
            has_cls=False,
            attention="per_frame",
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        try:
            return cls(**values)
        except TypeError as error:
            raise UsageError(f"config.json of efficientnet_lite0 has other keys than wanted: {error}.") from error
