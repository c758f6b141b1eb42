"""Files of annotations: EPIC-KITCHENS' as they are, simple ones, and what is refused instead of guessed."""

from fractions import Fraction
from pathlib import Path

import pytest

from coldframe.errors import InputNotFound, UsageError
from coldframe.serve.annotations import annotate, read_annotations
from coldframe.serve.inputs import InputVideo
from coldframe.store.recipe import Recipe

EPIC = (
    "narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,start_frame,stop_frame,"
    "narration,verb,verb_class,noun,noun_class,all_nouns,all_noun_classes\n"
    "P01_01_0,P01,P01_01,00:00:01.089,00:00:00.14,00:00:03.37,8,202,open door,open,3,door,3,['door'],[3]\n"
    "P01_01_1,P01,P01_01,00:00:02.629,01:00:04.37,01:00:06.17,262,370,\"turn on, light\",turn-on,6,light,114,"
    "\"['light', 'lamp']\",\"[114, 2]\"\n"
)  # fmt: skip


def recipe(window: str = "before_start") -> Recipe:
    return Recipe(
        encoder="e", weights_sha256="w", attention="a", frames=16, window=window, anticipation_s=0.0  # type: ignore[arg-type]
    )  # fmt: skip


def written(folder: Path, text: str) -> str:
    path = folder / "a.csv"
    path.write_text(text)
    return str(path)


def test_epic_kitchens_columns_are_read_as_they_are(tmp_path: Path) -> None:
    first, second = read_annotations(written(tmp_path, EPIC))
    assert (first.id, first.video, first.start_s, first.stop_s) == (
        "P01_01_0",
        "P01_01",
        Fraction("0.14"),
        Fraction("3.37"),
    )
    assert second.start_s == 3600 + Fraction("4.37")
    assert first.columns["verb_class"] == "3"
    assert second.columns["narration"] == "turn on, light"
    assert second.columns["all_noun_classes"] == "[114, 2]"
    assert "start_timestamp" not in first.columns


def test_a_simple_file_takes_seconds_and_clock_times(tmp_path: Path) -> None:
    text = "id,video,start,stop,label\na,x.mp4,1.5,2,cut \nb, x.mp4 ,1:02.25, 01:02.25, pour\n"
    found = read_annotations(written(tmp_path, text))
    assert [(one.start_s, one.stop_s) for one in found] == [
        (Fraction("1.5"), 2),
        (Fraction("62.25"), Fraction("62.25")),
    ]
    assert [dict(one.columns) for one in found] == [{"label": "cut"}, {"label": "pour"}]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("a,x,2,1,c", "line 2: it starts at 2 and stops before that, at 1"),
        ("a,x,nan,1,c", "start is 'nan'; allowed are seconds from 0"),
        ("a,x,1,,c", "stop is ''"),
        ("a,x,-1,1,c", "start is '-1'"),
        ("a,x,1e1,10,c", "start is '1e1'"),
        ("a,x,0:61,99,c", "start is '0:61'"),
        ("a,x,1,2,c\na,y,1,2,c", "the id 'a' is there 2 times"),
        (",x,1,2,c", "line 2: no id"),
        ("a,,1,2,c", "line 2: no video"),
        ("a,x,1,2", "line 2: 4 cells under 5 columns"),
        ("a,x,2,1,c\nb,x,2,1,c\nc,x,2,1,c\nd,x,2,1,c\ne,x,2,1,c", "and 2 more"),
        ("", "no line below its header"),
    ],
)
def test_bad_lines_are_refused_and_named(tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_annotations(written(tmp_path, f"id,video,start,stop,label\n{lines}\n"))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("id,video,start,label", "needs a column stop_timestamp or stop and has neither"),
        ("id,narration_id,video,start,stop", "has both"),
        ("id,video,start,stop,label,label", "must be unique"),
        ("id,video,start,stop,a/b", "cannot name an array"),
        ("id,video,start,stop,start_s", "a name that is taken"),
        ("", "neither"),
    ],
)
def test_bad_headers_are_refused(tmp_path: Path, header: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_annotations(written(tmp_path, f"{header}\n"))


def test_no_file_and_no_text_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="no file"):
        read_annotations(str(tmp_path / "none.csv"))
    (tmp_path / "b.csv").write_bytes(b"id,video,start,stop\n\xff\xfe,x,1,2\n")
    with pytest.raises(UsageError, match="not a CSV file in UTF-8"):
        read_annotations(str(tmp_path / "b.csv"))


VIDEOS = [InputVideo(path=path) for path in ("/a/P01_01.MP4", "/a/P01_02.MP4", "/b/P02_01.MP4")]


def test_overlapping_annotations_have_a_defined_order_and_videos_are_found_by_name(tmp_path: Path) -> None:
    lines = ["d,P01_02.MP4,5,9", "c,/a/P01_02.MP4,5,6", "b,P01_02,5,6", "a,P01_02,7,8", "e,P01_01,1,2"]
    found = [
        read_annotations(written(tmp_path, "id,video,start,stop\n" + "\n".join(order)))
        for order in (lines, lines[::-1])
    ]
    for annotations in found:
        annotated = annotate(VIDEOS, annotations, recipe())
        ids = [[one.id for one in video.annotations] for video in annotated.videos]
        assert ids == [["e"], ["b", "c", "d", "a"]]  # by start, then stop, then id
        assert annotated.unannotated == 1
        by_stop = annotate(VIDEOS, annotations, recipe("before_stop")).videos[1].annotations
        assert [one.id for one in by_stop] == ["b", "c", "a", "d"]


def test_annotations_of_videos_that_are_not_there_are_refused_or_counted(tmp_path: Path) -> None:
    annotations = read_annotations(written(tmp_path, "id,video,start,stop\na,P01_01,1,2\nb,P09_07,1,2\nc,P09_07,3,4\n"))
    with pytest.raises(UsageError, match=r"2 of 3 annotations name 1 videos that were not given: 'P09_07'"):
        annotate(VIDEOS, annotations, recipe())
    found = annotate(VIDEOS, annotations, recipe(), allow_missing=True)
    assert found.missing == {"P09_07": 2}
    assert [video.path for video in found.videos] == ["/a/P01_01.MP4"]
    with pytest.raises(UsageError, match="3 of 3 annotations"):  # nothing would be left
        annotate([InputVideo(path="/x.mp4")], annotations, recipe(), allow_missing=True)
    with pytest.raises(UsageError, match=r"which is /a/P01_01.MP4, /c/P01_01.mkv"):
        annotate([*VIDEOS, InputVideo(path="/c/P01_01.mkv")], annotations, recipe())
