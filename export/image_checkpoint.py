"""Image encoders in and out of folders: released ones of `transformers` and `timm`, and those in bundles."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coldframe.errors import UsageError
from coldframe.export.checkpoint import read_folder, write_folder
from coldframe.export.image_config import IMAGE_ENCODER, ImageEncoderConfig, Vector
from coldframe.export.image_encoder import ImageEncoder

_TRANSFORMERS = (
    "clip",
    "clip_vision_model",
    "siglip",
    "siglip_vision_model",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
)


def is_image_encoder(values: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is one of an image encoder, in a bundle or as released."""
    return values.get("model_type") in (IMAGE_ENCODER, *_TRANSFORMERS) or is_timm(values)


def is_timm(values: Mapping[str, Any]) -> bool:
    return "architecture" in values and "model_type" not in values


def load_image_encoder(folder: Path, vector: Vector | None = None) -> ImageEncoder:
    """Load an image encoder; `vector` is what its one vector a frame is, None for its own default.

    Raises:
        UsageError: the folder is not exactly what its `config.json` says, or the encoder has no such vector.
        MissingDependency: its library is not installed.
    """
    values, state, _ = read_folder(folder)
    if values.get("model_type") == IMAGE_ENCODER:
        config = ImageEncoderConfig.from_dict(values)
        config = config if vector is None else replace(config, vector=vector)
        if config.family == "timm":
            from coldframe.export import timm_images

            return timm_images.build(config, state)
        from coldframe.export import transformers_images

        return transformers_images.build(config, state)
    if is_timm(values):
        from coldframe.export import timm_images

        return timm_images.load_released(values, state, vector)
    from coldframe.export import transformers_images

    return transformers_images.load_released(folder, values, state, vector)


def save_image_encoder(model: ImageEncoder, folder: Path) -> None:
    """Write the vision model alone, in the layout that `load_image_encoder` reads back."""
    write_folder(folder, model.config.to_dict(), model.module.state_dict(), model.random_init)


def require_no_vector(vector: Vector | None, source: str) -> None:
    """Refuse a choice of vector for an encoder that leaves none."""
    if vector is not None:
        raise UsageError(
            f"--frame-vector chooses among the vectors of an image encoder; {source} is none. Leave it out."
        )
