"""Predictor: the admission of V-JEPA 2's predictor in a bundle, as `runtime` is of encoders."""

import os
from typing import Any

from coldframe.errors import BundleError, UsageError
from coldframe.export.bundle_files import Bundle, check_digests, open_bundle
from coldframe.export.families import PREDICTOR_FILE
from coldframe.export.parity import PREDICTOR, patch_over_budget
from coldframe.export.predictor import OnnxPredictor
from coldframe.export.vjepa2_config import VJEPA2Config


def open_predictor(bundle: Bundle | str | os.PathLike[str], *, threads: int | None = None) -> OnnxPredictor:
    """Open the predictor of `bundle` on the CPU, after checking its digests and its measured parity.

    Raises:
        UsageError: the encoder has no predictor.
        BundleError: the bundle is damaged, or the predictor's parity is over budget.
    """
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    config = opened.config
    if not isinstance(config, VJEPA2Config):
        raise UsageError(f"{opened.name} has no predictor; V-JEPA 2 has one. Export vjepa2 weights.")
    record: Any = opened.parity.get(PREDICTOR)
    if record is None:
        raise BundleError(f"{opened.path} has no parity record for its predictor. Export it again.")
    misses = patch_over_budget(record, "fp32")
    if misses:
        raise BundleError(f"{opened.path}: the predictor misses its parity budget: {'; '.join(misses)}.")
    check_digests(opened, (PREDICTOR_FILE, f"{PREDICTOR_FILE}.data"))
    return OnnxPredictor(opened.path / PREDICTOR_FILE, config, opened.geometry, threads=threads)
