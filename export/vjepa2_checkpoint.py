"""V-JEPA 2 weights in and out, strictly: Hugging Face folders, Meta's `.pt` files, and random ones.

A bundle keeps the Hugging Face layout. Pickles are read by `torch.load(weights_only=True)`, which runs no code.
"""

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from coldframe.errors import UsageError
from coldframe.export.checkpoint import (
    check_keys,
    check_tensors,
    random_tensors,
    read_folder,
    write_folder,
)
from coldframe.export.vjepa2 import VJEPA2
from coldframe.export.vjepa2_config import VJEPA2_SIZES, VJEPA2Config

MetaWeights = Literal["encoder", "target_encoder"]
META_WEIGHTS: tuple[MetaWeights, ...] = get_args(MetaWeights)
_META_PREFIXES = ("module.", "backbone.")
_HEADS = {size.hidden_size: size.num_attention_heads for size in VJEPA2_SIZES.values()}
_PARTS = ("query", "key", "value")


def load_vjepa2(folder: Path) -> VJEPA2:
    """Load a folder with `config.json` and `model.safetensors` of `VJEPA2Model`, or a bundle.

    Raises:
        UsageError: it is not exactly that.
    """
    values, state, seed = read_folder(folder)
    config = VJEPA2Config.from_dict(values)
    expected = to_hugging_face(_shapes(config))
    check_keys(expected, state, _diagnosis)
    check_tensors({name: tuple(tensor.shape) for name, tensor in expected.items()}, state)
    model = _filled(config, from_hugging_face(state))
    model.random_init = seed
    return model


