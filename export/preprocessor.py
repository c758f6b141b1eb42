"""Preprocessor: what a release says of the pixels that its image encoder was trained on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldframe.errors import UsageError

PREPROCESSOR_FILE = "preprocessor_config.json"
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # PIL's numbers


@dataclass(frozen=True, kw_only=True)
class ReleasedPixels:
    """Input of a release.

    Attributes:
        height, width: what the encoder is given, in pixels.
        mean, std: normalisation of RGB in [0, 1].
        words: how a picture is brought to that size.
    """

    height: int
    width: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    words: str


def read_preprocessor(folder: Path) -> ReleasedPixels:
    """Read `preprocessor_config.json`; nothing is assumed where it is silent.

    Raises:
        UsageError: it is missing, or does something to pixels that an exported graph does not.
    """
    path = folder / PREPROCESSOR_FILE
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {PREPROCESSOR_FILE}, which states the mean and deviation of the pixels. Copy it from the "
            "release; they are not guessed."
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        for key in ("do_rescale", "do_normalize"):
            if values.get(key, True) is not True:
                raise UsageError(f"{path} has {key} {values[key]!r}; only encoders of normalised pixels are exported.")
        factor = values.get("rescale_factor", 1 / 255)
        if abs(factor * 255 - 1) > 1e-6:
            raise UsageError(f"{path} has rescale_factor {factor!r}; allowed is 1/255.")
        crops = bool(values.get("do_center_crop", "crop_size" in values))
        size = values["size"]
        height, width = _sides(values["crop_size"] if crops else size)
        mean, std = (tuple(float(one) for one in values[key]) for key in ("image_mean", "image_std"))
        words = _words(size, (height, width), crops, values.get("resample"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} does not state size, image_mean and image_std as expected: {error!r}.") from error
    return ReleasedPixels(height=height, width=width, mean=mean, std=std, words=words)  # type: ignore[arg-type]


def _sides(size: Any) -> tuple[int, int]:
    """Height and width of `224`, `{"height": ..., "width": ...}` or `{"shortest_edge": ...}`."""
    if isinstance(size, Mapping):
        pair = (size["height"], size["width"]) if "height" in size else (size["shortest_edge"],) * 2
    else:
        pair = (size, size)
    return int(pair[0]), int(pair[1])


def _words(size: Any, wanted: tuple[int, int], crops: bool, resample: Any) -> str:
    squashed = isinstance(size, Mapping) and "height" in size
    height, width = _sides(size)
    resize = f"squashed to {height} x {width}" if squashed else f"short side to {height}"
    crop = f", centre crop {wanted[0]} x {wanted[1]}" if crops else ""
    return f"{resize} ({_RESAMPLING.get(resample, 'interpolation not stated')}){crop}"
