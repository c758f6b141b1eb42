"""Clips by annotation from the command line to the store: the very pictures, the rows, and what has none."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.export import Bundle
from coldframe.serve.annotation_options import LeftOut, left_out_lines
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.store import Flag, Reason, Status, Store, open_store, read_plan, verify_store
from tests.barcode import read_number, write_video

Barcodes = Callable[[int, int], Path]
LINES = [
    "late,v,5,7,pour,cup",
    "early,v,2,9,cut,leek",  # the window begins before the video
    "same_start,v,5,6,cut,cup",
    "first,v,0.3,1,open,door",  # and this one ends before it
    "past,v,99,100,cut,leek",
    "other,w,4.5,6,pour,cup",
]


def coldframe(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos of 10 s at 30 fps; pictures of v are numbered from 0, those of w from 1000."""
    folder = tmp_path_factory.mktemp("annotated")
    write_video(folder / "v.mp4", 300)
    write_video(folder / "w.mp4", 300, first=1000)
    (folder / "actions.csv").write_text("id,video,start,stop,verb,noun\n" + "\n".join(LINES) + "\n")
    return folder


def arguments(folder: Path, bundle: Bundle, *more: object) -> list[object]:
    return [folder, "--encoder", bundle.path, "--annotations", folder / "actions.csv", *more]


@pytest.fixture(scope="module")
def store(folder: Path, bundle: Bundle) -> Store:
    done = coldframe("extract", *arguments(folder, bundle, "--store", folder / "s.zarr", "--tokens", "cls+mean"))
    assert done.exit_code == 3, done.output  # two actions have no window
    return open_store(folder / "s.zarr")


def numbers_fed(store: Store, rows: list[int]) -> list[list[int]]:
    """What the barcode of each frame says, decoded as the worker decodes it, at a size that a barcode survives."""
    found = []
    for row in rows:
        video = store.column("video")[row]
        clips = VideoClips(
            path=store.video_paths[video],
            sha256=store.video_column("sha256")[video],
            rows=np.array([row]),
            frame_index=store.column("frame_index")[[row]],
        )
        ((_, clip),) = read_clips(clips, VideoCache(), image_size=(96, 192), threads=1)
        assert isinstance(clip, np.ndarray)
        found.append([read_number(picture) for picture in clip])
    return found


def test_every_annotation_is_a_row_in_order_with_its_columns(store: Store) -> None:
    ids = ["first", "early", "same_start", "late", "past", "other"]
    assert store.annotation_column("id") == ids
    assert store.annotation_column("verb") == ["open", "cut", "cut", "pour", "cut", "pour"]
    assert store.annotation_column("start_s").tolist() == [0.3, 2, 5, 5, 99, 4.5]  # type: ignore[union-attr]
    assert store.column("status").tolist() == [2, 1, 1, 1, 2, 1]
    assert store.column("reason")[[0, 4]].tolist() == [Reason.NO_WINDOW] * 2
    assert store.column("n_real").tolist() == [0, 7, 16, 16, 0, 16]
    assert (store.column("flags")[1] & Flag.PADDED_FRONT) != 0
    assert np.isnan(store.cls(np.arange(6), allow_failed=True)[[0, 4]]).all()
    assert store.recipe.window == "before_start"
    assert read_plan(store).plan_id == store.plan_id


def test_the_pictures_that_were_fed_end_one_second_before_the_action(store: Store) -> None:
    early, late, other = numbers_fed(store, [1, 3, 5])
    assert early == [0] * 9 + [2, 6, 10, 14, 18, 22, 26]
    assert late == [int(30 * (4 - (16 - k) / 7.5)) for k in range(16)]
    assert max(late) <= 30 * (5 - 1.0)
    assert other == [1000 + int(30 * (3.5 - (16 - k) / 7.5) + 1e-9) for k in range(16)]


def test_equal_windows_give_equal_tokens_and_verify_finds_a_leak(store: Store, tmp_path: Path) -> None:
    vectors = store.cls([2, 3])
    assert np.array_equal(vectors[0], vectors[1])
    assert store.video_column("status").tolist() == [Status.OK] * 2  # type: ignore[union-attr]
    assert verify_store(store.path).passed