def load_meta(path: Path, weights: MetaWeights | None) -> VJEPA2:
    """Load Meta's checkpoint: a dict with `encoder`, `target_encoder` and `predictor`.

    Args:
        path: the `.pt` file.
        weights: which of the two encoders. They are a student and its moving average, and no default would be right:
            Meta's evaluations read `target_encoder`, its hub and the Hugging Face conversion `encoder`.

    Raises:
        UsageError: `weights` is missing, or the file is not exactly that.
    """
    if weights not in META_WEIGHTS:
        raise UsageError(
            f"{path} holds two encoders, and --weights is {weights!r}. Choose --weights target_encoder (what Meta's "
            "evaluations read) or --weights encoder (what its hub and the Hugging Face conversion read)."
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a checkpoint without running code from it: {error}") from error
    if not isinstance(content, Mapping):
        raise UsageError(f"{path} holds a {type(content).__name__}; wanted is a dict with {weights} and predictor.")
    for part in (weights, "predictor"):
        if not isinstance(content.get(part), Mapping):
            raise UsageError(f"{path} has no {part!r}; it has {', '.join(map(str, sorted(content, key=str)))}.")
    encoder = {f"encoder.{name}": tensor for name, tensor in _stripped(content[weights])}
    predictor = {f"predictor.{name}": tensor for name, tensor in _stripped(content["predictor"])}
    state = {**encoder, **_stacked_masks(predictor)}
    config = _meta_config(path, state)
    expected = _shapes(config)
    check_keys(expected, state, _diagnosis)
    check_tensors({name: tuple(tensor.shape) for name, tensor in expected.items()}, state)
    return _filled(config, state)


def random_vjepa2(config: VJEPA2Config, seed: int) -> VJEPA2:
    """Random weights; values depend on seed and name alone."""
    shapes = {name: tuple(tensor.shape) for name, tensor in _shapes(config).items()}
    model = _filled(config, random_tensors(shapes, seed))
    model.random_init = seed
    return model


def save_vjepa2(model: VJEPA2, folder: Path) -> None:
    """Write `config.json` and `model.safetensors` in the Hugging Face layout into `folder`, made if needed."""
    write_folder(folder, model.config.to_dict(), to_hugging_face(model.state_dict()), model.random_init)


def to_hugging_face(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our keys to those of `VJEPA2Model`; the joint projection is cut into query, key and value."""
    renamed = {}
    for name, tensor in state.items():
        new = _swap(name, forward=True)
        if ".attn.qkv." in name:
            for part, third in zip(_PARTS, tensor.chunk(3), strict=True):
                # a copy, because the file format does not allow tensors that share memory
                renamed[new.replace(".attention.qkv.", f".attention.{part}.")] = third.clone()
        else:
            renamed[new] = tensor
    return renamed


def from_hugging_face(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Inverse of `to_hugging_face`."""
    renamed = {}
    for name, tensor in state.items():
        if ".attention.query." in name:
            parts = [state[name.replace(".query.", f".{part}.")] for part in _PARTS]
            renamed[_swap(name.replace(".query.", ".qkv."), forward=False)] = torch.cat(parts)
        elif not any(f".attention.{part}." in name for part in _PARTS):
            renamed[_swap(name, forward=False)] = tensor
    return renamed


# Ours, and Hugging Face's, each the start or a part of a key.
_NAMES = (
    ("encoder.patch_embed.", "encoder.embeddings.patch_embeddings."),
    ("encoder.blocks.", "encoder.layer."),
    ("encoder.norm.", "encoder.layernorm."),
    ("predictor.predictor_embed.", "predictor.embeddings.predictor_embeddings."),
    ("predictor.mask_tokens", "predictor.embeddings.mask_tokens"),
    ("predictor.predictor_blocks.", "predictor.layer."),
    ("predictor.predictor_norm.", "predictor.layernorm."),
    ("predictor.predictor_proj.", "predictor.proj."),
    (".attn.", ".attention."),
)


def _swap(name: str, *, forward: bool) -> str:
    for ours, theirs in _NAMES:
        old, new = (ours, theirs) if forward else (theirs, ours)
        name = new + name.removeprefix(old) if name.startswith(old) else name
        name = name.replace(old, new) if old.startswith(".") else name
    return name


def _shapes(config: VJEPA2Config) -> dict[str, torch.Tensor]:
    """Our state dict without values."""
    with torch.device("meta"):
        return VJEPA2(config).state_dict()


def _filled(config: VJEPA2Config, state: Mapping[str, torch.Tensor]) -> VJEPA2:
    with torch.device("meta"):  # allocates nothing and leaves the global random state alone
        model = VJEPA2(config)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=True, assign=True)
    return model.eval().requires_grad_(False)


def _stripped(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries without the wrappers' prefixes, at the start of a key only."""
    for name, tensor in state.items():
        for prefix in _META_PREFIXES:
            name = name.removeprefix(prefix)
        yield name, tensor


def _stacked_masks(predictor: dict[str, Any]) -> dict[str, Any]:
    """`mask_tokens.0`, `.1`, ... as one tensor; anything irregular stays and is refused by its key."""
    start = "predictor.mask_tokens."
    numbers = sorted(int(name.removeprefix(start)) for name in predictor if name.startswith(start))
    tokens = [predictor[f"{start}{number}"] for number in numbers]
    if not tokens or numbers != list(range(len(numbers))) or len({tuple(token.shape) for token in tokens}) != 1:
        return predictor
    rest = {name: tensor for name, tensor in predictor.items() if not name.startswith(start)}
    return {**rest, "predictor.mask_tokens": torch.stack(tokens)}


def _meta_config(path: Path, state: Mapping[str, Any]) -> VJEPA2Config:
    """The configuration that the shapes tell. Heads are in no shape: they follow from the published sizes.

    Crop size and frames are not in the file either; the released ones are 256 and 64, and an export names its own.
    """
    try:
        kernel = state["encoder.patch_embed.proj.weight"].shape
        inner = state["predictor.predictor_embed.weight"].shape[0]
        hidden = state["encoder.blocks.0.mlp.fc1.weight"].shape[0]
        pred_hidden = state["predictor.predictor_blocks.0.mlp.fc1.weight"].shape[0]
        masks = state["predictor.mask_tokens"].shape[0]
    except KeyError as error:
        raise UsageError(f"{path} is no V-JEPA 2 checkpoint: it lacks {error.args[0]}.") from error
    dim = kernel[0]
    if dim not in _HEADS or inner % 32:
        raise UsageError(
            f"{path} has an encoder of {dim} dims and a predictor of {inner}; published are {sorted(_HEADS)}, and "
            "heads of 32 dims in the predictor. Convert other sizes to the Hugging Face layout, which names its heads."
        )
    return VJEPA2Config(
        hidden_size=dim,
        num_hidden_layers=_blocks(state, "encoder.blocks."),
        num_attention_heads=_HEADS[dim],
        mlp_ratio=_ratio(hidden, dim),
        patch_size=kernel[3],
        tubelet_size=kernel[2],
        pred_hidden_size=inner,
        pred_num_hidden_layers=_blocks(state, "predictor.predictor_blocks."),
        pred_num_attention_heads=inner // 32,
        pred_num_mask_tokens=masks,
        pred_mlp_ratio=_ratio(pred_hidden, inner),
    )


def _blocks(state: Mapping[str, Any], start: str) -> int:
    return len({name.removeprefix(start).split(".")[0] for name in state if name.startswith(start)})


def _ratio(hidden: int, dim: int) -> float:
    """hidden / dim, turned so that `int(dim * ratio)` gives `hidden` back."""
    ratio = hidden / dim
    return ratio if int(dim * ratio) == hidden else (hidden + 0.5) / dim


def _diagnosis(expected: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    if any(name.startswith("vjepa2.") for name in state):
        return "It looks like VJEPA2ForVideoClassification: save its `.vjepa2` with save_pretrained and load that."
    if not any(name.startswith("predictor.") for name in state):
        return "It looks like the encoder alone; the predictor's weights are wanted too."
    return "It looks like a damaged, or another version's, checkpoint: it is not loaded in part."
