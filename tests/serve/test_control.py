"""Controls change the order of a clip's frames and nothing else."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.cli import main
from coldframe.errors import RecipeMismatch, UsageError
from coldframe.export import Bundle
from coldframe.progress import progress_bar
from coldframe.serve.canary import check_canaries
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.serve.control import frame_order, window_name
from coldframe.serve.extract import extract, make_recipe
from coldframe.serve.inputs import collect_inputs
from coldframe.serve.runtime import open_runtime
from coldframe.store import Store, open_store
from coldframe.store.recipe import Control, Recipe

Barcodes = Callable[[int, int], Path]


def store_of(folder: Path, bundle: Bundle, video: Path, control: Control) -> Store:
    path = folder / f"{control}.zarr"
    if not path.exists():
        recipe = make_recipe(bundle, dtype="float32", control=control)
        extract(collect_inputs([str(video)]).videos, bundle, str(path), recipe, progress=progress_bar)
    return open_store(path)


def test_orders_by_hand() -> None:
    assert frame_order("none", 16, 16, "w").tolist() == list(range(16))
    assert frame_order("static", 16, 16, "w").tolist() == [8] * 16
    assert frame_order("reversed", 4, 4, "w").tolist() == [3, 2, 1, 0]
    # Padding stays at the end, where n_real says that it is.
    assert frame_order("reversed", 3, 5, "w").tolist() == [2, 1, 0, 3, 4]
    assert frame_order("static", 3, 5, "w").tolist() == [1] * 5
    # Or in front of the real frames, which are then the last.
    assert frame_order("reversed", 3, 5, "w", first=2).tolist() == [0, 1, 4, 3, 2]
    assert frame_order("static", 3, 5, "w", first=2).tolist() == [3] * 5
    assert sorted(frame_order("shuffled", 3, 5, "w", first=2)[2:].tolist()) == [2, 3, 4]
    shuffled = frame_order("shuffled", 10, 16, "w")
    assert sorted(shuffled[:10].tolist()) == list(range(10))
    assert shuffled[10:].tolist() == list(range(10, 16))


def test_shuffles_are_fixed_by_the_window_and_differ_between_windows() -> None:
    names = [window_name("ab", np.arange(16, dtype=np.int32) + start) for start in range(20)]
    orders = {tuple(frame_order("shuffled", 16, 16, name).tolist()) for name in names}
    assert len(orders) == 20
    assert frame_order("shuffled", 16, 16, names[3]).tolist() == frame_order("shuffled", 16, 16, names[3]).tolist()
    assert names[0] != window_name("ac", np.arange(16, dtype=np.int32))


@pytest.mark.parametrize("control", ["static", "reversed", "shuffled"])
def test_rows_are_those_of_the_reordered_frames(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes, control: Control
) -> None:
    video = barcodes(150, 0)
    plain, changed = (store_of(tmp_path, bundle, video, name) for name in ("none", control))
    assert np.array_equal(plain.column("frame_index"), changed.column("frame_index"))
    assert not np.allclose(plain.cls(), changed.cls(), atol=1e-3)
    digest, frames = plain.video_column("sha256")[0], plain.column("frame_index")
    clips = VideoClips(
        path=plain.video_column("path")[0], sha256=digest, rows=np.arange(plain.rows), frame_index=frames
    )
    runtime = open_runtime(bundle, backend="onnxruntime", precision="fp32")
    padded = 0
    for row, clip in read_clips(clips, VideoCache(), image_size=32, threads=1):
        assert isinstance(clip, np.ndarray)
        real = int(plain.column("n_real")[row])
        padded += real < 16
        expected = {
            "static": np.repeat(clip[real // 2 : real // 2 + 1], 16, axis=0),
            "reversed": np.concatenate([clip[:real][::-1], clip[real:]]),
            "shuffled": clip[frame_order("shuffled", real, 16, window_name(digest, frames[row]))],
        }[control]
        assert changed.cls([row])[0] == pytest.approx(runtime(expected[None]).cls[0], abs=1e-5)
    assert padded == 1


def test_canaries_confirm_a_control_store(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    store = store_of(tmp_path, bundle, barcodes(150, 0), "shuffled")
    assert not any(canary.problem for canary in check_canaries(store, bundle, 3))


def test_a_control_is_never_written_into_the_store_of_another(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    video = barcodes(150, 0)
    store = store_of(tmp_path, bundle, video, "none")
    recipe = make_recipe(bundle, dtype="float32", control="reversed")
    assert recipe.recipe_id != store.recipe_id
    with pytest.raises(RecipeMismatch, match="control: 'reversed' here, 'none' in"):
        extract(collect_inputs([str(video)]).videos, bundle, str(store.path), recipe, progress=progress_bar)


def test_command_and_unknown_controls(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    args = ["extract", str(barcodes(70, 0)), "--encoder", str(bundle.path), "--store", str(tmp_path / "s.zarr")]
    assert CliRunner().invoke(main, [*args, "--control", "static"]).exit_code == 0
    assert open_store(tmp_path / "s.zarr").recipe.control == "static"
    assert CliRunner().invoke(main, [*args, "--control", "backwards"]).exit_code == 2
    with pytest.raises(UsageError, match="control is 'mirrored'; allowed are none, static, reversed, shuffled"):
        Recipe(encoder="e", weights_sha256="0", attention="a", frames=16, control="mirrored")  # type: ignore[arg-type]
