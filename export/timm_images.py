"""Image encoders of `timm` from a local folder in its hub layout: `config.json` and `model.safetensors`.

`config.json` names an architecture of the library, its arguments and `pretrained_cfg`. Nothing is downloaded and no
code of the folder is run: the architecture must be one that the library registers, its arguments plain values of
known names. Patch tokens are what `forward_features` gives, without [CLS] and registers; `cls` is its class token;
`pooled` is `forward_head(pre_logits=True)`, the library's own pooling.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from coldframe.errors import MissingDependency, UsageError
from coldframe.export.checkpoint import check_keys, check_tensors
from coldframe.export.image_config import ImageEncoderConfig, Vector
from coldframe.export.image_encoder import FrameFeatures, ImageEncoder

try:
    import timm
except ImportError as error:
    raise MissingDependency("timm", "images") from error
except RuntimeError as error:  # torchvision, which it needs, is built for another torch
    raise UsageError(f"timm cannot be imported: {error}. Install the torchvision that fits this torch.") from error

# Arguments of models that change shapes or numbers and can neither name a file nor reach the network.
_ARGUMENTS = frozenset(
    {
        *(
            "img_size",
            "patch_size",
            "embed_dim",
            "depth",
            "num_heads",
            "mlp_ratio",
            "qkv_bias",
            "qk_norm",
            "init_values",
        ),
        *("class_token", "reg_tokens", "no_embed_class", "pre_norm", "final_norm", "fc_norm", "global_pool"),
        *("in_chans", "num_classes", "dynamic_img_size", "strict_img_size", "drop_rate", "drop_path_rate"),
        *("act_layer", "norm_layer", "layers", "channels", "stem_width", "stem_type", "head_hidden_size"),
    }
)


def load_released(values: Mapping[str, Any], state: Mapping[str, torch.Tensor], vector: Vector | None) -> ImageEncoder:
    """Build the encoder of a released folder from its `config.json` and tensors.

    Raises:
        UsageError: an unknown architecture or argument, no `pretrained_cfg`, or tensors that do not fit exactly.
    """
    settings = _settings(values)
    pixels = values.get("pretrained_cfg")
    try:
        channels, height, width = (int(side) for side in pixels["input_size"])  # type: ignore[index]
        mean, std = (tuple(float(one) for one in pixels[key]) for key in ("mean", "std"))  # type: ignore[index]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"config.json does not state pretrained_cfg with input_size, mean and std as expected: {error!r}. They are "
            "not guessed."
        ) from error
    if channels != 3:
        raise UsageError(f"config.json has input_size {pixels['input_size']}; allowed are 3 colours.")  # type: ignore[index]
    shape = _probe(_module(settings, meta=True), height, width)
    config = ImageEncoderConfig(
        family="timm",
        settings=settings,
        height=height,
        width=width,
        any_size=False,
        vector=vector or shape["vectors"][0],
        pixel_mean=mean,  # type: ignore[arg-type]
        pixel_std=std,  # type: ignore[arg-type]
        released_pixels=_words(pixels or {}),
        parameters=sum(tensor.numel() for tensor in state.values()),
        **shape,
    )
    return build(config, state)


def build(config: ImageEncoderConfig, state: Mapping[str, torch.Tensor]) -> ImageEncoder:
    """The encoder of `config` with the tensors of `state`."""
    expected = {name: tuple(tensor.shape) for name, tensor in _module(config.settings, meta=True).state_dict().items()}
    counters = {name for name in expected if name.endswith(".num_batches_tracked")}  # of training, and whole numbers
    weights = {name: tensor for name, tensor in state.items() if name not in counters}
    for name in counters:
        del expected[name]
    architecture = config.settings["architecture"]
    check_keys(expected, weights, lambda *_: f"It is not loaded in part as timm's {architecture}.")
    check_tensors(expected, weights)
    with torch.random.fork_rng(devices=()):  # building draws weights that are overwritten
        module = _module(config.settings)
    module.load_state_dict({**module.state_dict(), **{name: one.float() for name, one in weights.items()}}, strict=True)

    def encode(module: nn.Module, frames: torch.Tensor) -> FrameFeatures:
        return _features(module, frames, config.vector, config.prefix)

    return ImageEncoder(config, module, encode)


def _features(module: Any, frames: torch.Tensor, vector: str, prefix: int) -> FrameFeatures:
    given = module.forward_features(frames)
    patches = given.flatten(2).transpose(1, 2) if given.ndim == 4 else given[:, prefix:]
    if vector == "pooled":
        return FrameFeatures(module.forward_head(given, pre_logits=True), patches)
    return FrameFeatures(given[:, 0] if vector == "cls" else None, patches)


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    architecture = values.get("architecture")
    known = isinstance(architecture, str) and re.fullmatch(r"[a-z0-9_]+", architecture) and timm.is_model(architecture)
    if not known:
        raise UsageError(f"config.json has architecture {architecture!r}, which timm {timm.__version__} does not have.")
    arguments = dict(values.get("model_args") or {})
    unknown = sorted(set(arguments) - _ARGUMENTS)
    if unknown:
        raise UsageError(
            f"config.json has model_args {', '.join(unknown)}; allowed are {', '.join(sorted(_ARGUMENTS))}."
        )
    classes = values.get("num_classes", (values.get("pretrained_cfg") or {}).get("num_classes"))
    if arguments.pop("num_classes", classes) != classes:
        raise UsageError(f"config.json has num_classes {classes!r} and another one in model_args. They must agree.")
    if type(classes) is not int or classes < 0:
        raise UsageError(f"config.json has num_classes {classes!r}; allowed is a whole number from 0.")
    pool = values.get("global_pool")
    if pool is not None:
        arguments = {"global_pool": pool, **arguments}
    return {"architecture": architecture, "num_classes": classes, "model_args": arguments}


def _module(settings: Mapping[str, Any], *, meta: bool = False) -> Any:
    try:
        with torch.device("meta" if meta else "cpu"):
            model = timm.create_model(
                settings["architecture"],
                pretrained=False,
                num_classes=settings["num_classes"],
                **settings["model_args"],
            )
    except Exception as error:  # whatever an architecture makes of its arguments
        raise UsageError(
            f"config.json does not make timm's {settings['architecture']}: {' '.join(str(error).split())}"
        ) from error
    return model.eval()


def _probe(module: Any, height: int, width: int) -> dict[str, Any]:
    """What the model gives for one frame: width of a token, grid, tokens before it, and which vectors there are.

    Raises:
        UsageError: neither a map `(N, D, h, w)` nor tokens on a grid `(N, prefix + h * w, D)`.
    """
    dim = int(module.num_features)
    with torch.device("meta"), torch.no_grad():
        given = module.forward_features(torch.zeros(1, 3, height, width))
        pooled = module.forward_head(given, pre_logits=True)
    has_class = getattr(module, "cls_token", None) is not None
    prefix = int(getattr(module, "num_prefix_tokens", 0)) if given.ndim == 3 else 0
    stride = 0
    if given.ndim == 4 and given.shape[1] == dim and given.shape[3] != dim:
        stride = height // int(given.shape[2])
        places = int(given.shape[2]) * int(given.shape[3])
    elif given.ndim == 3 and given.shape[2] == dim:
        places = int(given.shape[1]) - prefix
        stride = round((height * width / max(places, 1)) ** 0.5)
    if not stride or (height // stride) * (width // stride) != places or height % stride or width % stride:
        raise UsageError(
            f"{type(module).__name__} gives {tuple(given.shape)} for {height} x {width} pixels: no grid of patches of "
            f"{dim} numbers, row by row. Architectures with one are ViTs and convolutional networks."
        )
    vectors: list[Vector] = ["cls"] if has_class else []
    vectors += ["none"]
    vectors += ["pooled"] if tuple(pooled.shape) == (1, dim) else []
    return {"embed_dim": dim, "stride": stride, "prefix": prefix, "vectors": tuple(vectors)}


def _words(pixels: Mapping[str, Any]) -> str:
    crop, how = pixels.get("crop_pct", "not stated"), pixels.get("interpolation", "interpolation not stated")
    return f"crop_pct {crop}, crop_mode {pixels.get('crop_mode', 'center')} ({how})"
