"""Losses of stacked heads, one number a head and row."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from coldframe.probes.presets import Preset

_ALPHA, _GAMMA = 0.25, 2.0


def losses(preset: Preset, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """(G, B) the preset's loss, summed over classifiers.

    Args:
        preset: says which loss.
        logits: (G, B, classes) of each classifier.
        targets: (B,) class codes of each.
    """
    total = logits[0].new_zeros(logits[0].shape[:2])
    for one, target in zip(logits, targets, strict=True):
        loss = focal(one, target) if preset.loss == "focal" else cross_entropy(one, target, preset.label_smoothing)
        total = total + loss
    return total


def cross_entropy(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """(G, B) cross-entropy of logits (G, B, classes)."""
    heads, batch, _ = logits.shape
    flat = functional.cross_entropy(
        logits.flatten(0, 1), target.repeat(heads), reduction="none", label_smoothing=smoothing
    )
    return flat.view(heads, batch)


def focal(logits: Tensor, target: Tensor) -> Tensor:
    """(G, B) sigmoid focal loss against one-hot labels, summed over classes, not divided by anything.

    Lin et al. (arXiv 1708.02002) with alpha 0.25 and gamma 2, as V-JEPA 2 trains its EK100 probe.
    """
    # With x = logit where the label is 1 and -logit elsewhere: p_t = sigmoid(x), and the loss -log p_t (1 - p_t)^2.
    hot = functional.one_hot(target, logits.shape[-1]).to(logits.dtype)
    signed = logits * (2 * hot - 1)
    weight = _ALPHA * hot + (1 - _ALPHA) * (1 - hot)
    return -(weight * torch.sigmoid(-signed) ** _GAMMA * functional.logsigmoid(signed)).sum(dim=-1)
