"""Weights in and out, strictly: every tensor is consumed and every parameter filled, or nothing is loaded.

The layout is the released one: a folder with `config.json` and `model.safetensors`. Pickled checkpoints are
not read, and no code that comes with a checkpoint is run.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from coldframe.errors import InputNotFound, UsageError
from coldframe.export.config import SIZES, LeVJEPAConfig
from coldframe.export.levjepa import LeVJEPA

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INIT_STD = 0.02

_SEED_KEY = "coldframe.random_init"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)  # each widens to float32 without loss


def load_reference(source: str | os.PathLike[str], *, random_init: int | None = None) -> LeVJEPA:
    """Load the PyTorch reference in float32, in eval mode and without gradients.

    Args:
        source: a folder with `config.json` and `model.safetensors`, or a size name such as `levjepa-nano`.
        random_init: seed of random weights; needed with a size name, refused with a folder.

    Raises:
        InputNotFound: `source` does not exist.
        UsageError: source and seed do not go together, or the checkpoint is not exactly a LeVJEPA.
    """
    name = os.fspath(source)
    if random_init is not None:
        return _random_reference(name, random_init)
    folder = Path(name)
    if folder.is_dir():
        return _load_folder(folder)
    if name in SIZES:
        raise UsageError(
            f"{name} is a size, and Coldframe ships no weights. "
            f"Give a folder with {CONFIG_FILE} and {WEIGHTS_FILE}, "
            "or ask for untrained weights with --random-init SEED."
        )
    if folder.exists():
        raise UsageError(f"{name} is a file; give the folder that holds {CONFIG_FILE} and {WEIGHTS_FILE}.")
    raise InputNotFound(f"{name} does not exist and is no size name ({', '.join(SIZES)}).")


def load_state(config: LeVJEPAConfig, state: Mapping[str, Any]) -> LeVJEPA:
    """Make a model from a state dict with the released keys; see `load_reference` for what is refused."""
    with torch.device("meta"):  # allocates nothing and leaves the global random state alone
        model = LeVJEPA(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    check_keys(expected, state, _diagnosis)
    check_tensors(expected, state)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=True, assign=True)
    return model.eval().requires_grad_(False)


def save_reference(model: LeVJEPA, folder: str | os.PathLike[str]) -> None:
    """Write `config.json` and `model.safetensors` in the released layout into `folder`, made if needed.

    The seed of random weights is kept in the weights file's metadata, so that they stay known as untrained.
    """
    write_folder(Path(folder), model.config.to_dict(), model.state_dict(), model.random_init)


def write_folder(
    target: Path, config: Mapping[str, Any], state: Mapping[str, torch.Tensor], random_init: int | None
) -> None:
    """Write `config` and `state` as a checkpoint folder, made if needed."""
    target.mkdir(parents=True, exist_ok=True)
    (target / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    metadata = {"format": "pt"}
    if random_init is not None:
        metadata[_SEED_KEY] = str(random_init)
    try:
        save_file(
            {name: tensor.contiguous() for name, tensor in state.items()}, target / WEIGHTS_FILE, metadata=metadata
        )
    except SafetensorError as error:  # its form of a full disk or a missing right
        raise OSError(f"{target / WEIGHTS_FILE}: {error}") from error
    # The library makes the file readable by its owner alone; it is to be as readable as its neighbour.
    (target / WEIGHTS_FILE).chmod((target / CONFIG_FILE).stat().st_mode)


def weights_sha256(model: torch.nn.Module) -> str:
    """sha256 in hexadecimal over name, dtype, shape and bytes of all that a checkpoint of `model` holds, by name."""
    digest = hashlib.sha256()
    tensors = model.state_dict()  # not tables that a model computes when it is built: they may round as machines do
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        shape = ",".join(map(str, tensor.shape))
        digest.update(f"{name}|{str(tensor.dtype).removeprefix('torch.')}|{shape}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _random_reference(name: str, seed: int) -> LeVJEPA:
    if name not in SIZES:
        raise UsageError(
            f"random weights were asked for, but {name} is no size name. Allowed are {', '.join(SIZES)}; "
            "for a folder with weights leave --random-init out."
        )
    if not 0 <= seed < 2**63:
        raise UsageError(f"the seed of random weights is {seed}; allowed is 0 to 2**63 - 1.")
    return load_random(SIZES[name], seed)


def load_random(config: LeVJEPAConfig, seed: int) -> LeVJEPA:
    """A model of any shape with untrained weights from `seed`."""
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in LeVJEPA(config).state_dict().items()}
    model = load_state(config, random_tensors(shapes, seed))
    model.random_init = seed
    return model


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    """Random weights of the given shapes, by name."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"the seed of random weights is {seed}; allowed is 0 to 2**63 - 1.")
    return {key: _random_tensor(key, shape, seed) for key, shape in shapes.items()}


