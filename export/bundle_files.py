"""A bundle on disk: what its folder holds, and how it is opened and checked. `bundle` makes one.

```
bundle.json             identity, geometry, input contract, licence, and size and sha256 of every other file
config.json             } the reference checkpoint in the released layout
model.safetensors       }
encoder.fp32.onnx       } the graph and its weights
encoder.fp32.onnx.data  }
predictor.fp32.onnx     } V-JEPA 2 alone: the predictor's graph and its weights
predictor.fp32.onnx.data}
parity.json             one record a variant, keyed `<runtime>/<precision>`, and the predictor's under `predictor`
```

A bundle is written beside its target and renamed whole, so that a folder with `bundle.json` is complete.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coldframe.errors import BundleError, InputNotFound, UsageError
from coldframe.export.families import PREDICTOR_FILE, Config, has_predictor, read_encoder_config
from coldframe.export.geometry import Geometry

FORMAT_VERSION = 1
BUNDLE_FILE = "bundle.json"
PARITY_FILE = "parity.json"
REFERENCE_FILES = ("config.json", "model.safetensors")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An exported encoder on disk.

    Attributes:
        path: its folder.
        name: name of the encoder, such as `levjepa-large`.
        untrained, random_init: whether the weights are random, and the seed they come from.
        weights_sha256: digest over every weight tensor (`checkpoint.weights_sha256`).
        config: shape of the encoder as released.
        geometry: what this export takes and gives; its sizes may differ from the released ones.
        revision: commit of the repository that the weights came from; empty where the source did not say.
        licence, licence_text, non_commercial: what the source says (`licence.Licence`).
        precisions: precisions that a graph is there for.
        parity: measured records by variant (`parity.variant`).
        files: size in bytes and sha256 of every file but `bundle.json`.
    """

    path: Path
    name: str
    untrained: bool
    random_init: int | None
    weights_sha256: str
    config: Config
    geometry: Geometry
    revision: str
    licence: str
    licence_text: str = field(repr=False)
    non_commercial: bool
    precisions: tuple[str, ...]
    parity: dict[str, Any] = field(repr=False)
    files: dict[str, dict[str, Any]] = field(repr=False)

    @property
    def dim(self) -> int:
        return self.geometry.dim

    @property
    def frames(self) -> int:
        return self.geometry.frames

    @property
    def rows(self) -> int:
        return self.geometry.rows

    @property
    def cols(self) -> int:
        return self.geometry.cols

    @property
    def image_size(self) -> int | tuple[int, int]:
        """Side of the square input in pixels, or its height and width."""
        return self.geometry.image_size

    @property
    def attention(self) -> str:
        return self.geometry.attention

    def graph(self, precision: str) -> Path:
        """Path of the graph in `precision`, which is one of `precisions`."""
        return self.path / graph_file(precision)


def graph_file(precision: str) -> str:
    return f"encoder.{precision}.onnx"


def bundle_files(precisions: Iterable[str], *, predictor: bool = False) -> list[str]:
    """Names of all the files of a bundle but `bundle.json`."""
    graphs = [graph_file(precision) for precision in precisions] + [PREDICTOR_FILE] * predictor
    return sorted([*REFERENCE_FILES, PARITY_FILE, *graphs, *(f"{graph}.data" for graph in graphs)])


