"""Baselines: colour and motion of a clip's own frames, against definitions written out in another way."""

import colorsys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from numpy.typing import NDArray

from coldframe.cli import main
from coldframe.errors import UsageError
from coldframe.export import Bundle
from coldframe.progress import progress_bar
from coldframe.serve.baselines import clip_baselines, colour_baseline, motion_baseline
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.serve.extract import extract, make_recipe
from coldframe.serve.inputs import collect_inputs
from coldframe.store import Store, open_store
from coldframe.store.recipe import Baselines, Control
from coldframe.store.verify import verify_store

Barcodes = Callable[[int, int], Path]
SIDE = 56
PINNED = [-0.127794, -2.856013]  # of the definitions in docs/FORMAT.md


def noise(frames: int = 4, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (frames, SIDE, SIDE, 3), dtype=np.uint8)


def panning(dx: float, dy: float, frames: int = 4) -> NDArray[np.uint8]:
    """A smooth texture that moves by (dx, dy) pixels a frame."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float64)
    waves = [(0.31, 0.12, 0.0), (-0.17, 0.29, 1.0), (0.05, -0.33, 2.0), (0.27, 0.21, 3.0)]
    pictures = [
        128 + 25 * sum(np.sin(u * (x - t * dx) + v * (y - t * dy) + phase) for u, v, phase in waves)
        for t in range(frames)
    ]
    return np.repeat(np.stack(pictures)[..., None], 3, axis=-1).round().astype(np.uint8)


def test_colours_are_counted_as_the_standard_library_converts_them() -> None:
    clip = noise()
    expected = np.zeros(512)
    for red, green, blue in clip[:3].reshape(-1, 3).tolist():
        h, s, v = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
        # integer arithmetic puts a colour on a boundary into the upper part; the float is nudged by less than 1 / 255^2
        part = [min(int(8 * value + 1e-9), 7) for value in (h, s)]
        expected[64 * part[0] + 8 * part[1] + int(v * 255 + 0.5) // 32] += 1
    found = colour_baseline(clip, 3)
    np.testing.assert_allclose(found, np.sqrt(expected / expected.sum()), atol=1e-6)
    assert np.square(found).sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("rgb", "bin_number"),
    [
        ((0, 0, 0), 0),
        ((255, 255, 255), 7),
        ((128, 128, 128), 4),
        ((255, 0, 0), 8 * 7 + 7),
        ((255, 255, 0), 64 * 1 + 8 * 7 + 7),  # 60 degrees, an eighth is 45
        ((0, 0, 255), 64 * 5 + 8 * 7 + 7),  # 240 degrees
        ((255, 0, 1), 64 * 7 + 8 * 7 + 7),  # just below 360
    ],
)
def test_colour_bins_by_hand(rgb: tuple[int, int, int], bin_number: int) -> None:
    clip = np.broadcast_to(np.array(rgb, np.uint8), (2, 28, 28, 3))
    assert np.flatnonzero(colour_baseline(clip, 2)).tolist() == [bin_number]


def test_differences_are_those_of_each_cell() -> None:
    clip = noise()
    luma = clip.astype(np.float64) @ [0.299, 0.587, 0.114] / 255
    found = motion_baseline(clip, 4)[: 3 * 196].reshape(3, 14, 14)
    for step, row, column in [(0, 0, 0), (1, 13, 2), (2, 5, 13)]:
        cell = np.s_[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        expected = np.abs(luma[step + 1][cell] - luma[step][cell]).mean()
        assert found[step, row, column] == pytest.approx(expected, abs=1e-6)


def test_cells_of_a_side_that_does_not_divide() -> None:
    clip = noise()[:, :33, :33]
    luma = clip.astype(np.float64) @ [0.299, 0.587, 0.114] / 255
    found = motion_baseline(clip, 4)[:196].reshape(14, 14)
    # cell 3 covers floor(3 * 33 / 14) = 7 up to floor(4 * 33 / 14) = 9
    assert found[3, 0] == pytest.approx(np.abs(luma[1] - luma[0])[7:9, 0:2].mean(), abs=1e-6)


@pytest.mark.parametrize(
    ("step", "direction"), [((1, 0), 0), ((0, 1), 2), ((-1, 0), 4), ((0, -1), 6), ((0.7, 0.7), 1), ((0.7, -0.7), 7)]
)
def test_a_pan_has_its_direction(step: tuple[float, float], direction: int) -> None:
    histogram = motion_baseline(panning(*step), 4)[-128:].reshape(16, 8)
    assert histogram.sum() == pytest.approx(1, abs=1e-5)
    shares = np.roll(histogram.sum(axis=0), 1 - direction)  # small windows see an edge move across itself only
    assert shares.argmax() == 1
    assert shares[:3].sum() > 0.9
    assert (histogram.sum(axis=1) > 0.02).all()


def test_what_moves_is_counted_in_its_own_cell() -> None:
    clip = np.repeat(panning(0, 0)[:1], 4, axis=0).copy()
    clip[:, :14, 42:] = panning(1, 0)[:, :14, 42:]
    histogram = motion_baseline(clip, 4)[-128:].reshape(4, 4, 8)
    assert histogram[0, 3].sum() > 0.9


def test_a_still_clip_has_no_motion() -> None:
    assert not motion_baseline(np.repeat(noise()[:1], 4, axis=0), 4).any()


@pytest.mark.parametrize("make", [colour_baseline, motion_baseline])
def test_padding_is_never_read(make: Callable[[NDArray[np.uint8], int], NDArray[np.float32]]) -> None:
    clip, other = noise(), noise()
    other[2:] = noise(seed=1)[2:]
    assert np.array_equal(make(clip, 2), make(other, 2))
    assert not np.array_equal(make(clip, 3), make(other, 3))
    assert not motion_baseline(clip, 2)[196 : 3 * 196].any()
    assert np.isfinite(make(clip, 1)).all()


@pytest.mark.parametrize("make", [colour_baseline, motion_baseline])
def test_padding_in_front_is_never_read(make: Callable[..., NDArray[np.float32]]) -> None:
    clip, other = noise(), noise()
    other[:2] = noise(seed=1)[:2]
    assert np.array_equal(make(clip, 2, 2), make(other, 2, 2))
    assert not np.array_equal(make(clip, 3, 1), make(other, 3, 1))
    steps = motion_baseline(clip, 2, 2)[: 3 * 196].reshape(3, 196)
    assert steps.any(axis=1).tolist() == [False, False, True]


# --------------------------------------------------------------------------------------------- in a store


def store_of(
    folder: Path,
    bundle: Bundle,
    videos: list[Path],
    baselines: Baselines = "colour+motion",
    control: Control = "none",
) -> Store:
    path = folder / f"{baselines}-{control}.zarr"
    recipe = make_recipe(bundle, dtype="float32", baselines=baselines, control=control)
    extract(collect_inputs(list(map(str, videos))).videos, bundle, str(path), recipe, progress=progress_bar)
    return open_store(path)


def test_rows_are_those_of_the_frames_that_the_encoder_sees(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    video = barcodes(150, 0)
    store = store_of(tmp_path, bundle, [video, broken])
    at = list(store.video_column("path")).index(str(video))
    rows = np.flatnonzero(store.column("video") == at)
    clips = VideoClips(
        path=str(video),
        sha256=store.video_column("sha256")[at],
        rows=rows,
        frame_index=store.column("frame_index")[rows],
    )
    real = {row: int(n) for row, n in zip(rows.tolist(), store.column("n_real")[rows].tolist(), strict=True)}
    assert min(real.values()) < 16
    for row, clip in read_clips(clips, VideoCache(), image_size=32, threads=1):
        assert isinstance(clip, np.ndarray)
        expected = clip_baselines([clip], [real[row]], [0])
        for name in ("colour", "motion"):
            np.testing.assert_allclose(store.baseline(name, [row]), expected[f"baseline_{name}"], atol=5e-4)
    failed = [row for row in range(store.rows) if row not in real]
    assert len(failed) == 1
    for name, length in (("colour", 512), ("motion", 15 * 196 + 128)):
        raw = zarr.open_array(str(store.path / f"baseline_{name}"), mode="r")
        assert (raw.shape, raw.dtype) == ((store.rows, length), np.dtype("float16"))
        assert np.isnan(np.asarray(raw[failed])).all()
    assert not verify_store(store.path).problems


def test_a_still_clip_is_an_ok_row_and_a_control_has_baselines_of_its_own(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    store = store_of(tmp_path, bundle, [barcodes(70, 0)], control="static")
    assert len(store.ok_rows()) == store.rows
    assert not store.baseline("motion").any()
    assert store.baseline("colour").any()
    assert not verify_store(store.path).problems


def test_tokens_are_the_same_with_and_without(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    kept, without = (store_of(tmp_path, bundle, [barcodes(70, 0)], wanted) for wanted in ("colour+motion", "none"))
    assert np.array_equal(kept.cls(), without.cls())
    assert kept.recipe_id != without.recipe_id
    assert "baselines" not in without.recipe.to_dict()  # recipes from before there were any keep their id
    with pytest.raises(UsageError, match=r"keeps no baseline_colour\. Extract with --baselines"):
        without.baseline("colour")


def test_command(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    args = ["extract", str(barcodes(70, 0)), "--encoder", str(bundle.path), "--store", str(tmp_path / "s.zarr")]
    assert CliRunner().invoke(main, [*args, "--baselines"]).exit_code == 0
    assert open_store(tmp_path / "s.zarr").recipe.baselines == "colour+motion"
    again = CliRunner().invoke(main, args)
    assert again.exit_code == 2
    assert "baselines" in again.output


def test_what_a_recipe_calls_colour_and_motion_stays_what_it_was() -> None:
    """The recipe names both and has no version, so another definition must get another name (docs/decisions.md)."""
    y, x, t = np.meshgrid(np.arange(SIDE), np.arange(SIDE), np.arange(6), indexing="ij")
    clip = np.stack([(7 * x + 5 * y + 3 * x * y // 9 + (11 + c) * t * (1 + x // 20)) % 256 for c in range(3)], -1)
    found = clip_baselines([clip.transpose(2, 0, 1, 3).astype(np.uint8)], [5], [0])
    sums = [float(np.cos(np.arange(values.size)) @ values[0].astype(np.float64)) for values in found.values()]
    assert get_args(Baselines) == ("none", "colour+motion")
    assert sums == pytest.approx(PINNED, abs=1e-4)
