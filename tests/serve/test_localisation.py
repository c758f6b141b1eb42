"""docs/temporal-localisation.md: what its settings make localisation tools believe is where the clips really are."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from coldframe.export import Bundle
from coldframe.store import open_store
from coldframe.store.convert import convert
from tests.serve import inline
from tests.serve.test_extract import Barcodes, run

TEXT = (Path(__file__).parents[2] / "docs" / "temporal-localisation.md").read_text()
HOP = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle, barcodes: Barcodes) -> Path:
    """A store with a clip every 4 frames of two videos of 30 fps, and its files."""
    folder = tmp_path_factory.mktemp("localisation")
    (folder / "videos").mkdir()
    for name, frames in (("long", 150), ("short", 40)):
        shutil.copy(barcodes(frames, 0), folder / "videos" / f"{name}.mp4")
    with pytest.MonkeyPatch.context() as patched:
        inline.use(patched)
        run(folder / "videos", bundle, folder / "s.zarr", tokens="cls", dtype="float16", hop_frames=HOP)
    convert(open_store(folder / "s.zarr"), "npy", folder / "features")
    return folder


def setting(name: str) -> int:
    """The documented value of a loader's setting."""
    found = re.search(rf"`{name}[:=] ?(\d+)`", TEXT)
    assert found, name
    return int(found[1])


def test_files_have_time_first_and_the_videos_names(folder: Path) -> None:
    store = open_store(folder / "s.zarr")
    for number, name in enumerate(("long", "short")):
        values = np.load(folder / "features" / f"{name}.npy")
        rows = np.flatnonzero(store.column("video") == number)
        assert (values.dtype, values.shape) == (np.dtype(np.float32), (len(rows), store.geometry.dim))
        np.testing.assert_array_equal(values, store.cls(rows))


def test_documented_settings_place_every_feature_at_the_middle_of_its_clip(folder: Path) -> None:
    assert "`default_fps: 7.5`, `feat_stride: <hop>`" in TEXT
    assert "`feature_stride=4 * hop`" in TEXT
    assert '`"frame": round(30 * duration)`' in TEXT
    lines = list(csv.DictReader((folder / "features/index.csv").read_text().splitlines()))
    whole = [line for line in lines if int(line["n_real"]) == 16]
    assert len(whole) > 5
    for line in whole:
        middle = (float(line["clip_start_s"]) + float(line["clip_end_s"])) / 2
        # the inverse of what each loader does with annotated seconds
        action_former = (int(line["position"]) * HOP + setting("num_frames") / 2) / 7.5
        open_tad = (int(line["position"]) * 4 * HOP + setting("offset_frames")) / 30
        assert middle == pytest.approx(action_former, abs=1e-9)
        assert middle == pytest.approx(open_tad, abs=1e-9)


def test_positions_count_up_from_the_first_clip(folder: Path) -> None:
    for name in ("long", "short"):
        lines = list(csv.DictReader((folder / "features/index.csv").read_text().splitlines()))
        mine = [line for line in lines if line["file"] == f"{name}.npy"]
        assert [int(line["position"]) for line in mine] == list(range(len(mine)))
        starts = np.array([float(line["clip_start_s"]) for line in mine])
        np.testing.assert_allclose(starts, np.arange(len(mine)) * HOP / 7.5, atol=1e-9)
