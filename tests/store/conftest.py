"""A small store, empty and filled: made once and copied, because syncing many files is what takes time."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from coldframe.store import Store, create_store, open_store, write_unit
from tests.store.plans import ENCODER, small_geometry, small_plan, small_result


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("templates")
    plan = small_plan(tokens="full", columns={"label": ["a", "b", "c", "d", "e"], "take": np.arange(5)})
    store = create_store(folder / "empty", plan, geometry=small_geometry("full"), encoder=ENCODER)
    shutil.copytree(store.path, folder / "filled")
    filled = open_store(folder / "filled", writable=True)
    for unit in range(filled.unit_count):
        write_unit(filled, unit, small_result(filled, unit))
    return folder


@pytest.fixture
def empty(templates: Path, tmp_path: Path) -> Store:
    """51 rows in 4 units, tier `full`, nothing extracted."""
    return open_store(shutil.copytree(templates / "empty", tmp_path / "s.zarr"), writable=True)


@pytest.fixture
def filled(templates: Path, tmp_path: Path) -> Store:
    """The same, extracted: 50 rows ok, row 21 failed."""
    return open_store(shutil.copytree(templates / "filled", tmp_path / "s.zarr"), writable=True)
