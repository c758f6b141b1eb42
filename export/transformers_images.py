"""Image encoders of `transformers`: CLIP, SigLIP, DINOv2 (with registers too) and DINOv3, from a local folder.

The folder is one in the Hugging Face layout: `config.json`, `model.safetensors` and `preprocessor_config.json`. Only
the classes named here are ever built, no code of a folder is run and nothing is downloaded. What each gives:

| family | one vector a frame | patch tokens | left out |
|---|---|---|---|
| clip | `cls`: [CLS] through `post_layernorm`, not projected | through `post_layernorm` too | text tower, projections |
| siglip | no [CLS]; by name `pooled`, its attention pooling head | `last_hidden_state` | text tower |
| dinov2, dinov2_with_registers, dinov3_vit | `cls`: [CLS] through the final norm | `last_hidden_state` | - |

`CLIPVisionModel.last_hidden_state` is before `post_layernorm`. Patches go through it here as [CLS] does, so that both
are on one scale; timm and OpenCLIP do the same.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coldframe.errors import MissingDependency, UsageError
from coldframe.export.checkpoint import check_keys, check_tensors
from coldframe.export.image_config import ImageEncoderConfig, Vector
from coldframe.export.image_encoder import FrameFeatures, ImageEncoder
from coldframe.export.preprocessor import read_preprocessor

try:
    import transformers
except ImportError as error:
    raise MissingDependency("transformers", "images") from error

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size", "num_channels")
_COMMON = (*_SIZES, "hidden_act", "layer_norm_eps")
_MOST_BLOCKS, _MOST_SIZE = 256, 1 << 16  # past what any model has; a wrong number must not take all memory
_TWO_TOWERS = ("text_model.", "visual_projection.", "text_projection.", "logit_scale", "logit_bias")
_DINOV2 = ("mlp_ratio", "qkv_bias", "use_swiglu_ffn")
_ATTENTION_NAMES = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
Encode = Callable[[nn.Module, torch.Tensor], FrameFeatures]


@dataclass(frozen=True, kw_only=True)
class _Family:
    """One kind of vision model.

    Attributes:
        config, model: names of the library's classes.
        settings: keys of its configuration that decide shapes or numbers.
        encode: takes the tokens out of its output.
        vectors: what one vector a frame can be; the first is the default.
        has_class_token: whether a [CLS] comes before the patches.
    """

    config: str
    model: str
    settings: tuple[str, ...]
    encode: Encode
    vectors: tuple[Vector, ...]
    has_class_token: bool = True


def _other_size(module: Any, frames: torch.Tensor) -> bool:
    side = module.config.image_size
    return tuple(frames.shape[2:]) != (side, side)


def _encode_clip(module: Any, frames: torch.Tensor) -> FrameFeatures:
    given = module(pixel_values=frames, interpolate_pos_encoding=_other_size(module, frames))
    tokens = module.post_layernorm(given.last_hidden_state)
    return FrameFeatures(tokens[:, 0], tokens[:, 1:])


def _encode_siglip(module: Any, frames: torch.Tensor) -> FrameFeatures:
    given = module(pixel_values=frames, interpolate_pos_encoding=_other_size(module, frames))
    return FrameFeatures(given.pooler_output, given.last_hidden_state)


def _encode_dino(module: Any, frames: torch.Tensor) -> FrameFeatures:
    tokens = module(pixel_values=frames).last_hidden_state
    return FrameFeatures(tokens[:, 0], tokens[:, 1 + getattr(module.config, "num_register_tokens", 0) :])


_FAMILIES: dict[str, _Family] = {
    "clip_vision_model": _Family(
        config="CLIPVisionConfig",
        model="CLIPVisionModel",
        settings=(*_COMMON, "intermediate_size"),
        encode=_encode_clip,
        vectors=("cls", "none"),
    ),
    "siglip_vision_model": _Family(
        config="SiglipVisionConfig",
        model="SiglipVisionModel",
        settings=(*_COMMON, "intermediate_size", "vision_use_head"),
        encode=_encode_siglip,
        vectors=("none", "pooled"),
        has_class_token=False,
    ),
    "dinov2": _Family(
        config="Dinov2Config",
        model="Dinov2Model",
        settings=(*_COMMON, *_DINOV2, "use_mask_token"),
        encode=_encode_dino,
        vectors=("cls", "none"),
    ),
    "dinov2_with_registers": _Family(
        config="Dinov2WithRegistersConfig",
        model="Dinov2WithRegistersModel",
        settings=(*_COMMON, *_DINOV2, "num_register_tokens"),
        encode=_encode_dino,
        vectors=("cls", "none"),
    ),
    "dinov3_vit": _Family(
        config="DINOv3ViTConfig",
        model="DINOv3ViTModel",
        settings=(
            *(*_COMMON, "intermediate_size", "num_register_tokens", "rope_theta", "use_gated_mlp"),
            *("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias"),
        ),
        encode=_encode_dino,
        vectors=("cls", "none"),
    ),
}
_TOWERS = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}


def load_released(
    folder: Path, values: Mapping[str, Any], state: Mapping[str, torch.Tensor], vector: Vector | None
) -> ImageEncoder:
    """Build the encoder of a released folder.

    Args:
        folder: where `preprocessor_config.json` lies.
        values, state: `config.json` and the tensors.
        vector: what the one vector a frame is; None for the family's own.

    Raises:
        UsageError: a configuration, a checkpoint or preprocessing that is not exactly what the family wants.
    """
    family = _TOWERS.get(values["model_type"], values["model_type"])
    inner = values.get("vision_config", {}) if values["model_type"] in _TOWERS else values
    kind = _FAMILIES[family]
    settings = _settings(kind, inner)
    own, left_out = _own_tensors(state)
    if settings.get("vision_use_head") is False:
        offered: tuple[Vector, ...] = ("none",)
    else:
        offered = kind.vectors
    pixels = read_preprocessor(folder)
    config = ImageEncoderConfig(
        family=family,
        settings=settings,
        height=pixels.height,
        width=pixels.width,
        stride=settings["patch_size"],
        embed_dim=settings["hidden_size"],
        any_size=True,
        prefix=kind.has_class_token + settings.get("num_register_tokens", 0),
        vector=vector or offered[0],
        vectors=offered,
        pixel_mean=pixels.mean,
        pixel_std=pixels.std,
        released_pixels=pixels.words,
        parameters=sum(tensor.numel() for tensor in own.values()),
        left_out=left_out,
    )
    return build(config, own)


def build(config: ImageEncoderConfig, state: Mapping[str, torch.Tensor]) -> ImageEncoder:
    """The encoder of `config` with the tensors of `state`, named as the library's model names them."""
    kind = _FAMILIES[config.family]
    with torch.device("meta"):  # allocates nothing: sizes that do not fit are refused before any memory is taken
        expected = {name: tuple(tensor.shape) for name, tensor in _module(kind, config.settings).state_dict().items()}
    check_keys(expected, state, lambda *_: f"It is not loaded in part as {kind.model}.")
    check_tensors(expected, state)
    with torch.random.fork_rng(devices=()):  # building draws weights that are overwritten
        module = _module(kind, config.settings)
    module.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=True)

    def encode(module: nn.Module, frames: torch.Tensor) -> FrameFeatures:
        vector, patches = kind.encode(module, frames)
        return FrameFeatures(None if config.vector == "none" else vector, patches)

    return ImageEncoder(config, module, encode)


