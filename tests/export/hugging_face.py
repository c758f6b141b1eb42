"""`transformers` as an independent reference, on small random weights."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tests.export.whole_torchvision import MENDED

__all__ = ["MENDED", "enliven", "small_vjepa2"]


def small_vjepa2(folder: Path, **sizes: Any) -> Any:
    """A lively `VJEPA2Model`, and the same saved to `folder` in the released layout."""
    transformers: Any = import_module("transformers")

    defaults = {
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "crop_size": 48,
        "frames_per_clip": 8,
        "pred_hidden_size": 36,
        "pred_num_hidden_layers": 2,
        "pred_num_attention_heads": 3,
    }
    model = transformers.VJEPA2Model(transformers.VJEPA2Config(**{**defaults, **sizes})).eval().requires_grad_(False)
    enliven(model)
    transformers.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return model


def enliven(model: torch.nn.Module) -> None:
    """Random values in every parameter, large enough that attention is far from uniform."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            parameter.copy_(1 + 0.2 * values)
        elif "mask_tokens" in name:
            parameter.copy_(values)
        elif name.endswith("weight"):
            attention = 2.5 if any(part in name for part in ("query", "key")) else 1
            parameter.copy_(attention * values / parameter.shape[1:].numel() ** 0.5)
        else:
            parameter.copy_(0.3 * values)
