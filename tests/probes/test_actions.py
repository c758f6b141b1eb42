"""Rows of actions, their classes and their parts."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coldframe.errors import StoreError, UsageError
from coldframe.probes.actions import ActionRows, class_name, divide_actions, make_tasks, select_actions
from coldframe.probes.category import Category
from coldframe.probes.columns import video_text
from coldframe.probes.linear import linear_probe
from coldframe.probes.listed import listed_rows
from coldframe.probes.make_split import make_split
from coldframe.probes.selection import labelled_selection
from coldframe.probes.split_manifest import SplitManifest, read_manifest
from coldframe.store import Store, create_store, open_store
from tests.probes.stores import action_store, class_store
from tests.store.plans import ENCODER, annotated_store, small_geometry, small_plan

COLUMNS = ("verb_class", "noun_class")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return action_store(tmp_path_factory.mktemp("actions") / "s.zarr")


def rows_of(labels: list[tuple[str, ...]]) -> ActionRows:
    count = len(labels)
    return ActionRows(
        rows=np.arange(count),
        labels=tuple(labels),
        components=Category.from_text([str(i) for i in range(count)]),
        sha256=("",) * count,
        videos=np.arange(count),
        ok=count,
        failed=0,
        absent=0,
        unlabelled=0,
        padded=0,
        file_is_source=False,
    )


def test_classes_are_those_of_train_in_the_order_of_numbers() -> None:
    rows = rows_of([("10", "2"), ("9", "10"), ("9", "2"), ("11", "2"), ("10", "10"), ("9", "3")])
    verb, noun, action = make_tasks(rows, np.array([0, 1, 2]))
    assert [task.name for task in (verb, noun, action)] == ["verb", "noun", "action"]
    assert verb.classes == (("9",), ("10",))
    assert verb.unseen == (("11",),)
    assert noun.classes == (("2",), ("10",))
    assert action.classes == (("9", "2"), ("9", "10"), ("10", "2"))
    assert action.unseen == (("9", "3"), ("10", "10"), ("11", "2"))
    assert verb.codes.tolist() == [1, 0, 0, 2, 1, 0]
    assert action.codes.tolist() == [2, 1, 0, 5, 4, 3]
    assert action.is_seen.tolist() == [True] * 3 + [False] * 3
    (long,) = make_tasks(rows_of([("9" * 5000,), ("10",), ("9",)]), np.array([0, 1, 2]))  # no number for int()
    assert long.classes == (("9",), ("10",), ("9" * 5000,))


def test_classes_do_not_depend_on_row_order_or_hash_seed() -> None:
    code = (
        "import json, sys, numpy as np\n"
        "from tests.probes.test_actions import rows_of\n"
        "from coldframe.probes.actions import make_tasks\n"
        "labels = [(str(i % 7), f'noun {i % 5}') for i in range(40)]\n"
        "labels = labels[::-1] if sys.argv[1] == 'back' else labels\n"
        "print(json.dumps([t.classes for t in make_tasks(rows_of(labels), np.arange(40))]))\n"
    )
    root = Path(__file__).parents[2]
    found = [
        subprocess.run(
            [sys.executable, "-c", code, order], capture_output=True, text=True, cwd=root, env={"PYTHONHASHSEED": seed}
        ).stdout
        for order, seed in (("on", "1"), ("back", "2"))
    ]
    assert found[0] == found[1]
    assert len(json.loads(found[0])[2]) == 35


def test_two_classes_never_have_one_name() -> None:
    assert class_name(("wash, dry",)) == "wash, dry"
    assert class_name(("wash", "cup")) == "wash, cup"
    pairs = [("a, b", "c"), ("a", "b, c"), ('"a', 'b", c'), ('"a, b"', "c"), ("a", '"b, c"')]
    assert len({class_name(pair) for pair in pairs}) == len(pairs)


def test_one_column_is_one_task() -> None:
    (verb,) = make_tasks(rows_of([("cut",), ("pour",), ("cut",)]), np.array([0, 1]))
    assert verb.classes == (("cut",), ("pour",))


def test_parts_keep_a_person_together(store: Store) -> None:
    rows, split = divide_actions(store, COLUMNS, ("participant_id",), seed=0, manifest=None)
    person = np.array(store.annotation_column("participant_id"))[rows.rows]
    parts = [set(person[own]) for own in split.parts().values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 12
    assert sum(len(own) for own in split.parts().values()) == 24 * 6
    assert 0.4 < len(split.train) / 144 < 0.75
    other = divide_actions(store, COLUMNS, ("participant_id",), seed=1, manifest=None)[1]
    assert other.digest != split.digest


def test_an_annotation_column_serves_as_one_of_videos_if_it_says_one_thing(store: Store) -> None:
    assert video_text(store, "participant_id")[:4] == ["P00", "P00", "P01", "P01"]
    with pytest.raises(UsageError, match="'verb_class' has several values in"):
        video_text(store, "verb_class")
    with pytest.raises(UsageError, match=r"no column 'person'.*participant_id"):
        video_text(store, "person")


@pytest.mark.parametrize("empty", [0, 3])
def test_an_empty_cell_says_nothing_wherever_it_stands(
    store: Store, monkeypatch: pytest.MonkeyPatch, empty: int
) -> None:
    cells = list(store.annotation_column("participant_id"))
    whole = video_text(store, "participant_id")
    cells[empty] = ""
    monkeypatch.setattr(Store, "annotation_column", lambda self, name: cells)
    assert video_text(store, "participant_id") == whole


def test_a_split_in_a_file_divides_actions(store: Store, tmp_path: Path) -> None:
    made = make_split(store, by=("participant_id",), label=None, seed=3)
    made.write(tmp_path / "split.json")
    manifest = read_manifest(tmp_path / "split.json")
    rows, split = divide_actions(store, COLUMNS, ("source",), seed=0, manifest=manifest)
    part_of = {video.sha256: video.part for video in manifest.videos}
    for name, own in split.parts().items():
        assert {part_of[rows.sha256[i]] for i in own.tolist()} == {name}
    assert rows.unlisted == 0
    left_out = tuple(replace(video, part="excluded") if i < 2 else video for i, video in enumerate(manifest.videos))
    fewer = divide_actions(store, COLUMNS, (), seed=0, manifest=replace(manifest, videos=left_out))[0]
    assert fewer.unlisted == 12
    folds: SplitManifest = make_split(store, by=("participant_id",), label=None, seed=3, folds=4)
    with pytest.raises(UsageError, match="the split has 4 folds"):
        divide_actions(store, COLUMNS, (), seed=0, manifest=folds)
    with pytest.raises(UsageError, match="are not in the split"):
        divide_actions(store, COLUMNS, (), seed=0, manifest=replace(manifest, videos=manifest.videos[1:]))


def test_what_cannot_be_read_as_actions_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cut whole videos"):
        select_actions(class_store(tmp_path / "c.zarr"), COLUMNS, ("source",))
    with pytest.raises(UsageError, match="no annotation column 'verbs'"):
        select_actions(store, ("verbs",), ("source",))
    with pytest.raises(StoreError, match=r"3 rows of .* show frames that the window before_start forbids"):
        select_actions(annotated_store(tmp_path, start_s=0.1), ("id",), ("source",))


def test_too_few_sources_are_refused(tmp_path: Path) -> None:
    store = action_store(tmp_path / "s.zarr", videos=2)
    with pytest.raises(UsageError, match="2 sources hold all labelled actions"):
        divide_actions(store, COLUMNS, ("source",), seed=0, manifest=None)


def test_verbs_of_few_sources_still_give_three_parts(store: Store) -> None:
    """Each of these verbs is in two videos only, of which the first trains and the second validates."""
    _, split = divide_actions(store, ("participant_id",), ("source",), seed=0, manifest=None)
    assert all(len(own) for own in split.parts().values())
    assert len(split.train) > len(split.test)


def test_actions_without_a_label_are_left_out_and_counted(tmp_path: Path) -> None:
    base = action_store(tmp_path / "s.zarr", videos=4)
    nouns = list(base.annotation_column("noun_class"))
    nouns[2] = "  "
    plan = small_plan([6] * 4, tokens="full")
    columns = {name: base.annotation_column(name) for name in base.annotation_columns} | {"noun_class": nouns}
    recipe = base.recipe
    planned = replace(plan, recipe=recipe, clips=replace(plan.clips, annotations=columns))
    other = create_store(tmp_path / "t.zarr", planned, geometry=small_geometry("full", dim=16, side=2), encoder=ENCODER)
    assert not len(other.ok_rows())
    with pytest.raises(UsageError, match="no ok row"):
        select_actions(open_store(tmp_path / "t.zarr"), COLUMNS, ("source",))


def test_readouts_of_one_label_take_annotations_row_by_row(store: Store) -> None:
    texts = [str(text) for text in store.annotation_column("verb_class")]
    chosen = labelled_selection(store, "verb_class", ("source",))
    named = [chosen.labels.names[code] for code in chosen.labels.codes]
    assert named == [texts[row] for row in chosen.rows]
    video = store.column("video")[chosen.rows]
    assert any(len(set(np.array(named)[video == one])) > 1 for one in set(video.tolist()))  # else this shows nothing
    for count in chosen.classes:
        mine = np.array(named) == count.name
        assert (count.rows, count.sources) == (mine.sum(), len(set(video[mine].tolist())))
    report = linear_probe(store, label="verb_class", features="mean")
    assert sum(report.results[0].part_rows.values()) == len(report.selection.rows)


def test_a_split_without_labels_serves_annotations(store: Store) -> None:
    manifest = make_split(store)
    selection, (split,) = listed_rows(store, "verb_class", manifest)
    texts = [str(text) for text in store.annotation_column("verb_class")]
    names = selection.labels.names
    assert [names[code] for code in selection.labels.codes] == [texts[row] for row in selection.rows]
    parts = {one.sha256: one.part for one in manifest.videos}
    sha256 = video_text(store, "sha256")
    for part, rows in split.parts().items():
        assert {parts[sha256[store.column("video")[selection.rows[row]]]] for row in rows} == {part}
