"""Released V-JEPA 2 probes: their checkpoint layout to a head and back.

A released file is `{"classifiers": [state, ...], ...}` where a state's keys may carry the prefix `module.` of
DistributedDataParallel (facebookresearch/vjepa2@c2963a4, evals/video_classification_frozen/eval.py). Loading is
strict: every tensor is consumed and every shape is equal, because upstream's loader replaces what does not fit by
random weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coldframe.errors import InputNotFound, UsageError
from coldframe.probes.heads import HeadShape
from coldframe.store.text import path_to_text

_PREFIX = "module."


def to_released(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """A checkpoint with the one head `state`, whose tensors lead with no axis of heads."""
    return {"classifiers": [{f"{_PREFIX}{name}": value for name, value in state.items()}]}


def from_released(checkpoint: Mapping[str, Any], shape: HeadShape, head: int = 0) -> dict[str, Tensor]:
    """State of one head of a released checkpoint, float32.

    Args:
        checkpoint: as `torch.load` gives it.
        shape: that the head must have.
        head: position among the checkpoint's heads.

    Raises:
        UsageError: no such head, a missing or unknown tensor, or one of another shape.
    """
    heads = checkpoint.get("classifiers")
    if not isinstance(heads, list) or not 0 <= head < len(heads):
        count = len(heads) if isinstance(heads, list) else 0
        raise UsageError(f"the checkpoint has {count} heads under 'classifiers'; head {head} was asked for.")
    state = {name.removeprefix(_PREFIX): value for name, value in heads[head].items()}
    return strict_state(state, shape)


def strict_state(state: Mapping[str, Tensor], shape: HeadShape) -> dict[str, Tensor]:
    """`state` as float32, after checking that it has exactly the tensors of `shape`.

    Raises:
        UsageError: a missing or unknown tensor, or one of another shape.
    """
    wanted = shape.parameters()
    missing, unknown = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    if missing or unknown:
        raise UsageError(
            f"the head does not fit preset {shape.preset.name}: {len(missing)} tensors are missing "
            f"({', '.join(missing[:3]) or 'none'}) and {len(unknown)} are unknown ({', '.join(unknown[:3]) or 'none'})."
        )
    for name, size in wanted.items():
        if tuple(state[name].shape) != size:
            raise UsageError(f"{name} has shape {tuple(state[name].shape)}; the head needs {size}.")
    return {name: state[name].float() for name in wanted}


def load_released(path: Path, shape: HeadShape, head: int = 0) -> dict[str, Tensor]:
    """`from_released` of a file. Only tensors and plain containers are unpickled.

    Raises:
        InputNotFound: nothing is there.
        UsageError: not a checkpoint, or one that does not fit.
    """
    if not path.is_file():
        raise InputNotFound(f"there is no checkpoint at {path_to_text(path)}.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler and zip reader raise
        raise UsageError(f"{path_to_text(path)} is not a checkpoint of tensors ({type(error).__name__}).") from error
    return from_released(checkpoint, shape, head)