def test_info_names_reasons_and_window(store: Store) -> None:
    shown = coldframe("info", store.path, "--failures").stdout
    assert "window   ends 1 s before the start of the action" in shown
    assert "no_window 2" in shown
    assert "Annotation first lasts from 0.30 to 1.00 s: the window before_start, 1 s ahead, has no frame in" in shown
    assert "in this video of 10.00 s" in shown


def test_plan_counts_what_has_no_window_and_what_is_left_out(folder: Path, bundle: Bundle) -> None:
    done = coldframe("plan", *arguments(folder, bundle, "--json"))
    assert done.exit_code == 3
    found = json.loads(done.stdout)
    assert (found["annotations"], found["without_window"], found["padded_in_front"]) == (6, 2, 1)
    text = coldframe("plan", *arguments(folder, bundle)).stdout
    assert "actions   6: 1 padded with the first frame, 0 with the last, 2 without a window" in text


def test_the_released_anchor_is_named_wherever_it_is_shown(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,video,start,stop\na,v,5,7\n")
    options = (
        folder / "v.mp4",
        "--encoder",
        bundle.path,
        "--annotations",
        tmp_path / "a.csv",
        "--window",
        "before-stop",
    )
    assert "clips show the action itself" in coldframe("plan", *options).stdout
    assert coldframe("extract", *options, "--store", tmp_path / "r.zarr").exit_code == 0
    released = open_store(tmp_path / "r.zarr")
    assert released.recipe.window == "before_stop"
    assert max(numbers_fed(released, [0])[0]) == 176  # 30 * (6 - 2 / 15): inside the action, which starts at 150
    assert "clips show the action itself" in coldframe("info", tmp_path / "r.zarr").stdout
    other = coldframe("extract", *options[:-1], "before-start", "--store", tmp_path / "r.zarr")
    assert other.exit_code == 2
    assert "before_stop" in other.output
    assert "before_start" in other.output


def test_inside_cuts_clips_of_the_actions(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,video,start,stop\na,v,5,6\nb,w,2,8\n")
    options = (folder, "--encoder", bundle.path, "--annotations", tmp_path / "a.csv", "--window", "inside")
    done = coldframe("extract", *options, "--store", tmp_path / "i.zarr", "--baselines", "--tokens", "mean")
    assert done.exit_code == 0, done.output
    short, long = numbers_fed(open_store(tmp_path / "i.zarr"), [0, 1])
    assert short == [150, 154, 158, 162, 166, 170, 174, 178] + [178] * 8
    assert min(long) >= 1060
    assert max(long) < 1240


def test_parts_make_the_same_store_and_other_annotations_do_not_fit(
    folder: Path, bundle: Bundle, tmp_path: Path, store: Store
) -> None:
    options = arguments(folder, bundle, "--store", tmp_path / "p.zarr", "--tokens", "cls+mean", "--part")
    for part in ("1/2", "2/2"):
        assert coldframe("extract", *options, part).exit_code in (0, 3)
    parts = open_store(tmp_path / "p.zarr")
    assert parts.plan_id == store.plan_id
    assert np.array_equal(parts.cls(), store.cls())
    options[4] = tmp_path / "b.csv"
    for old, new in (("late", "later"), ("5,7", "4,7"), ("5,7", "5,8"), ("pour", "stir")):
        lines = [LINES[0].replace(old, new), *LINES[1:]]
        (tmp_path / "b.csv").write_text("id,video,start,stop,verb,noun\n" + "\n".join(lines) + "\n")
        for which in (["--part", "1/2"], []):
            refused = coldframe("extract", *options[:-1], *which)
            assert refused.exit_code == 2
            assert "annotations" in refused.output
            assert "Name the same videos and annotations to resume, or give a new --store" in refused.output
    (tmp_path / "b.csv").write_text("id,video,start,stop,verb,noun\r\n" + "\r\n".join(reversed(LINES)))
    assert coldframe("extract", *options, "1/2").exit_code in (0, 3)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--hop", "4"], "each annotation makes one clip"),
        (["--sampling", "stride"], "each annotation makes one clip"),
        (["--window", "inside", "--anticipation", "1"], "a window 'inside' has none"),
        (["--anticipation", "nan"], "anticipation is nan s"),
    ],
)
def test_options_without_meaning_are_refused(folder: Path, bundle: Bundle, more: list[str], said: str) -> None:
    done = coldframe("plan", *arguments(folder, bundle, *more))
    assert done.exit_code == 2
    assert said in done.output


