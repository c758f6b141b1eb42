"""Extraction with encoders of other sizes, with further layers, and without [CLS]: end to end, against PyTorch."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.errors import BundleError, UsageError
from coldframe.export import Bundle, export_bundle, open_bundle, save_reference
from coldframe.export.parity import PREDICTOR
from coldframe.export.predictor import anticipation_ids
from coldframe.probes.features import read_features
from coldframe.progress import progress_bar
from coldframe.serve import unit
from coldframe.serve.cli import extract_command
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.serve.extract import extract, make_recipe, token_geometry
from coldframe.serve.frame_cache import FrameCache
from coldframe.serve.inputs import collect_inputs
from coldframe.serve.predictor import open_predictor
from coldframe.serve.runtime import Runtime, open_runtime
from coldframe.store import Store, nearest, open_store, verify_store
from tests.export.conftest import lively_model
from tests.export.hugging_face import small_vjepa2
from tests.serve.conftest import SMALL

Barcodes = Callable[[int, int], Path]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("wide")
    save_reference(lively_model(SMALL), folder / "source")
    return export_bundle(folder / "source", folder / "bundle", frames=4, image_size=(32, 64), layers=(0,))


@pytest.fixture(scope="module")
def vjepa2(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("vjepa2")
    small_vjepa2(folder / "source")
    return export_bundle(folder / "source", folder / "bundle", image_size=(32, 32), layers=(1,))


def extracted(video: Path, bundle: Bundle, store: Path, **options: Any) -> Store:
    recipe = make_recipe(bundle, dtype="float32", fps=15, **options)
    done = extract(collect_inputs([str(video)]).videos, bundle, str(store), recipe, progress=progress_bar)
    assert (done.failed, done.rows) == (0, done.ok)
    assert verify_store(store).passed
    return open_store(store)


def clips_of(store: Store, video: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    rows = np.arange(store.rows)
    wanted = VideoClips(
        path=str(video),
        sha256=str(store.video_column("sha256")[0]),
        rows=rows,
        frame_index=store.column("frame_index"),
    )
    answers = read_clips(wanted, VideoCache(), image_size=store.recipe.image_size, threads=1)
    return np.stack([clip for _, clip in answers if isinstance(clip, np.ndarray)])


def test_other_size_and_layers_reach_the_store(wide: Bundle, barcodes: Barcodes, tmp_path: Path) -> None:
    video = barcodes(30, 0)
    store = extracted(video, wide, tmp_path / "s", tokens="full")
    recipe = store.recipe
    assert (recipe.encoder, recipe.frames) == ("levjepa-48x2x3p16-t4-32x64", 4)
    assert (recipe.image_size, recipe.resize, recipe.layers) == ((32, 64), "cover", (0,))
    expected = open_runtime(wide, backend="torch")(clips_of(store, video))
    np.testing.assert_allclose(store.cls(), expected.cls, atol=1e-4)
    np.testing.assert_allclose(store.patch(), expected.patch, atol=1e-4)
    np.testing.assert_allclose(store.patch(layer=0), expected.layers[0], atol=1e-4)
    assert store.patch().shape == (store.rows, 4, 2, 4, 48)


def test_layers_are_pooled_as_the_tier_says_and_cls_alone_keeps_none(
    wide: Bundle, barcodes: Barcodes, tmp_path: Path
) -> None:
    pooled = extracted(barcodes(8, 0), wide, tmp_path / "pooled", tokens="grid7")
    assert (pooled.geometry.rows, pooled.geometry.cols, pooled.geometry.has_cls) == (1, 2, False)
    assert pooled.patch(layer=0).shape == (1, 4, 1, 2, 48)
    bare = extracted(barcodes(8, 0), wide, tmp_path / "bare", tokens="cls")
    assert (bare.recipe.layers, bare.geometry.layers) == ((), ())


def test_encoder_without_cls_end_to_end(vjepa2: Bundle, barcodes: Barcodes, tmp_path: Path) -> None:
    video = barcodes(60, 0)
    store = extracted(video, vjepa2, tmp_path / "s", tokens="mean")
    expected = open_runtime(vjepa2, backend="torch")(clips_of(store, video))
    np.testing.assert_allclose(store.patch()[:, :, 0, 0], expected.patch.mean((2, 3)), atol=1e-4)
    np.testing.assert_allclose(store.patch(layer=1)[:, :, 0, 0], expected.layers[1].mean((2, 3)), atol=1e-4)
    rows = np.flatnonzero(store.column("n_real") == 8)
    features = read_features(store, rows, "mean")
    np.testing.assert_allclose(features, expected.patch.mean((1, 2, 3))[rows], atol=1e-4)
    with pytest.raises(UsageError, match=r"features 'cls' need a \[CLS\] token.*Use features 'mean'"):
        read_features(store, rows, "cls")
    with pytest.raises(UsageError, match=r"keeps no \[CLS\] tokens"):
        nearest([0], store, 1)


def test_full_tier_of_an_encoder_without_cls_keeps_its_grid(vjepa2: Bundle, barcodes: Barcodes, tmp_path: Path) -> None:
    store = extracted(barcodes(16, 0), vjepa2, tmp_path / "s", tokens="full")
    assert (store.geometry.has_cls, store.patch().shape) == (False, (1, 4, 2, 2, 48))


def test_per_frame_encoder_encodes_shared_frames_once_and_stores_the_same(
    barcodes: Barcodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: list[FrameCache] = []

    class Seen(FrameCache):
        def __init__(self, runtime: Runtime) -> None:
            super().__init__(runtime)
            caches.append(self)

    monkeypatch.setattr(unit, "FrameCache", Seen)
    bundle = export_bundle("efficientnet-lite0", tmp_path / "bundle", frames=4, image_size=(64, 64))
    video = barcodes(30, 0)
    store = extracted(video, bundle, tmp_path / "s", tokens="mean", hop_frames=1)
    clips = clips_of(store, video)
    pictures = {frame.tobytes() for clip in clips for frame in clip}  # some frames of the video are equal
    assert (store.rows, len(np.unique(store.column("frame_index")))) == (15, 15)
    assert [cache.encoded for cache in caches] == [len(pictures)]  # of 4 x 15 in the clips
    expected = open_runtime(bundle, backend="torch")(clips).patch.mean((2, 3))
    np.testing.assert_allclose(store.patch()[:, :, 0, 0], expected, atol=1e-4)


def test_predictor_is_admitted_only_whole_and_within_budget(vjepa2: Bundle, wide: Bundle, tmp_path: Path) -> None:
    predictor = open_predictor(vjepa2)
    patch = np.random.default_rng(0).standard_normal((2, 4, 2, 2, 48), dtype=np.float32)
    assert predictor(patch, anticipation_ids(np.array([0.5, 1.0]), vjepa2.geometry)).shape == (2, 4, 48)
    with pytest.raises(UsageError, match="has no predictor"):
        open_predictor(wide)
    poor = {**vjepa2.parity, PREDICTOR: {**vjepa2.parity[PREDICTOR], "patch_cosine_worst": 0.5}}
    with pytest.raises(BundleError, match=r"predictor misses its parity budget: patch_cosine_worst is 0\.5"):
        open_predictor(replace(vjepa2, parity=poor))
    copy = Path(shutil.copytree(vjepa2.path, tmp_path / "copy"))
    opened = open_bundle(copy)
    data = bytearray((copy / "predictor.fp32.onnx.data").read_bytes())
    data[len(data) // 2] ^= 1
    (copy / "predictor.fp32.onnx.data").write_bytes(data)
    with pytest.raises(BundleError, match=r"predictor\.fp32\.onnx\.data was altered"):
        open_predictor(opened)


@pytest.mark.parametrize("tier", ["cls", "cls+mean", "cls+grid7"])
def test_cls_of_an_encoder_that_has_none_is_refused_before_any_work(
    vjepa2: Bundle, barcodes: Barcodes, tmp_path: Path, tier: str
) -> None:
    arguments = [str(barcodes(8, 0)), "--encoder", str(vjepa2.path), "--store", str(tmp_path / "s"), "--tokens", tier]
    result = CliRunner().invoke(extract_command, arguments)
    assert isinstance(result.exception, UsageError)
    assert "this encoder has no [CLS] token" in str(result.exception)
    assert "Use 'mean'" in str(result.exception) or "Use 'grid7'" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_odd_grid_is_refused_for_the_pooled_tiers(wide: Bundle, tmp_path: Path) -> None:
    save_reference(lively_model(SMALL), tmp_path / "source")
    bundle = export_bundle(tmp_path / "source", tmp_path / "bundle", frames=1, image_size=(48, 32))
    for tier in ("grid7", "cls+grid7"):
        with pytest.raises(UsageError, match="patch grid is 3 x 2"):
            token_geometry(bundle, tier)
