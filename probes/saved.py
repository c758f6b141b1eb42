"""Saved probes: one safetensors file with a head and all that says what it may be used on.

The tensors are the head's own: an attentive head keeps the names of released V-JEPA 2 probes. The header's metadata
has one entry, `coldframe`, with a JSON object (`ProbeCard`). A probe predicts on stores of its own recipe only.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import InputNotFound, UsageError
from coldframe.probes.features import FeatureKind, TokenStore
from coldframe.store.recipe import Recipe, canonical_json
from coldframe.store.schema import BASELINE_ARRAYS
from coldframe.store.text import path_to_text

_METADATA_KEY = "coldframe"
FORMAT_VERSION = 1
_LIKELIER_THAN_NOT = 0.5

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class ProbeCard:
    """What a saved probe says about itself.

    Attributes:
        kind: `attentive`, `linear` (logistic) or `ridge`.
        label: video column that it was trained on.
        names: class names; output i is `names[i]`.
        recipe: of the store that it was trained on, all fields.
        geometry: shape of that store's tokens.
        split_digest, split_seed: of the division; its test rows are unseen by this head.
        seed: of the head.
        validation_balanced_accuracy: of this head; None for several labels a video.
        validation_map: likewise, mAP over videos; None for one label a video.
        preset: attentive: every field of the preset as used, and `time` steps with a learned position.
        features: linear and ridge: what was read.
        link, strength: linear: softmax or sigmoid, C.
        penalty: ridge: lambda, per row. Its outputs are scores and no probabilities.
        created_by: program and version.
    """

    kind: Literal["attentive", "linear", "ridge"]
    label: str
    names: tuple[str, ...]
    recipe: dict[str, Any]
    geometry: dict[str, Any]
    split_digest: str
    split_seed: int
    seed: int
    validation_balanced_accuracy: float | None
    created_by: str
    preset: dict[str, Any] = field(default_factory=dict)
    features: FeatureKind = "cls"
    link: str = "softmax"
    strength: float = 0.0
    penalty: float = 0.0
    validation_map: float | None = None
    version: int = FORMAT_VERSION

    @property
    def recipe_id(self) -> str:
        return Recipe.from_dict(self.recipe).recipe_id

    def to_json(self) -> str:
        return canonical_json({**asdict(self), "names": list(self.names), "recipe_id": self.recipe_id})

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        fields.pop("recipe_id")
        return cls(**{**fields, "names": tuple(fields["names"])})

    def require_store(self, store: TokenStore, what: str) -> None:
        """Refuse a store of another recipe or token shape. Baselines count only for a head that reads them.

        Raises:
            RecipeMismatch: the message shows every difference.
            UsageError: the recipes agree and the shapes do not.
        """
        recipe, own = store.recipe, Recipe.from_dict(self.recipe)
        if not self.features.startswith("baseline_"):
            recipe, own = replace(recipe, baselines="none"), replace(own, baselines="none")
        recipe.require_equal(own, what)
        here, there = (
            {name: value for name, value in one.items() if name not in BASELINE_ARRAYS or self.features == name}
            for one in (geometry_dict(store), self.geometry)
        )
        if here != there:
            raise UsageError(f"the tokens are shaped {here} here and {there} in {what}. Use its encoder.")


def geometry_dict(store: TokenStore) -> dict[str, Any]:
    """The store's token geometry as JSON values."""
    return store.geometry.to_dict()


def save_probe(path: Path, card: ProbeCard, tensors: Tensors) -> None:
    """Write a probe, whole or not at all; an existing file is replaced."""
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(value) for name, value in tensors.items()}, {_METADATA_KEY: card.to_json()})
    _write_whole(path, [data])


def require_writable(path: Path) -> None:
    """Refuse a path that cannot become a file, before hours are spent on its content.

    Raises:
        UsageError: its folder does not exist, or it is a folder.
    """
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path_to_text(path.parent)} does not exist. Make it first.")
    if path.is_dir():
        raise UsageError(f"{path_to_text(path)} is a folder. Name a file.")


def require_probe_place(path: Path) -> None:
    """`require_writable` for a probe: a file that is there must be a saved probe, which the new one replaces.

    Raises:
        UsageError: it cannot become a file, or holds something else.
    """
    require_writable(path)
    if path.exists() and not _is_probe(path):
        raise UsageError(f"{path_to_text(path)} is there already and is no saved probe. Choose another name.")


def require_lines_place(path: Path) -> None:
    """`require_writable` for predictions: a file that is there must hold predictions, which the new ones replace.

    Raises:
        UsageError: it cannot become a file, or holds something else.
    """
    require_writable(path)
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            first = file.readline()
        if not first.startswith(b'{"row": '):
            raise UsageError(f"{path_to_text(path)} is there already and holds no predictions. Choose another name.")


def _is_probe(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return _METADATA_KEY in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write text lines, whole or not at all; an existing file is replaced."""
    _write_whole(path, (f"{line}\n".encode() for line in lines))


def _write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.writelines(pieces)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_probe(path: Path) -> tuple[ProbeCard, dict[str, NDArray[Any]]]:
    """Card and tensors of a saved probe.

    Raises:
        InputNotFound: nothing is there.
        UsageError: something else is there, or a version that this program does not know.
    """
    from safetensors import SafetensorError, safe_open

    shown = path_to_text(path)
    if not path.is_file():
        raise InputNotFound(f"there is no saved probe at {shown}. Write one with: coldframe-probe linear --save")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_METADATA_KEY)
            if text is None:
                raise UsageError(f"{shown} is a safetensors file without a probe's card; it was not saved here.")
            version = json.loads(text).get("version")
            if version != FORMAT_VERSION:
                raise UsageError(f"{shown} has probe format {version!r}; this program reads {FORMAT_VERSION}.")
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except SafetensorError as error:
        raise UsageError(f"{shown} is not a saved probe ({error}).") from error
    return ProbeCard.from_json(text), tensors


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a probe says about one row.

    Attributes:
        row: of the store.
        values: (classes,) in the order of the card's names: probabilities, or the scores of a ridge head.
    """

    row: int
    values: NDArray[np.float64]


def prediction_lines(store: TokenStore, card: ProbeCard, predictions: Iterator[Prediction]) -> Iterator[str]:
    """One JSON object a row, in the order of `predictions`."""
    paths = store.video_column("path")
    video, start, end = (store.column(name) for name in ("video", "clip_start_s", "clip_end_s"))
    one_value, all_values = ("score", "scores") if card.kind == "ridge" else ("probability", "probabilities")
    for one in predictions:
        best = int(one.values.argmax())
        # several labels a video: each is a question of its own
        several = [name for name, p in zip(card.names, one.values, strict=True) if p >= _LIKELIER_THAN_NOT]
        yield json.dumps(
            {
                "row": one.row,
                "path": str(paths[int(video[one.row])]),
                "start_s": float(start[one.row]),
                "end_s": float(end[one.row]),
                "label": card.names[best],
                **({"labels": several} if card.kind == "linear" and card.link == "sigmoid" else {}),
                one_value: round(float(one.values[best]), 6),
                all_values: {name: round(float(p), 6) for name, p in zip(card.names, one.values, strict=True)},
            },
            allow_nan=False,
        )
