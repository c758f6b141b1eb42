"""Tests that need a GPU: skipped where there is none, unless FAIL_WITHOUT_GPU=1 says that there must be one."""

import os

import pytest
import torch

NO_GPU = "needs a GPU, and PyTorch sees none here"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None or torch.cuda.is_available():
        return
    if os.environ.get("FAIL_WITHOUT_GPU") == "1":
        pytest.fail(f"{NO_GPU}; FAIL_WITHOUT_GPU=1 forbids skipping", pytrace=False)
    pytest.skip(NO_GPU)
