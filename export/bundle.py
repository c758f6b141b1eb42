"""Bundle: a folder that is an exported encoder, with its identity, weights, graphs and measured parity.

Making one loads the reference, writes it and its graph, measures, and only then gives the folder its name.
`bundle_files` says what is in it.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coldframe
from coldframe.errors import BundleError, MissingDependency, UsageError
from coldframe.export.bundle_files import (
    BUNDLE_FILE,
    PARITY_FILE,
    Bundle,
    graph_file,
    open_bundle,
    require_text_path,
    verify_bundle,
    write_record,
)
from coldframe.export.families import PACKAGED, PREDICTOR_FILE
from coldframe.export.geometry import Geometry, export_name
from coldframe.export.image_config import Vector
from coldframe.export.licence import RANDOM_WEIGHTS, Licence, read_licence
from coldframe.export.parity import BUDGETS, PREDICTOR, Encode, parity_clips, patch_over_budget
from coldframe.export.revision import read_revision
from coldframe.export.variants import Measured, measure_variants
from coldframe.workplace import workplace

if TYPE_CHECKING:
    from coldframe.export.encoder import Encoder

__all__ = ["Bundle", "export_bundle", "open_bundle", "verify_bundle"]


def _silent(stage: str) -> None:
    pass


def export_bundle(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    random_init: int | None = None,
    frames: int | None = None,
    image_size: tuple[int, int] | None = None,
    layers: tuple[int, ...] = (),
    weights: str | None = None,
    frame_vector: Vector | None = None,
    precisions: Sequence[str] = ("fp32",),
    say: Callable[[str], None] = _silent,
) -> Bundle:
    """Export an encoder to the bundle `out`.

    Args:
        source, random_init, weights, frame_vector: what `load_encoder` takes.
        precisions: arithmetics to offer, `fp32` among them. Each gets a graph of its own and is measured in every
            runtime that is installed and computes in it.
        out: folder to make. If it is this very bundle already, it is verified and left as it is.
        frames, image_size: frames a clip, and height and width in pixels; the released ones where None.
        layers: blocks, counted from 0, whose patch tokens the bundle gives as well, through the final norm.
        say: told the name of each stage as it begins.

    Raises:
        UsageError: the source cannot be loaded, `out` exists and is something else, or an unknown precision.
        MissingDependency: `onnx`, or every runtime that could measure a precision, is not installed.
        BundleError: a precision misses its parity budget in every runtime, or `out` cannot be written; nothing is
            left behind. A variant that misses beside one that does not is recorded, and refused when it is opened.
    """
    # Here, so that a bundle can be opened and served without PyTorch.
    from coldframe.export.checkpoint import weights_sha256
    from coldframe.export.families import load_encoder

    target = Path(out)
    require_text_path(target)
    chosen = check_precisions(precisions)
    say("loading the weights")
    model = load_encoder(source, random_init=random_init, weights=weights, frame_vector=frame_vector)
    geometry = model.config.geometry(frames=frames, image_size=image_size, layers=layers)
    record = _identity(model, geometry, weights_sha256(model))
    record |= _origin(model, Path(source), weights)
    if os.path.lexists(target):
        return _same_bundle(target, {**record, "precisions": list(chosen)})
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with workplace(target, prefix=f".{target.name}.partial-") as partial:
            _fill(partial, model, geometry, record, chosen, say)
            partial.rename(target)
    except OSError as error:
        raise BundleError(f"{target} could not be written: {error}") from error
    return open_bundle(target)


def _origin(model: "Encoder", source: Path, weights: str | None) -> dict[str, Any]:
    """Where the weights come from, and what may be done with them."""
    folder = source.parent if source.is_file() else source
    licence = _licence(model, source, folder)
    return {
        "licence": licence.name,
        "licence_text": licence.text,
        "non_commercial": licence.non_commercial,
        "revision": "" if model.random_init is not None else read_revision(folder),
        "chosen_weights": weights,
    }


def check_precisions(precisions: Sequence[str]) -> tuple[str, ...]:
    """`precisions` once each, in the order of the table of budgets."""
    unknown = [precision for precision in precisions if precision not in BUDGETS]
    if unknown or "fp32" not in precisions:
        raise UsageError(
            f"precisions are {', '.join(precisions)}; allowed are {', '.join(BUDGETS)}, and fp32 must be among them."
        )
    return tuple(precision for precision in BUDGETS if precision in precisions)


def _licence(model: "Encoder", source: Path, folder: Path) -> Licence:
    if model.random_init is not None:
        return Licence(name=RANDOM_WEIGHTS)
    if str(source) == PACKAGED:
        from coldframe.export.efficientnet import packaged_weights

        return packaged_weights()[1]
    return read_licence(folder)


def _identity(model: "Encoder", geometry: Geometry, digest: str) -> dict[str, Any]:
    """What the encoder is. With its origin, everything that makes two exports the same bundle."""
    config = model.config
    return {
        "name": export_name(config.name, geometry, config.geometry()),
        "untrained": model.random_init is not None,
        "random_init": model.random_init,
        "weights_sha256": digest,
        "config": config.to_dict(),
        "geometry": geometry.to_dict(),
        "input": {
            "name": "clips",
            "dtype": "uint8",
            "dims": ["batch", "time", "height", "width", "channel"],
            "channels": "RGB",
            "normalised_by": "the encoder",
            "mean": list(model.pixel_mean),
            "std": list(model.pixel_std),
        },
        "coldframe": coldframe.__version__,
    }


def _same_bundle(target: Path, record: dict[str, Any]) -> Bundle:
    """The bundle at `target` if `record` describes it, verified."""
    if not (target / BUNDLE_FILE).is_file():
        raise UsageError(f"{target} exists and is no bundle. Name a folder that does not exist yet.")
    bundle = open_bundle(target)
    known = json.loads((target / BUNDLE_FILE).read_text(encoding="utf-8"))
    different = [key for key, value in record.items() if known.get(key) != value]
    if different:
        raise UsageError(
            f"{target} is another bundle already (it differs in {', '.join(different)}). "
            "Name another folder, or remove that one."
        )
    verify_bundle(bundle)
    return bundle


def _fill(
    folder: Path,
    model: "Encoder",
    geometry: Geometry,
    record: dict[str, Any],
    precisions: tuple[str, ...],
    say: Callable[[str], None],
) -> None:
    # Here, so that the package can be imported where onnx is not installed.
    from coldframe.export.families import save_encoder, write_encoder_graph
    from coldframe.export.torch_runtime import TorchRuntime

    say("writing the weights and the graphs")
    save_encoder(model, folder)
    metadata = {key: record[key] for key in ("name", "weights_sha256", "coldframe")}
    for precision in precisions:
        write_encoder_graph(
            model, folder / graph_file(precision), geometry=geometry, metadata=metadata, precision=precision
        )
    measured = list(measure_variants(folder, model, geometry, precisions, say))
    for precision in precisions:
        _require_one_within_budget(record["name"], [one for one in measured if one.precision == precision])
    records = {one.key: one.record for one in measured if one.record is not None}
    records |= _predictor_parity(folder, model, geometry, TorchRuntime(model, geometry=geometry))
    (folder / PARITY_FILE).write_text(json.dumps(records, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    say("hashing the files")
    write_record(folder, record, precisions)


def _require_one_within_budget(name: str, variants: Sequence[Measured]) -> None:
    """Refuse a precision that no runtime here computes well enough."""
    tried = [one for one in variants if one.record is not None]
    if any(not one.misses for one in tried):
        return
    if not tried:
        reasons = "; ".join(one.absent for one in variants)
        raise MissingDependency(f"a runtime that could measure {variants[0].precision} ({reasons})", "cpu")
    misses = "; ".join(f"{one.key}: {', '.join(one.misses)}" for one in tried)
    raise BundleError(f"{name} in {tried[0].precision} misses its parity budget and is not exported. {misses}.")


def _predictor_parity(folder: Path, model: "Encoder", geometry: Geometry, encode: Encode) -> dict[str, Any]:
    """The record of the predictor's graph, where the encoder has one."""
    if not (folder / PREDICTOR_FILE).exists():
        return {}
    from coldframe.export.predictor import OnnxPredictor, TorchPredictor, measure_predictor
    from coldframe.export.vjepa2 import VJEPA2

    assert isinstance(model, VJEPA2), type(model)
    candidate = OnnxPredictor(folder / PREDICTOR_FILE, model.config, geometry)
    patch = encode(parity_clips(geometry)["moving"]).patch
    measured = measure_predictor(TorchPredictor(model), candidate, patch)
    misses = patch_over_budget(measured, "fp32")
    if misses:
        raise BundleError(f"the predictor misses its parity budget and is not exported: {'; '.join(misses)}.")
    return {PREDICTOR: {**measured, "budget": asdict(BUDGETS["fp32"])}}
