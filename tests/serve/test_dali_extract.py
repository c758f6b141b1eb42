"""`coldframe extract --decoder dali-cpu` fills the store that PyAV fills, and the markers say who decoded what."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.cli import main
from coldframe.export import Bundle
from coldframe.serve import dali_reader
from coldframe.store import open_store
from tests import barcode
from tests.serve.test_dali_files import vp9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("videos")
    vp9(made / "a.webm", 70)
    barcode.write_video(made / "b.mp4", 70, first=500)
    barcode.cut(vp9(made / "c.mkv", 70, first=900), made / "d.mkv", 0.7)
    return made


def extract(folder: Path, bundle: Bundle, store: Path, decoder: str) -> int:
    command = ["extract", str(folder), "--encoder", str(bundle.path), "--store", str(store), "--decoder", decoder]
    return CliRunner().invoke(main, command).exit_code


def test_rows_agree_and_markers_tell_the_decoder(tmp_path: Path, bundle: Bundle, folder: Path) -> None:
    assert extract(folder, bundle, tmp_path / "p.zarr", "pyav") == 0
    assert extract(folder, bundle, tmp_path / "d.zarr", "dali-cpu") == 0
    stores = [open_store(tmp_path / name) for name in ("p.zarr", "d.zarr")]
    left, right = (np.asarray(store.cls(np.arange(store.rows)), np.float64) for store in stores)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    assert ((left * right).sum(1) / norms).min() >= 0.999
    assert stores[0].recipe.recipe_id == stores[1].recipe.recipe_id  # the decoder is provenance, not recipe

    markers = [json.loads(file.read_text()) for file in sorted((tmp_path / "d.zarr" / "units").glob("*.json"))]
    provenance = [marker["provenance"] for marker in markers if "provenance" in marker]
    decoded = {name for found in provenance for name in found["decoder_rows"]}
    reasons = {reason for found in provenance for reason in found["decoder_fallbacks"]}
    assert decoded == {"dali", "pyav"}
    assert reasons == {"codec", "truncated"}
    rows = sorted(row for found in provenance for spans in found["decoder_rows"].values() for row in spans)
    assert [start for start, _ in rows[1:]] == [end for _, end in rows[:-1]]
    assert (rows[0][0], rows[-1][1]) == (0, stores[1].rows)


def test_dali_without_a_gpu_is_refused_before_anything_is_written(
    tmp_path: Path, bundle: Bundle, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dali_reader, "gpu_count", lambda: 0)
    assert extract(folder, bundle, tmp_path / "s.zarr", "dali") == 2
    assert not (tmp_path / "s.zarr").exists()
