"""`coldframe extract --dtype int8`: the tokens of float32 quantised, however the store came about."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.export import Bundle
from coldframe.probes.loader import TokenLoader
from coldframe.probes.token_view import TokenView
from coldframe.serve import clips as clips_module
from coldframe.serve import unit as unit_module
from coldframe.serve.canary import check_canaries
from coldframe.serve.parts import Part
from coldframe.store import lease, open_store, summarise, verify_store
from coldframe.store.int8_tokens import Int8Tokens
from coldframe.store.markers import read_marker
from coldframe.store.object_path import ObjectPath
from tests.serve import inline
from tests.serve.test_extract import Barcodes, contents, corpus, run
from tests.store.s3 import BUCKET, s3_server


@pytest.fixture(autouse=True)
def _decode_here(monkeypatch: pytest.MonkeyPatch) -> None:
    inline.use(monkeypatch)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle, barcodes: Barcodes) -> Path:
    """46 rows in 3 units, in int8 and in float32, and the videos that they come from in `c`."""
    folder = tmp_path_factory.mktemp("int8")
    with pytest.MonkeyPatch.context() as patched:
        inline.use(patched)
        corpus(folder / "c", barcodes, videos=24)
        run(folder / "c", bundle, folder / "s.zarr", dtype="int8")
        run(folder / "c", bundle, folder / "float32.zarr")
    return folder


def coldframe(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_rows_are_those_of_float32_quantised_and_are_confirmed_by_canaries(template: Path, bundle: Bundle) -> None:
    store, exact = open_store(template / "s.zarr"), open_store(template / "float32.zarr")
    assert store.ok_rows().tolist() == exact.ok_rows().tolist()
    assert len(store.ok_rows()) == 44
    made = Int8Tokens.of(exact.patch())
    np.testing.assert_array_equal(store.stored("patch"), made.values)
    np.testing.assert_array_equal(store.stored("patch_scale"), made.scale)
    np.testing.assert_array_equal(store.cls(), exact.cls().astype(np.float16))
    found = summarise(store)["reconstruction"]["patch"]
    assert (found["tokens"], found["cosine_worst"]) == (made.cosine.size, made.cosine.min())
    assert verify_store(store.path).passed
    canaries = check_canaries(store, bundle, 4)
    assert not any(canary.problem for canary in canaries)
    assert min(canary.patch_cosine_worst or 0 for canary in canaries) > 0.9999999


def test_canaries_see_another_video_through_the_quantising(tmp_path: Path, template: Path, bundle: Bundle) -> None:
    store = open_store(shutil.copytree(template / "s.zarr", tmp_path / "s.zarr"))
    for name in ("patch/c/0/0/0/0/0", "patch_scale/c/0/0/0/0"):
        there = store.path / name.replace("/c/0/", "/c/1/", 1)
        shutil.copy(there, store.path / name)
    wrong = [canary.row for canary in check_canaries(store, bundle, 44) if canary.problem]
    assert wrong == [row for row in store.ok_rows().tolist() if row < 16]


@pytest.mark.parametrize("batch_clips", [1, 8])
def test_every_byte_is_the_same_from_any_batch(
    tmp_path: Path, template: Path, bundle: Bundle, batch_clips: int
) -> None:
    run(template / "c", bundle, tmp_path / "s.zarr", dtype="int8", batch_clips=batch_clips)
    assert contents(tmp_path / "s.zarr") == contents(template / "s.zarr")


def test_parts_make_the_same_store(tmp_path: Path, template: Path, bundle: Bundle) -> None:
    for number in (2, 1):
        done = run(template / "c", bundle, tmp_path / "s.zarr", dtype="int8", part=Part(number=number, of=2))
    assert done.sealed
    assert contents(tmp_path / "s.zarr") == contents(template / "s.zarr")
    assert summarise(open_store(tmp_path / "s.zarr")) == summarise(open_store(template / "s.zarr"))


def test_another_storage_type_is_refused_with_the_difference(template: Path, bundle: Bundle) -> None:
    options = ["--encoder", bundle.path, "--store", template / "s.zarr", "--tokens", "full"]
    result = coldframe("extract", template / "c", *options, "--dtype", "float16")
    assert result.exit_code == 2
    assert "dtype: 'float16' here, 'int8' in" in result.stderr
    refused = coldframe("extract", template / "c", *options[:2], "--store", "new.zarr", "--dtype", "int8")
    assert refused.exit_code == 2
    assert "the token tier 'cls' keeps none. Use float16, or one of the tiers full" in refused.stderr


@pytest.mark.parametrize("lost", ["patch/c/1/0/0/0/0", "patch_scale/c/1/0/0/0"])
def test_what_is_lost_is_repaired_to_the_byte(tmp_path: Path, template: Path, bundle: Bundle, lost: str) -> None:
    store = shutil.copytree(template / "s.zarr", tmp_path / "s.zarr")
    (store / lost).unlink()
    result = coldframe("repair", store, "--encoder", bundle.path)
    assert result.exit_code == 3, result.output  # two videos cannot be used
    assert contents(store) == contents(template / "s.zarr")
    assert read_marker(store, 1).reconstruction == read_marker(template / "s.zarr", 1).reconstruction


def test_later_videos_join_without_quantising_earlier_rows_again(
    tmp_path: Path, template: Path, bundle: Bundle, barcodes: Barcodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shutil.copytree(template / "s.zarr", tmp_path / "s.zarr")
    before = open_store(store).stored("patch"), open_store(store).stored("patch_scale")
    (tmp_path / "more").mkdir()
    shutil.copy(barcodes(70, 7000), tmp_path / "more/new.mp4")
    put: list[int] = []

    class Counted(Int8Tokens):
        def put(self, at: np.ndarray, tokens: np.ndarray) -> None:
            put.append(len(at))
            super().put(at, tokens)

    monkeypatch.setattr(unit_module, "Int8Tokens", Counted)
    options = ["--encoder", bundle.path, "--store", store, "--tokens", "full", "--dtype", "int8"]
    result = coldframe("extract", tmp_path / "more", *options, "--append", "--batch-clips", "1")
    assert result.exit_code == 3, result.output
    assert put == [1, 1]
    grown = open_store(store)
    assert len(grown.ok_rows()) == 46
    np.testing.assert_array_equal(grown.stored("patch", grown.ok_rows()[:44]), before[0])
    np.testing.assert_array_equal(grown.stored("patch_scale", grown.ok_rows()[:44]), before[1])
    tokens = len(grown.ok_rows()) * before[1][0].size
    assert summarise(grown)["reconstruction"]["patch"]["tokens"] == tokens
    assert verify_store(store).passed


def test_failed_rows_that_are_tried_again_take_their_places(
    tmp_path: Path, template: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = clips_module.read_in_child

    def away(video: clips_module.VideoClips, size: int) -> object:
        gone = video.path.endswith("12.mp4")
        return real(clips_module.VideoClips(**{**vars(video), "path": "/away"}) if gone else video, size)

    with monkeypatch.context() as patched:
        patched.setattr(clips_module, "read_in_child", away)
        run(template / "c", bundle, tmp_path / "s.zarr", dtype="int8")
    assert len(open_store(tmp_path / "s.zarr").ok_rows()) == 42
    result = coldframe("retry-failed", tmp_path / "s.zarr", "--encoder", bundle.path)
    assert result.exit_code == 3, result.output
    assert contents(tmp_path / "s.zarr") == contents(template / "s.zarr")
    again, once = (summarise(open_store(folder / "s.zarr"))["reconstruction"] for folder in (tmp_path, template))
    assert again["patch"] == pytest.approx(once["patch"], abs=1e-12)


def test_an_object_store_holds_the_same_objects_and_is_read_alike(
    tmp_path: Path, template: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/int8.zarr"
    with s3_server(monkeypatch):
        monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
        options = ["--encoder", bundle.path, "--tokens", "full", "--dtype", "int8", "--store", url]
        result = coldframe("extract", template / "c", *options)
        assert result.exit_code == 3, result.output
        place = ObjectPath(BUCKET, "int8.zarr")
        keys = [key for key in place.sizes() if not key.startswith("units/")]
        assert {key: (place / key).read_bytes() for key in keys} == contents(template / "s.zarr")
        assert verify_store(url).passed
        stores = open_store(url), open_store(template / "s.zarr")
        far, near = (
            TokenLoader(store=store, rows=store.ok_rows(), view=TokenView(cls=True), batch_rows=7) for store in stores
        )
        for one, other in zip(far.epoch(), near.epoch(), strict=True):
            np.testing.assert_array_equal(one.maps[0], other.maps[0])


def test_the_plan_counts_the_bytes_that_the_store_then_takes(template: Path, bundle: Bundle) -> None:
    options = ["--encoder", bundle.path, "--tokens", "full", "--dtype", "int8", "--json"]
    told = json.loads(coldframe("plan", template / "c", *options).stdout)["tier_bytes"]
    assert set(told) == {"full", "cls+grid7", "grid7"}
    store = open_store(template / "s.zarr")
    tokens = store.geometry.time * store.geometry.rows * store.geometry.cols
    assert told["full"] == 46 * (tokens * (store.geometry.dim + 4) + 2 * store.geometry.dim)
    written = sum(store.unit_arrays[name].chunk_bytes * 3 for name in ("patch", "patch_scale", "cls"))
    assert told["full"] * 48 // 46 == written  # 3 units of 16 rows in one chunk each
