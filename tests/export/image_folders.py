"""Small image encoders with random weights, saved by their own libraries in the layout that releases have."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.export.hugging_face import MENDED, enliven

__all__ = ["MENDED", "SIDE", "clip_pixels", "frames_of", "hugging_face_folder", "timm_folder"]

SIDE = 32
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
_VISION = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": SIDE,
    "patch_size": 16,
    "intermediate_size": 96,
}
_TEXT = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 96, "vocab_size": 99}
_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "clip": ("CLIPModel", "CLIPConfig", {"vision_config": _VISION, "text_config": _TEXT}),
    "clip_vision_model": ("CLIPVisionModel", "CLIPVisionConfig", _VISION),
    "siglip": ("SiglipModel", "SiglipConfig", {"vision_config": _VISION, "text_config": _TEXT}),
    "siglip_vision_model": ("SiglipVisionModel", "SiglipVisionConfig", _VISION),
    "dinov2": ("Dinov2Model", "Dinov2Config", _VISION),
    "dinov2-swiglu": ("Dinov2Model", "Dinov2Config", {**_VISION, "use_swiglu_ffn": True}),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", _VISION),
    "dinov3_vit": ("DINOv3ViTModel", "DINOv3ViTConfig", {**_VISION, "num_register_tokens": 4, "use_gated_mlp": True}),
}
PREPROCESSOR = {
    "image_mean": MEAN,
    "image_std": STD,
    "size": {"shortest_edge": 36},
    "crop_size": {"height": SIDE, "width": SIDE},
    "do_center_crop": True,
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}


def hugging_face_folder(kind: str, folder: Path) -> Any:
    """A lively model of `kind`, and the same saved to `folder` as released."""
    transformers: Any = import_module("transformers")
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    model, config, sizes = _MODELS[kind]
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval().requires_grad_(False)
    enliven(made)
    made.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return made


def timm_folder(architecture: str, folder: Path, **arguments: Any) -> Any:
    """A lively model of timm, and the same saved to `folder` in its hub layout."""
    timm: Any = import_module("timm")
    made = timm.create_model(architecture, **arguments).eval().requires_grad_(False)
    enliven(made)
    for name, buffer in made.named_buffers():
        if name.endswith("running_var"):
            buffer.fill_(1.5)
    folder.mkdir(parents=True, exist_ok=True)
    timm.models.save_for_hf(made, folder, safe_serialization=True)
    return made


def clip_pixels(count: int, frames: int, height: int = SIDE, width: int = SIDE, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, frames, height, width, 3), dtype=np.uint8)


def frames_of(clips: NDArray[np.uint8], mean: Any = MEAN, std: Any = STD) -> torch.Tensor:
    """Frames as a library takes them, `(B * T, 3, H, W)`, normalised in float64."""
    flat = clips.reshape(-1, *clips.shape[2:]).astype(np.float64) / 255
    normal = (flat - np.array(mean)) / np.array(std)
    return torch.from_numpy(normal.transpose(0, 3, 1, 2).copy()).float()
