"""What the encode bench counts, and that it refuses to time an encoder that computes something else."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from coldframe.bench.encode import _require_equal, clip_operations, torch_chain
from coldframe.bench.large_export import measure_export, peak_gb
from coldframe.errors import BundleError
from coldframe.export import SIZES
from coldframe.export.pixels import Clips
from coldframe.export.tokens import Tokens
from tests.export.conftest import TINY


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


def test_chain_of_products_multiplies_up_and_down() -> None:
    """Two products of 4 are two pairs: as many rows and columns come out as went in, and nothing is left out."""
    values = torch_chain(5, 8, 12, dtype=torch.float32, products=4, threads=1)()
    assert isinstance(values, torch.Tensor)
    assert values.shape == (5, 8)
    draws = torch.Generator().manual_seed(0)
    up, down = torch.randn((12, 8), generator=draws) * 0.02, torch.randn((8, 12), generator=draws) * 0.02
    source = torch.randn((5, 8), generator=draws)
    torch.testing.assert_close(values, source @ up.T @ down.T @ up.T @ down.T)


def test_export_and_peaks_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tiny encoder, with one peak: both limits are kept by far, and a peak holds at least the libraries."""
    monkeypatch.setitem(SIZES, "levjepa-nano", TINY)
    monkeypatch.setattr("coldframe.bench.large_export.VARIANTS", (("openvino", "fp32"),))
    results, targets = measure_export("levjepa-nano")
    assert [result.unit for result in results] == ["s", "GB"]
    assert 0.05 < results[1].value < 6
    assert all(target.met for target in targets)
    assert targets[1].value == pytest.approx(6 / results[1].value)


def test_peak_of_a_bundle_that_is_not_there_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        peak_gb(tmp_path / "absent", "openvino", "fp32")
