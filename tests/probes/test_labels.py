from pathlib import Path

import pytest

from coldframe.errors import InputNotFound, UsageError
from coldframe.probes.labels import with_labels
from coldframe.probes.linear import linear_probe
from coldframe.probes.report import to_dict
from tests.probes.memory import MemoryStore, separable_store


def write(folder: Path, text: str) -> Path:
    file = folder / "labels.csv"
    file.write_text(text, encoding="utf-8")
    return file


def by(key: str, store: MemoryStore, column: str) -> str:
    values = zip(store.videos[key], store.videos["label"], strict=True)
    return "\n".join([f"{key},{column}", *(f"{value},{label}" for value, label in values)])


@pytest.mark.parametrize("key", ["sha256", "path"])
def test_labels_of_a_file_give_the_report_of_a_column(tmp_path: Path, key: str) -> None:
    store = separable_store()
    file = write(tmp_path, by(key, store, "action"))
    del store.videos["label"]
    found = linear_probe(with_labels(store, file), label="action")
    assert {**to_dict(found), "label": "label"} == to_dict(linear_probe(separable_store(), label="label"))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    store = separable_store(videos=3)
    store.videos["path"] = [str(tmp_path / "clips" / f"{v}.mp4") for v in range(3)]
    found = with_labels(store, write(tmp_path, "path,action\nclips/1.mp4,jump\n./clips/../clips/2.mp4,run\n"))
    assert found.video_column("action") == ["", "jump", "run"]
    assert "action" in found.video_columns


def test_other_paths_of_the_same_bytes_are_known(tmp_path: Path) -> None:
    store = separable_store(videos=2)
    store.videos["duplicates"] = ['["/other/copy.mp4"]', "[]"]
    found = with_labels(store, write(tmp_path, "path,action\n/other/copy.mp4,jump\n"))
    assert found.video_column("action") == ["jump", ""]
    with pytest.raises(UsageError, match=r"lines 2 and 3 say different things of /videos/0\.mp4"):
        with_labels(store, write(tmp_path, "path,action\n/other/copy.mp4,jump\n/videos/0.mp4,run\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,action\na,b\n", "has the columns 'file', 'action'; one of them must be sha256 or path"),
        ("path;action\na;b\n", "has the columns 'path;action'; .* and commas stand between them"),
        ("path,action,action\n/videos/0.mp4,jump,run\n", "has the column 'action' more than once"),
        ("path,action\n", "no line below its header"),
        ("path,action\n/videos/0.mp4\n", "line 2 has more or fewer values"),
        ("path,action\n/videos/0.mp4,a,b\n", "line 2 has more or fewer values"),
        ("path,action\n/elsewhere/0.mp4,jump\n", "none of 1 lines fits a video"),
    ],
)
def test_files_that_say_nothing_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        with_labels(separable_store(videos=2), write(tmp_path, text))


def test_keys_that_name_two_videos_are_refused_and_a_path_elsewhere_is_not(tmp_path: Path) -> None:
    store = separable_store(videos=2)
    digests = store.videos["sha256"]
    moved = write(tmp_path, f"path,sha256,action\n/moved/0.mp4,{digests[0]},jump\n/videos/1.mp4,{digests[1]},run\n")
    assert with_labels(store, moved).video_column("action") == ["jump", "run"]
    crossed = write(tmp_path, f"path,sha256,action\n/videos/1.mp4,{digests[0]},jump\n")
    with pytest.raises(UsageError, match=r"line 2 has the sha256 of /videos/0\.mp4 and the path of /videos/1\.mp4"):
        with_labels(store, crossed)


def test_missing_and_undecodable_files(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="There is no label file"):
        with_labels(separable_store(videos=2), tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"path,action\n/videos/0.mp4,caf\xe9\n")
    with pytest.raises(UsageError, match="not a CSV file in UTF-8"):
        with_labels(separable_store(videos=2), tmp_path / "latin.csv")
