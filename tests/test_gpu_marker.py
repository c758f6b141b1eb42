"""A test that needs a GPU cannot pass without one, and cannot be skipped where one was promised."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import pytest_runtest_setup

ROOT = Path(__file__).parents[1]


def item(*markers: str) -> Any:
    return SimpleNamespace(get_closest_marker=lambda name: name if name in markers else None)


@pytest.mark.parametrize("promised", ["", "0", "1"])
def test_gpu_tests_skip_without_a_gpu_or_fail_where_one_was_promised(
    promised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("FAIL_WITHOUT_GPU", promised)
    outcome = pytest.fail.Exception if promised == "1" else pytest.skip.Exception
    with pytest.raises(outcome, match="PyTorch sees none here"):
        pytest_runtest_setup(item("gpu"))
    pytest_runtest_setup(item())  # others run anyway


def test_gpu_tests_run_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    pytest_runtest_setup(item("gpu"))


def test_a_promised_gpu_that_is_not_there_fails_the_run() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    # an empty list of visible devices, so that this holds on a machine with a GPU too
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "FAIL_WITHOUT_GPU": "1"}
    run = subprocess.run(
        [*command, "tests/export/test_torch_cuda.py"], cwd=ROOT, env=hidden, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "4 errors" in run.stdout.splitlines()[-1]
    assert "FAIL_WITHOUT_GPU=1 forbids skipping" in run.stdout
