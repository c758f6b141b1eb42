"""A test that needs a GPU cannot pass without one, and cannot be skipped where one was promised."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GPU_TESTS = ["tests/export/test_torch_cuda.py", "tests/export/test_tensorrt_runtime.py"]


def run_gpu_tests(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *GPU_TESTS]
    # an empty list of visible devices, so that this holds on a machine with a GPU too
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    hidden.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("promised", "outcome", "code"), [("", "skipped", 0), ("1", "errors", 1)])
def test_gpu_tests_skip_or_fail_but_never_pass_without_a_gpu(promised: str, outcome: str, code: int) -> None:
    run = run_gpu_tests(FAIL_WITHOUT_GPU=promised)
    assert run.returncode == code, run.stdout + run.stderr
    last = run.stdout.strip().splitlines()[-1]
    assert outcome in last
    assert "passed" not in last
    assert "PyTorch sees none here" in run.stdout
