"""What the encode bench counts, and that it refuses to time an encoder that computes something else."""

import numpy as np
import pytest

from coldframe.bench.encode import _require_equal, clip_operations
from coldframe.errors import BundleError
from coldframe.export import SIZES
from coldframe.export.pixels import Clips
from coldframe.export.tokens import Tokens


def test_large_needs_2_41_tera_operations() -> None:
    assert clip_operations(SIZES["levjepa-large"]) == pytest.approx(2.41e12, rel=0.005)


def test_other_tokens_are_not_timed() -> None:
    def encode(clips: Clips, shift: float = 0.0) -> Tokens:
        patch = np.random.default_rng(0).normal(size=(1, 2, 2, 2, 8)).astype(np.float32)
        return Tokens(cls=np.ones((1, 8), np.float32), patch=patch + np.float32(shift))

    clip = np.zeros((1, 2, 32, 32, 3), np.uint8)
    _require_equal({"reference": (encode, "fp32"), "same": (encode, "bf16")}, clip)
    with pytest.raises(BundleError, match="other gives other tokens than PyTorch"):
        _require_equal({"reference": (encode, "fp32"), "other": (lambda clips: encode(clips, 1.0), "bf16")}, clip)
