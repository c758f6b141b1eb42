"""Bundle: a folder that is an exported encoder, with its identity, weights, graphs and measured parity.

Making one loads the reference, writes it and its graph, measures, and only then gives the folder its name.
`bundle_files` says what is in it.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
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
    verify_bundle,
    write_record,
)
from coldframe.export.licence import RANDOM_WEIGHTS, Licence, read_licence
from coldframe.export.parity import BUDGETS
from coldframe.export.variants import Measured, measure_variants

if TYPE_CHECKING:
    from coldframe.export.levjepa import LeVJEPA

__all__ = ["Bundle", "export_bundle", "open_bundle", "verify_bundle"]


def _silent(stage: str) -> None:
    pass


def export_bundle(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    random_init: int | None = None,
    precisions: Sequence[str] = ("fp32",),
    say: Callable[[str], None] = _silent,
) -> Bundle:
    """Export an encoder to the bundle `out`.

    Args:
        source, random_init: what `load_reference` takes.
        precisions: arithmetics to offer, `fp32` among them. Each gets a graph of its own and is measured in every
            runtime that is installed and computes in it.
        out: folder to make. If it is this very bundle already, it is verified and left as it is.
        say: told the name of each stage as it begins.

    Raises:
        UsageError: the source cannot be loaded, `out` exists and is something else, or an unknown precision.
        MissingDependency: `onnx`, or every runtime that could measure a precision, is not installed.
        BundleError: a precision misses its parity budget in every runtime, or `out` cannot be written; nothing is
            left behind. A variant that misses beside one that does not is recorded, and refused when it is opened.
    """
    # Here, so that a bundle can be opened and served without PyTorch.
    from coldframe.export.checkpoint import load_reference, weights_sha256

    target = Path(out)
    chosen = check_precisions(precisions)
    say("loading the weights")
    model = load_reference(source, random_init=random_init)
    record = _identity(model, weights_sha256(model), _licence(model, Path(source)))
    if os.path.lexists(target):
        return _same_bundle(target, {**record, "precisions": list(chosen)})
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        _fill(partial, model, record, chosen, say)
        partial.rename(target)
    except OSError as error:
        raise BundleError(f"{target} could not be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return open_bundle(target)


def check_precisions(precisions: Sequence[str]) -> tuple[str, ...]:
    """`precisions` once each, in the order of the table of budgets."""
    unknown = [precision for precision in precisions if precision not in BUDGETS]
    if unknown or "fp32" not in precisions:
        raise UsageError(
            f"precisions are {', '.join(precisions)}; allowed are {', '.join(BUDGETS)}, and fp32 must be among them."
        )
    return tuple(precision for precision in BUDGETS if precision in precisions)


def _licence(model: "LeVJEPA", source: Path) -> Licence:
    return Licence(name=RANDOM_WEIGHTS) if model.random_init is not None else read_licence(source)


def _identity(model: "LeVJEPA", digest: str, licence: Licence) -> dict[str, Any]:
    """Everything that makes two exports the same bundle."""
    config = model.config
    return {
        "name": config.name,
        "untrained": model.random_init is not None,
        "random_init": model.random_init,
        "weights_sha256": digest,
        "config": config.to_dict(),
        "geometry": {
            "dim": config.embed_dim,
            "frames": config.num_frames,
            "rows": config.grid,
            "cols": config.grid,
        },
        "attention": config.attn_mode,
        "image_size": config.img_size,
        "input": {
            "name": "clips",
            "dtype": "uint8",
            "dims": ["batch", "time", "height", "width", "channel"],
            "channels": "RGB",
            "normalised_by": "the encoder (ImageNet mean and standard deviation)",
        },
        "licence": licence.name,
        "licence_text": licence.text,
        "non_commercial": licence.non_commercial,
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
    folder: Path, model: "LeVJEPA", record: dict[str, Any], precisions: tuple[str, ...], say: Callable[[str], None]
) -> None:
    # Here, so that the package can be imported where onnx is not installed.
    from coldframe.export.checkpoint import save_reference
    from coldframe.export.graph import write_graph

    say("writing the weights and the graphs")
    save_reference(model, folder)
    metadata = {key: record[key] for key in ("name", "weights_sha256", "coldframe")}
    for precision in precisions:
        write_graph(model, folder / graph_file(precision), metadata=metadata, precision=precision)
    measured = list(measure_variants(folder, model, precisions, say))
    for precision in precisions:
        _require_one_within_budget(record["name"], [one for one in measured if one.precision == precision])
    records = {one.key: one.record for one in measured if one.record is not None}
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