@contextmanager
def fixed_positions(model: ImageEncoder, height: int, width: int) -> Iterator[None]:
    """While a graph is written, use positions resampled once by the library, so that the graph holds their values."""
    embeddings = getattr(model.module, "embeddings", None)
    resample = getattr(embeddings, "interpolate_pos_encoding", None)
    if embeddings is None or resample is None:
        yield
        return
    config = model.config
    tokens = (height // config.stride) * (width // config.stride) + _FAMILIES[config.family].has_class_token
    with torch.no_grad():
        fixed = resample(torch.zeros(1, tokens, config.embed_dim), height, width).detach().clone()
    embeddings.interpolate_pos_encoding = lambda *_: fixed
    try:
        yield
    finally:
        del embeddings.interpolate_pos_encoding


def _settings(kind: _Family, values: Mapping[str, Any]) -> dict[str, Any]:
    """What `values` and the library's defaults say of the keys that decide shapes or numbers."""
    given = {key: values[key] for key in kind.settings if key in values}
    for key in _SIZES:
        most = _MOST_BLOCKS if key == "num_hidden_layers" else _MOST_SIZE
        if key in given and (type(given[key]) is not int or not 1 <= given[key] <= most):
            raise UsageError(f"config.json has {key} {given[key]!r}; allowed is a whole number from 1 to {most}.")
    try:
        whole = getattr(transformers, kind.config)(**given)
    except Exception as error:  # the library's own validation errors are not public
        raise UsageError(f"config.json is refused by {kind.config}: {' '.join(str(error).split())}") from error
    settings = {key: getattr(whole, key) for key in kind.settings}
    if settings["hidden_size"] % settings["num_attention_heads"] or settings["num_channels"] != 3:
        raise UsageError(
            f"config.json has hidden_size {settings['hidden_size']}, num_attention_heads "
            f"{settings['num_attention_heads']} and num_channels {settings['num_channels']}; the heads must divide the "
            "size, and colours are 3."
        )
    return settings


def _module(kind: _Family, settings: Mapping[str, Any]) -> Any:
    try:
        return getattr(transformers, kind.model)(getattr(transformers, kind.config)(**settings))
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"config.json does not make a {kind.model}: {' '.join(str(error).split())}") from error


def _own_tensors(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """The vision model's tensors by the library's names, and how many others there are of each kind left out."""
    own: dict[str, torch.Tensor] = {}
    left_out: dict[str, int] = {}
    for name, tensor in state.items():
        other = next((start for start in _TWO_TOWERS if name.startswith(start)), None)
        if name.endswith("embeddings.position_ids"):  # 0, 1, 2, ... in checkpoints of older versions
            other = "embeddings.position_ids"
        if other is None:
            own.update(_library_tensors(name, tensor))
        else:
            shown = f"{other}*" if other.endswith(".") else other
            left_out[shown] = left_out.get(shown, 0) + 1
    return own, left_out


def _library_tensors(released: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """A released tensor by its name in transformers 5's models, where SwiGLU's two input matrices are apart."""
    name = _library_name(released)
    if ".mlp.weights_in." not in name or tensor.shape[0] % 2:
        return {name: tensor}
    gate, up = tensor.chunk(2)
    return {name.replace("weights_in", "gate_proj"): gate, name.replace("weights_in", "up_proj"): up}


def _library_name(released: str) -> str:
    name = released.removeprefix("vision_model.")
    name = re.sub(r"attention\.attention\.(query|key|value)\.", lambda m: f"attention.{_ATTENTION_NAMES[m[1]]}.", name)
    name = name.replace("attention.output.dense.", "attention.o_proj.").replace("mlp.weights_out.", "mlp.down_proj.")
    return re.sub(r"^layer\.", "model.layer.", name)
