"""Parity of a runtime on a GPU: measured on that GPU, once, and kept in the bundle.

A bundle is exported on a machine that may have no GPU, so its own `parity.json` cannot speak for one. The
first opening on a kind of GPU measures against the PyTorch reference on the CPU (a minute for a large encoder)
and keeps the record as `engines/<backend>.<precision>.<key>.parity.json`; a later opening reads it. The key is a digest
over the weights, the graph, library, GPU and driver, so a record never speaks for another combination.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any

from coldframe.errors import BundleError
from coldframe.export.bundle_files import Bundle
from coldframe.export.engine import ENGINE_FOLDER, write_whole
from coldframe.export.parity import Encode, measure_parity, over_budget


def require_device_parity(
    bundle: Bundle, candidate: Encode, precision: str, facts: dict[str, str], reference: Callable[[], Encode]
) -> dict[str, Any]:
    """Let `candidate` pass if it is within its budget, measuring it if no record is there.

    Args:
        bundle: the exported encoder.
        candidate: the runtime on the GPU.
        precision: its tier.
        facts: what decides its numbers: backend, library and version, GPU, driver, engine.
        reference: makes the PyTorch reference; called only if it must be measured.

    Returns:
        The parity record.

    Raises:
        BundleError: it misses its budget; the record is kept, so that it is refused at once next time.
    """
    graphs = {name: entry["sha256"] for name, entry in bundle.files.items() if name.endswith((".onnx", ".onnx.data"))}
    facts = {**facts, "precision": precision, "weights_sha256": bundle.weights_sha256, **graphs}
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    path = bundle.path / ENGINE_FOLDER / f"{facts['backend']}.{precision}.{key[:16]}.parity.json"
    record = _read(path, facts) if path.is_file() else None
    if record is None:
        record = measure_parity(reference(), candidate, bundle.geometry)
        try:
            path.parent.mkdir(exist_ok=True)
            # a value that is not finite is over budget, and JSON's own words for it are read back as such
            write_whole(path, json.dumps({"facts": facts, "parity": record}, indent=2).encode())
        except OSError as error:
            raise BundleError(f"the parity measured on this GPU cannot be kept in {bundle.path}: {error}") from error
    misses = over_budget(record, precision)
    if misses:
        raise BundleError(
            f"{bundle.path} as {facts['backend']}/{precision} on this GPU misses its parity budget: "
            f"{'; '.join(misses)}. Use another precision. Measured once, kept in {path.name}."
        )
    return record


def _read(path: Any, facts: dict[str, str]) -> dict[str, Any] | None:
    """The record at `path`; None where it is not whole or not about `facts`, so that it is measured again."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        over_budget(stored["parity"], facts["precision"])
    except (ValueError, KeyError, TypeError):
        return None
    return stored["parity"] if stored["facts"] == facts else None