def test_window_options_need_annotations_and_stores_of_them_do_not_grow(
    folder: Path, bundle: Bundle, store: Store, tmp_path: Path
) -> None:
    for option in (["--window", "inside"], ["--anticipation", "1"], ["--allow-missing-videos"]):
        done = coldframe("plan", folder, "--encoder", bundle.path, *option)
        assert done.exit_code == 2
        assert "needs --annotations" in done.output
    tier = ("--tokens", "cls+mean")
    grown = coldframe("extract", *arguments(folder, bundle, "--store", store.path, "--append", *tier))
    assert grown.exit_code == 2
    assert "--append and --annotations exclude each other" in grown.output
    assert coldframe("convert", store.path, "--to", "npy", "--out", tmp_path / "n").exit_code == 2


def test_videos_that_cannot_be_used_have_a_failed_row_for_each_annotation(
    folder: Path, bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"")
    (tmp_path / "a.csv").write_text("id,video,start,stop\na,bad,5,7\nb,bad,6,7\nc,v,5,7\nd,gone,1,2\n")
    options = (tmp_path, folder, "--encoder", bundle.path, "--annotations", tmp_path / "a.csv")
    refused = coldframe("extract", *options, "--store", tmp_path / "s.zarr")
    assert refused.exit_code == 2
    assert "1 of 4 annotations name 1 videos that were not given: 'gone'" in refused.output
    done = coldframe("extract", *options, "--store", tmp_path / "s.zarr", "--allow-missing-videos", "--json")
    assert done.exit_code == 3
    found = json.loads(done.stdout)
    assert (found["rows"], found["failed"]) == (3, 2)
    assert found["annotations_of_missing_videos"] == {"gone": 1}
    assert found["videos_without_annotations"] == 1
    made = open_store(tmp_path / "s.zarr")
    failed = made.column("status") == Status.FAILED
    assert [made.annotation_column("id")[row] for row in np.flatnonzero(failed)] == ["a", "b"]
    assert set(made.column("reason")[failed].tolist()) == {Reason.EMPTY_FILE}
    assert verify_store(made.path).passed


def test_annotations_without_a_window_are_no_failed_videos(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    options = arguments(folder, bundle, "--store", tmp_path / "s.zarr", "--max-failures", "0")
    assert coldframe("extract", *options).exit_code == 3
    assert coldframe("extract", *options).exit_code == 3  # and again, with its failures there already
    retried = coldframe("retry-failed", tmp_path / "s.zarr", "--encoder", bundle.path)
    assert "0 rows tried again" in retried.stdout
    assert "could not be used when they were planned" not in retried.stdout


def test_what_is_said_of_unusable_videos_can_be_done(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"")
    (tmp_path / "a.csv").write_text("id,video,start,stop\na,bad,5,7\nb,v,5,7\n")
    options = ("--encoder", bundle.path, "--annotations", tmp_path / "a.csv", "--store", tmp_path / "s.zarr")
    assert coldframe("extract", tmp_path, folder, *options).exit_code == 3
    said = coldframe("retry-failed", tmp_path / "s.zarr", "--encoder", bundle.path).stdout
    assert "Once they can, extract into a new store, as one of annotations does not grow." in said


def test_no_time_is_no_other_recipe_below_zero(folder: Path, bundle: Bundle) -> None:
    above, below = (
        coldframe("plan", *arguments(folder, bundle, "--anticipation", time, "--json")).stdout for time in ("0", "-0")
    )
    assert json.loads(above)["recipe_id"] == json.loads(below)["recipe_id"]


def test_one_content_under_two_annotated_names_is_refused(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    for name in ("x.mp4", "y.mp4"):
        (tmp_path / name).write_bytes((folder / "v.mp4").read_bytes())
    (tmp_path / "a.csv").write_text("id,video,start,stop\na,x,5,7\nb,y,5,7\n")
    done = coldframe("plan", tmp_path, "--encoder", bundle.path, "--annotations", tmp_path / "a.csv")
    assert done.exit_code == 2
    assert "annotations name both" in done.output


def test_names_from_a_file_do_not_steer_the_terminal() -> None:
    (line,) = left_out_lines(LeftOut(missing={"gone\x1b[31m\nrows 0": 1}))
    assert line == "left out  1 annotations of 1 videos that were not given: gone\\x1b[31m rows 0"