def open_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Open a bundle, checking its format, its record and that every file is there in its size.

    Small files are checked by digest too; `verify_bundle` does so for all.

    Raises:
        InputNotFound: `path` does not exist.
        UsageError: it is no bundle.
        BundleError: it is one of another format version, incomplete or altered.
    """
    folder = Path(path)
    require_text_path(folder)
    if not folder.exists():
        raise InputNotFound(f"{folder} does not exist. Make a bundle with: coldframe export SOURCE --out {folder}")
    if not (folder / BUNDLE_FILE).is_file():
        raise UsageError(f"{folder} has no {BUNDLE_FILE}. Make one with: coldframe export SOURCE --out DIR")
    record = _read_record(folder)
    try:
        bundle = _from_record(folder, record)
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise BundleError(f"{folder / BUNDLE_FILE} is not as format {FORMAT_VERSION} says: {error}") from error
    wanted = bundle_files(bundle.precisions, predictor=has_predictor(bundle.config))
    if sorted(bundle.files) != wanted:
        raise BundleError(f"{folder / BUNDLE_FILE} lists {sorted(bundle.files)}; wanted are {wanted}.")
    for name, facts in bundle.files.items():
        _check_size(folder / name, facts["bytes"])
    check_digests(bundle, [name for name in bundle.files if name.endswith(".json")])
    if read_encoder_config(_read_json(folder / "config.json")) != bundle.config:
        raise BundleError(f"{folder}: config.json and {BUNDLE_FILE} describe different encoders. Export it again.")
    bundle.parity.update(_read_json(folder / PARITY_FILE))
    return bundle


def require_text_path(path: Path) -> None:
    """Raise UsageError if the bundle at `path` could not be read by ONNX, which takes UTF-8 names only."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{path} is not valid UTF-8, so ONNX cannot open it. Name another folder.") from error


def verify_bundle(bundle: Bundle) -> None:
    """Read every file again and compare its digest with the record.

    Raises:
        BundleError: a file is missing or altered.
    """
    check_digests(bundle, bundle.files)


def check_digests(bundle: Bundle, names: Iterable[str]) -> None:
    """Compare the digests of the files `names` of `bundle` with its record; see `verify_bundle`."""
    for name in names:
        path = bundle.path / name
        facts = bundle.files[name]
        _check_size(path, facts["bytes"])
        found = file_sha256(path)
        if found != facts["sha256"]:
            raise BundleError(f"{path} was altered: its sha256 is {found}, not {facts['sha256']}. Export it again.")


def write_record(folder: Path, record: dict[str, Any], precisions: tuple[str, ...]) -> None:
    """Write `bundle.json`: `record`, the facts of all other files, and a digest over both. Comes last."""
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": file_sha256(folder / name)}
        for name in bundle_files(precisions, predictor=(folder / PREDICTOR_FILE).exists())
    }
    body = {"format": FORMAT_VERSION, **record, "precisions": list(precisions), "files": files}
    body["record_sha256"] = _record_sha256(body)
    (folder / BUNDLE_FILE).write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BundleError(f"{path} is no JSON: {error}. Export the bundle again.") from error
    if not isinstance(value, dict):
        raise BundleError(f"{path} holds no JSON object. Export the bundle again.")
    return value


def _read_record(folder: Path) -> dict[str, Any]:
    record = _read_json(folder / BUNDLE_FILE)
    version = record.get("format")
    if version != FORMAT_VERSION:
        raise BundleError(
            f"{folder} has bundle format {version!r}; this Coldframe reads {FORMAT_VERSION}. Export it again."
        )
    if record.get("record_sha256") != _record_sha256(record):
        raise BundleError(f"{folder / BUNDLE_FILE} was altered: it does not match its own digest. Export it again.")
    return record


def _record_sha256(record: dict[str, Any]) -> str:
    body = {key: value for key, value in record.items() if key != "record_sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise BundleError(f"{path.parent} is incomplete: {path.name} is missing. Export it again.")
    found = path.stat().st_size
    if found != size:
        raise BundleError(
            f"{path} has {found} bytes, the bundle says {size}: it is cut short or altered. Export it again."
        )


def _from_record(folder: Path, record: dict[str, Any]) -> Bundle:
    config = read_encoder_config(record["config"])
    return Bundle(
        path=folder,
        name=record["name"],
        untrained=record["untrained"],
        random_init=record["random_init"],
        weights_sha256=record["weights_sha256"],
        config=config,
        geometry=Geometry.from_dict(record["geometry"]),
        revision=record["revision"],
        licence=record["licence"],
        licence_text=record["licence_text"],
        non_commercial=record["non_commercial"],
        precisions=tuple(record["precisions"]),
        parity={},
        files={name: {"bytes": facts["bytes"], "sha256": facts["sha256"]} for name, facts in record["files"].items()},
    )
