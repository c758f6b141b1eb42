"""A small bundle and small videos that the extraction tests share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coldframe.export import Bundle, LeVJEPAConfig, export_bundle, save_reference
from tests import barcode
from tests.export.conftest import lively_model

# 16 frames of 2 x 2 patches: everything about time is real, the rest is small
SMALL = LeVJEPAConfig(img_size=32, num_frames=16, embed_dim=48, depth=2, num_heads=3)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("encoder")
    save_reference(lively_model(SMALL), folder / "reference")
    return export_bundle(folder / "reference", folder / "bundle")


@pytest.fixture(scope="session")
def barcodes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Path]:
    """`barcodes(frames, first)` gives a 30 fps video whose pictures are numbered from `first`."""
    folder = tmp_path_factory.mktemp("barcodes")

    def video(frames: int, first: int = 0) -> Path:
        path = folder / f"{frames}_{first}.mp4"
        if not path.exists():
            barcode.write_video(path, frames, first=first)
        return path

    return video
