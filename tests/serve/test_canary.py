"""Canaries confirm what the videos give, and catch rows that no checksum can."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.errors import RecipeMismatch
from coldframe.export import Bundle, export_bundle
from coldframe.progress import progress_bar
from coldframe.serve.canary import check_canaries
from coldframe.serve.extract import extract, make_recipe
from coldframe.serve.inputs import collect_inputs
from coldframe.store import Store, UnitResult, open_store, write_unit
from coldframe.store.schema import Tokens

Barcodes = Callable[[int, int], Path]


def store_of(folder: Path, bundle: Bundle, barcodes: Barcodes, tokens: Tokens = "full") -> Store:
    (folder / "videos").mkdir()
    for number in range(3):
        shutil.copy(barcodes(150, 150 * number), folder / "videos" / f"{number}.mp4")
    videos = collect_inputs([str(folder / "videos")]).videos
    extract(videos, bundle, str(folder / "s.zarr"), make_recipe(bundle, tokens=tokens), progress=progress_bar)
    return open_store(folder / "s.zarr", writable=True)


def verify(store: Store, bundle: Bundle, *options: str) -> Result:
    return CliRunner().invoke(main, ["verify", str(store.path), "--encoder", str(bundle.path), *options])


@pytest.mark.parametrize("tokens", ["cls", "cls+mean", "cls+grid7", "full"])
def test_sound_store_is_confirmed(tmp_path: Path, bundle: Bundle, barcodes: Barcodes, tokens: Tokens) -> None:
    store = store_of(tmp_path, bundle, barcodes, tokens)
    canaries = check_canaries(store, bundle, 5)
    assert [canary.row for canary in canaries] == [0, 2, 4, 6, 8]  # of 9 rows, evenly spread
    assert not any(canary.problem for canary in canaries)
    assert all((canary.patch_cosine_worst is None) == (tokens == "cls") for canary in canaries)
    result = verify(store, bundle)
    assert result.exit_code == 0, result.output
    assert "8 canary rows encoded again: worst cosine 1.0000000" in result.stdout


def test_rows_of_another_video_pass_every_checksum_but_not_the_canaries(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    store = store_of(tmp_path, bundle, barcodes)
    cls, patch = store.cls(), store.patch()
    swapped = np.r_[3:6, 0:3, 6:9]  # the rows of videos 0 and 1 change places
    write_unit(
        store,
        0,
        UnitResult(
            rows=range(9),
            status=np.ones(9, np.uint8),
            reason=np.zeros(9, np.uint8),
            cls=cls[swapped],
            patch=patch[swapped],
        ),
    )
    assert CliRunner().invoke(main, ["verify", str(store.path)]).exit_code == 0
    result = verify(store, bundle, "--canaries", "9", "--json")
    assert result.exit_code == 1
    assert "6 of 9 canary rows were not confirmed" in result.stderr
    wrong = [canary["row"] for canary in json.loads(result.stdout)["canaries"] if canary["problem"]]
    assert wrong == [0, 1, 2, 3, 4, 5]


def test_video_that_is_gone_is_said_and_not_taken_for_damage(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    store = store_of(tmp_path, bundle, barcodes)
    (tmp_path / "videos" / "1.mp4").unlink()
    result = verify(store, bundle, "--canaries", "9")
    assert result.exit_code == 1
    assert result.stdout.count("1.mp4: cannot be encoded again: The file cannot be read any more") == 3


@pytest.mark.parametrize("name", ["cls/c/0/0", "status/c/0", "clip_start_s/c/0"])
def test_damage_is_listed_and_no_canary_stumbles_over_it(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, name: str
) -> None:
    store = store_of(tmp_path, bundle, barcodes, "cls")
    data = bytearray((store.path / name).read_bytes())
    data[3] ^= 1
    (store.path / name).write_bytes(data)
    result = verify(store, bundle)
    assert result.exit_code == 1
    assert name in result.stdout
    assert "No canary was encoded" in result.stdout
    assert json.loads(verify(store, bundle, "--json").stdout)["canaries"] is None


def test_damage_that_a_fast_look_misses_is_a_problem_of_its_row(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    store = store_of(tmp_path, bundle, barcodes, "cls")
    data = bytearray((store.path / "cls/c/0/0").read_bytes())
    data[3] ^= 1
    (store.path / "cls/c/0/0").write_bytes(data)
    result = verify(store, bundle, "--fast", "--canaries", "2")
    assert result.exit_code == 1
    assert "canary: row 0: " in result.stdout
    assert "is damaged" in result.stdout


def test_another_encoder_is_refused(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    store = store_of(tmp_path, bundle, barcodes, "cls")
    other = export_bundle("levjepa-nano", tmp_path / "nano", random_init=0)
    with pytest.raises(RecipeMismatch, match="encoder: 'levjepa-nano' here"):
        check_canaries(store, other, 2)
