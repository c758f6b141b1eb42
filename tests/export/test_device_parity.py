"""Parity on a GPU is measured once a combination, kept, and binding."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldframe.errors import BundleError
from coldframe.export import Bundle, Tokens, export_bundle, save_reference
from coldframe.export.device_parity import require_device_parity
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.parity import Encode
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, lively_model

FACTS = {"backend": "torch", "runtime": "torch 2.13", "gpu": "NVIDIA H200", "driver": "580.65"}


@pytest.fixture(scope="module")
def shared(tiny_model: LeVJEPA, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("device")
    save_reference(tiny_model, root / "source")
    return export_bundle(root / "source", root / "bundle")


@pytest.fixture
def bundle(shared: Bundle, tmp_path: Path) -> Bundle:
    return replace(shared, path=tmp_path)


class Counted:
    """An encoder that counts its clips."""

    def __init__(self, model: LeVJEPA) -> None:
        self.runtime = TorchRuntime(model)
        self.calls = 0

    def __call__(self, clips: Any) -> Tokens:
        self.calls += 1
        return self.runtime(clips)


def never() -> Encode:
    raise AssertionError("the reference was made again")


def records(bundle: Bundle) -> list[Path]:
    return sorted((bundle.path / "engines").glob("*.parity.json"))


def test_first_opening_measures_and_later_ones_read(bundle: Bundle, tiny_model: LeVJEPA) -> None:
    candidate = Counted(tiny_model)
    record = require_device_parity(bundle, candidate, "fp32", FACTS, lambda: TorchRuntime(tiny_model))
    assert record["cls_cosine"] >= 0.99999
    calls = candidate.calls
    assert calls > 0
    assert require_device_parity(bundle, candidate, "fp32", FACTS, never) == record
    assert candidate.calls == calls
    (path,) = records(bundle)
    assert json.loads(path.read_text())["facts"].items() >= {**FACTS, "weights_sha256": bundle.weights_sha256}.items()


@pytest.mark.parametrize(
    "change", [{"runtime": "torch 2.14"}, {"gpu": "NVIDIA L4"}, {"driver": "581"}, {"backend": "tensorrt"}]
)
def test_a_record_never_speaks_for_another_combination(
    bundle: Bundle, tiny_model: LeVJEPA, change: dict[str, str]
) -> None:
    require_device_parity(bundle, Counted(tiny_model), "fp32", FACTS, lambda: TorchRuntime(tiny_model))
    with pytest.raises(AssertionError, match="the reference was made again"):
        require_device_parity(bundle, Counted(tiny_model), "fp32", FACTS | change, never)
    other = replace(bundle, weights_sha256="7" * 64)
    with pytest.raises(AssertionError, match="the reference was made again"):
        require_device_parity(other, Counted(tiny_model), "fp32", FACTS, never)


def test_over_budget_is_refused_now_and_later(bundle: Bundle, tiny_model: LeVJEPA) -> None:
    wrong = Counted(lively_model(TINY, seed=9))
    for reference in (lambda: TorchRuntime(tiny_model), never):
        with pytest.raises(BundleError, match="as torch/fp32 on this GPU misses its parity budget: cls_cosine"):
            require_device_parity(bundle, wrong, "fp32", FACTS, reference)


def test_not_finite_is_over_budget_now_and_later(bundle: Bundle, tiny_model: LeVJEPA) -> None:
    def broken(clips: Any) -> Tokens:
        tokens = TorchRuntime(tiny_model)(clips)
        return Tokens(cls=np.full_like(tokens.cls, np.nan), patch=tokens.patch)

    for reference in (lambda: TorchRuntime(tiny_model), never):
        with pytest.raises(BundleError, match="cls_cosine is nan"):
            require_device_parity(bundle, broken, "fp32", FACTS, reference)


@pytest.mark.parametrize("damage", ["[", "{}", '{"facts": {}, "parity": {}}'])
def test_damaged_record_is_measured_again(bundle: Bundle, tiny_model: LeVJEPA, damage: str) -> None:
    candidate = Counted(tiny_model)
    good = require_device_parity(bundle, candidate, "fp32", FACTS, lambda: TorchRuntime(tiny_model))
    records(bundle)[0].write_text(damage)
    assert require_device_parity(bundle, candidate, "fp32", FACTS, lambda: TorchRuntime(tiny_model)) == good
    assert require_device_parity(bundle, candidate, "fp32", FACTS, never) == good


def test_folder_that_cannot_be_written_is_an_error(bundle: Bundle, tiny_model: LeVJEPA) -> None:
    (bundle.path / "engines").write_text("a file in the folder's place")
    with pytest.raises(BundleError, match="cannot be kept"):
        require_device_parity(bundle, Counted(tiny_model), "fp32", FACTS, lambda: TorchRuntime(tiny_model))
