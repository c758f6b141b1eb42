"""Bundle: a folder that is an exported encoder, with its identity, weights, graphs and measured parity.

Making one loads the reference, writes it and its graph, measures, and only then gives the folder its name.
`bundle_files` says what is in it.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coldframe
from coldframe.errors import BundleError, UsageError
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
from coldframe.export.licence import RANDOM_WEIGHTS, Licence, read_licence
from coldframe.export.parity import BUDGETS, measure_parity, over_budget, variant

if TYPE_CHECKING:
    from coldframe.export.levjepa import LeVJEPA

__all__ = ["Bundle", "export_bundle", "open_bundle", "verify_bundle"]

PRECISION = "fp32"


def _silent(stage: str) -> None:
    pass


def export_bundle(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    random_init: int | None = None,
    say: Callable[[str], None] = _silent,
) -> Bundle:
    """Export an encoder to the bundle `out`.

    Args:
        source, random_init: what `load_reference` takes.
        out: folder to make. If it is this very bundle already, it is verified and left as it is.
        say: told the name of each stage as it begins.

    Raises:
        UsageError: the source cannot be loaded, or `out` exists and is something else.
        MissingDependency: `onnx` or `onnxruntime` is not installed.
        BundleError: the graph misses its parity budget, or `out` cannot be written; nothing is left behind.
    """
    # Here, so that a bundle can be opened and served without PyTorch.
    from coldframe.export.checkpoint import load_reference, weights_sha256

    target = Path(out)
    require_text_path(target)
    say("loading the weights")
    model = load_reference(source, random_init=random_init)
    record = _identity(model, weights_sha256(model), _licence(model, Path(source)))
    if os.path.lexists(target):
        return _same_bundle(target, record)
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        _fill(partial, model, record, say)
        partial.rename(target)
    except OSError as error:
        raise BundleError(f"{target} could not be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return open_bundle(target)


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


def _fill(folder: Path, model: "LeVJEPA", record: dict[str, Any], say: Callable[[str], None]) -> None:
    # Here, so that the package can be imported where onnx and onnxruntime are not installed.
    from coldframe.export.checkpoint import save_reference
    from coldframe.export.graph import write_graph
    from coldframe.export.onnx_runtime import OnnxRuntime
    from coldframe.export.torch_runtime import TorchRuntime

    say("writing the weights and the graph")
    save_reference(model, folder)
    graph = folder / graph_file(PRECISION)
    write_graph(model, graph, metadata={key: record[key] for key in ("name", "weights_sha256", "coldframe")})
    say("measuring parity with the PyTorch reference")
    candidate, reference = OnnxRuntime(graph, model.config, precision=PRECISION), TorchRuntime(model)
    measured = measure_parity(reference, candidate, model.config)
    key = variant(candidate.backend, PRECISION)
    misses = over_budget(measured, PRECISION)
    if misses:
        raise BundleError(
            f"{record['name']} as {key} misses its parity budget and is not exported: {'; '.join(misses)}."
        )
    measured["budget"] = asdict(BUDGETS[PRECISION])
    measured["provenance"] = {"candidate": candidate.provenance(), "reference": reference.provenance()}
    (folder / PARITY_FILE).write_text(json.dumps({key: measured}, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    say("hashing the files")
    write_record(folder, record, (PRECISION,))