def _random_tensor(key: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Normal of sd 0.02 cut at two sd, by redrawing; norms start as the identity and biases at 0.

    Each tensor has a stream of its own, so values depend on seed and name alone.
    """
    norm = ".norm" in key or "_norm." in key
    if norm or key.endswith(".bias"):
        return torch.full(shape, float(norm and key.endswith(".weight")))
    stream = np.random.default_rng([seed, zlib.crc32(key.encode())])
    values: NDArray[np.float32] = stream.standard_normal(shape, dtype=np.float32)
    while len(outside := np.flatnonzero(np.abs(values) > 2)):
        values.reshape(-1)[outside] = stream.standard_normal(len(outside), dtype=np.float32)
    values *= np.float32(INIT_STD)
    return torch.from_numpy(values)


def _load_folder(folder: Path) -> LeVJEPA:
    values, state, seed = read_folder(folder)
    model = load_state(LeVJEPAConfig.from_dict(values), state)
    model.random_init = seed
    return model


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a checkpoint folder."""
    if not (folder / CONFIG_FILE).is_file():
        raise UsageError(
            f"{folder} has no {CONFIG_FILE}. Wanted is a folder with {CONFIG_FILE} and {WEIGHTS_FILE} "
            "as released; pickled and sharded checkpoints are not read."
        )
    try:
        values = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{folder} cannot be read as a checkpoint: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{folder / CONFIG_FILE} holds no JSON object.")
    return values


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], int | None]:
    """A checkpoint folder: configuration, tensors, and the seed of random weights or None."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise UsageError(
                f"{folder} has no {name}. Wanted is a folder with {CONFIG_FILE} and {WEIGHTS_FILE} "
                "as released; pickled and sharded checkpoints are not read."
            )
    values = read_config(folder)
    try:
        with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except (ValueError, SafetensorError) as error:
        raise UsageError(f"{folder} cannot be read as a checkpoint: {error}") from error
    return values, state, int(metadata[_SEED_KEY]) if _SEED_KEY in metadata else None


Diagnosis = Callable[[Mapping[str, Any], Mapping[str, Any]], str]


def check_keys(expected: Mapping[str, Any], state: Mapping[str, Any], diagnosis: Diagnosis) -> None:
    """Refuse a state dict with other keys than `expected`; `diagnosis` says what such keys look like."""
    missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if not missing and not unexpected:
        return
    parts = [f"{len(state)} keys given, {len(expected)} wanted"]
    if missing:
        parts.append(f"{len(missing)} missing ({_some(missing)})")
    if unexpected:
        parts.append(f"{len(unexpected)} unexpected ({_some(unexpected)})")
    raise UsageError(f"The weights do not fit the configuration: {', '.join(parts)}. {diagnosis(expected, state)}")


def check_tensors(expected: Mapping[str, tuple[int, ...]], state: Mapping[str, Any]) -> None:
    """Refuse values that are no finite float tensors of the expected shapes."""
    wrong = []
    for name, shape in expected.items():
        tensor = state[name]
        if not isinstance(tensor, torch.Tensor):
            wrong.append(f"{name} is a {type(tensor).__name__}, wanted a tensor")
        elif tuple(tensor.shape) != shape:
            wrong.append(f"{name} is {tuple(tensor.shape)}, wanted {shape}")
        elif tensor.dtype not in _FLOATS:
            wrong.append(f"{name} is {tensor.dtype}, wanted float32, float16 or bfloat16")
        elif not torch.isfinite(tensor).all():
            wrong.append(f"{name} holds inf or nan")
    if wrong:
        raise UsageError(f"{len(wrong)} of {len(expected)} tensors do not fit the configuration: {_some(wrong, '; ')}.")


def _some(names: list[str], separator: str = ", ") -> str:
    rest = f"{separator}and {len(names) - 4} more" if len(names) > 4 else ""
    return separator.join(names[:4]) + rest


def _diagnosis(expected: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """What such a set of keys looks like, and what to do."""
    for key, value in state.items():
        if isinstance(value, Mapping):
            return f"It looks like a state dict wrapped under {key!r}: pass the inner one."
    anchor = "encoder.cls_token"
    for key in state:
        if key.endswith("." + anchor):
            prefix = key.removesuffix(anchor)
            whole = {name.removeprefix(prefix) for name in state} == expected.keys()
            rest = "all" if whole else "some"
            return f"It looks like a wrapped model: {rest} keys fit once the prefix {prefix!r} is removed."
    if "cls_token" in state:
        return "It looks like the inner encoder alone: each key needs the prefix 'encoder.'."
    blocks = {_block(name) for name in expected} - {None}
    given = {_block(name) for name in state} - {None}
    if given and given != blocks:
        return (
            f"It looks like a model of {len(given)} blocks where the configuration has {len(blocks)} "
            f"(missing blocks: {sorted(blocks - given, key=str) or 'none'}; "
            f"further blocks: {sorted(given - blocks, key=str) or 'none'})."
        )
    if not state.keys() & expected.keys():
        return "It looks like another model: no key is known."
    return "It looks like a damaged, or another version's, checkpoint: it is not loaded in part."


def _block(name: str) -> int | None:
    parts = name.split(".")
    if len(parts) > 2 and parts[:2] == ["encoder", "blocks"] and parts[2].isdigit():
        return int(parts[2])
    return None
