"""What the encoder is: reference models, and their export to a bundle with measured parity.

`export_bundle` makes a bundle from a checkpoint, `open_bundle` reads one back, `load_reference` gives the
PyTorch model itself. Names are loaded on first use: importing this package needs neither PyTorch nor ONNX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coldframe.export.bundle import export_bundle
    from coldframe.export.bundle_files import Bundle, open_bundle, verify_bundle
    from coldframe.export.checkpoint import load_reference, save_reference, weights_sha256
    from coldframe.export.config import SIZES, LeVJEPAConfig
    from coldframe.export.families import load_encoder
    from coldframe.export.geometry import Geometry
    from coldframe.export.levjepa import LeVJEPA
    from coldframe.export.stream import FrameTokens, StreamEncoder
    from coldframe.export.tokens import Tokens

__all__ = [
    "SIZES",
    "Bundle",
    "FrameTokens",
    "Geometry",
    "LeVJEPA",
    "LeVJEPAConfig",
    "StreamEncoder",
    "Tokens",
    "export_bundle",
    "load_encoder",
    "load_reference",
    "open_bundle",
    "save_reference",
    "verify_bundle",
    "weights_sha256",
]

_HOMES = {
    "SIZES": "config",
    "Bundle": "bundle_files",
    "Geometry": "geometry",
    "FrameTokens": "stream",
    "LeVJEPA": "levjepa",
    "LeVJEPAConfig": "config",
    "StreamEncoder": "stream",
    "Tokens": "tokens",
    "export_bundle": "bundle",
    "load_encoder": "families",
    "load_reference": "checkpoint",
    "open_bundle": "bundle_files",
    "save_reference": "checkpoint",
    "verify_bundle": "bundle_files",
    "weights_sha256": "checkpoint",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
