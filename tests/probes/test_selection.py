import numpy as np
import pytest

from coldframe.errors import UsageError
from coldframe.probes.selection import ClassCount, select_rows
from coldframe.store.schema import Status
from tests.probes.memory import MemoryStore, separable_store

BY_SOURCE = ("source",)


def select(store: MemoryStore, groups: tuple[str, ...] = BY_SOURCE) -> dict[int, tuple[str, str]]:
    """Class and component of each selected row."""
    chosen = select_rows(store, "label", groups)
    labels = [chosen.labels.names[code] for code in chosen.labels.codes]
    components = [chosen.components.names[code] for code in chosen.components.codes]
    return dict(zip(chosen.rows.tolist(), zip(labels, components, strict=True), strict=True))


def test_every_labelled_ok_row_with_its_class_and_component() -> None:
    store = separable_store(videos=9, windows=2)
    rows = select(store)
    assert list(rows) == list(range(18))
    assert [label for label, _ in rows.values()] == [("jump", "run", "walk")[v % 3] for v in range(9) for _ in "12"]
    assert len({component for _, component in rows.values()}) == 9


def test_failed_absent_and_unlabelled_rows_are_counted_and_not_selected() -> None:
    store = separable_store(videos=12, windows=2)
    store.columns["status"][[0, 1, 5]] = Status.FAILED
    store.columns["status"][6] = Status.ABSENT
    store.videos["label"][7] = ""
    store.columns["n_real"][[0, 20, 21]] = 7
    chosen = select_rows(store, "label", BY_SOURCE)
    assert not {0, 1, 5, 6, 14, 15} & set(chosen.rows.tolist())
    assert len(chosen.rows) == 18
    assert (chosen.ok, chosen.failed, chosen.absent, chosen.unlabelled, chosen.padded) == (20, 3, 1, 2, 2)


def test_equal_content_is_one_component_even_with_other_sources() -> None:
    store = separable_store(videos=12, windows=1)
    store.videos["sha256"][3] = store.videos["sha256"][0]
    rows = select(store)
    assert rows[3][1] == rows[0][1]
    assert len({component for _, component in rows.values()}) == 11


def test_an_unlabelled_video_still_links_two_others() -> None:
    store = separable_store(videos=12, windows=1, more={"subject": [f"p{v}" for v in range(12)]})
    store.videos["label"][4] = ""
    store.videos["source"][4] = store.videos["source"][0]
    store.videos["subject"][4] = store.videos["subject"][3]
    assert select(store)[0][1] != select(store)[3][1]
    rows = select(store, ("source", "subject"))
    assert rows[0][1] == rows[3][1]


def test_classes_with_too_few_sources_are_listed_and_left_out() -> None:
    store = separable_store(videos=12, windows=2)
    store.videos["label"][0] = store.videos["label"][1] = "rare"
    chosen = select_rows(store, "label", BY_SOURCE)
    assert chosen.excluded == (ClassCount(name="rare", rows=4, sources=2),)
    assert chosen.labels.names == ("jump", "run", "walk")
    assert [count.name for count in chosen.classes] == ["jump", "run", "walk"]
    assert sum(count.rows for count in chosen.classes) == len(chosen.rows) == 20


def test_fewer_than_two_classes_left_is_refused() -> None:
    store = separable_store(videos=12)
    store.videos["source"] = [f"s{min(v % 3, 1)}{v if v % 3 == 0 else ''}" for v in range(12)]
    with pytest.raises(UsageError, match=r"'jump' \(4\), 'run' \(1\), 'walk' \(1\)"):
        select_rows(store, "label", BY_SOURCE)


def test_a_used_video_without_a_group_is_refused() -> None:
    store = separable_store(videos=12, more={"subject": [f"p{v}" for v in range(12)]})
    store.videos["subject"][5] = ""
    with pytest.raises(UsageError, match=r"'subject' is empty for 1 of 12 .*5\.mp4"):
        select_rows(store, "label", ("source", "subject"))
    store.videos["label"][5] = ""  # now it is not used
    assert len(select_rows(store, "label", ("source", "subject")).rows) == 44


def test_store_without_ok_rows_is_refused() -> None:
    store = separable_store()
    store.columns["status"][:] = Status.FAILED
    with pytest.raises(UsageError, match="no ok rows"):
        select_rows(store, "label", BY_SOURCE)


def test_file_is_source_when_the_column_repeats_the_digests() -> None:
    store = separable_store()
    assert not select_rows(store, "label", BY_SOURCE).file_is_source
    store.videos["source"] = list(store.videos["sha256"])
    assert select_rows(store, "label", BY_SOURCE).file_is_source


def test_order_of_videos_and_rows_does_not_change_classes_or_components() -> None:
    store, shuffled = separable_store(videos=12, windows=2), separable_store(videos=12, windows=2)
    order = np.random.default_rng(0).permutation(12)
    shuffled.videos = {name: [values[v] for v in order] for name, values in store.videos.items()}
    by_row, by_shuffled_row = select(store), select(shuffled)
    assert [by_shuffled_row[2 * place] for place in range(12)] == [by_row[2 * v] for v in order]
