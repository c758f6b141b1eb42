"""The index against exact search, and against every way in which it and its store can come apart."""

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from sklearn.metrics.pairwise import cosine_similarity

from coldframe.cli import main
from coldframe.errors import ColdframeError, InputNotFound, MissingDependency, StoreError, UsageError
from coldframe.store import (
    Reason,
    Status,
    Store,
    UnitResult,
    create_store,
    index_build,
    nearest,
    open_store,
    write_unit,
)
from coldframe.store.faiss_library import INDEX_KINDS, IndexKind
from coldframe.store.index import VECTORS_FILE, index_folder, open_index
from coldframe.store.index_build import build_index
from coldframe.store.neighbours import Neighbours
from coldframe.store.units import discard_units
from coldframe.store.vectors import unit_vectors
from tests.store.plans import ENCODER, small_geometry, small_plan

FAILED_ROW = 5


def store_of(path: Path, vectors: NDArray[np.float64], clips_a_video: list[int], units: int | None = None) -> Store:
    """A float32 store of [CLS] `vectors` (rows, dim), row 5 failed, with its first `units` units written."""
    plan = small_plan(clips_a_video, dtype="float32")
    store = create_store(path, plan, geometry=small_geometry(dim=vectors.shape[1]), encoder=ENCODER)
    for unit in range(store.unit_count if units is None else units):
        write(store, unit, vectors)
    return open_store(path, writable=True)


def write(store: Store, unit: int, vectors: NDArray[np.float64]) -> None:
    rows = store.unit_range(unit)
    failed = np.array(rows) == FAILED_ROW
    result = UnitResult(
        rows=rows,
        status=np.where(failed, Status.FAILED, Status.OK).astype(np.uint8),
        reason=np.where(failed, Reason.TIMEOUT, Reason.NONE).astype(np.uint8),
        cls=np.where(failed[:, None], np.nan, vectors[rows.start : rows.stop]).astype(np.float32),
    )
    write_unit(store, unit, result)


@pytest.fixture
def vectors() -> NDArray[np.float64]:
    """(60, 8), lengths far apart; rows 20, 30 and 40 point the same way."""
    generator = np.random.default_rng(0)
    made = generator.standard_normal((60, 8)) * np.exp(generator.standard_normal((60, 1)))
    made[30], made[40] = made[20] * 3, made[20] / 7
    return made


@pytest.mark.parametrize("kind", INDEX_KINDS)
@pytest.mark.parametrize("exclude", [True, False])
def test_answers_are_those_of_exact_search(
    tmp_path: Path, vectors: NDArray[np.float64], kind: IndexKind, exclude: bool
) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    built = build_index(store, kind=kind)
    assert (built.identity.rows, built.added_rows, built.folder) == (59, 59, tmp_path / "s.index")
    queries = [59, 0, 31, 31, 20]
    answers = open_index(store).nearest(queries, 12, exclude_same_source=exclude)
    expected = nearest(queries, store, 12, exclude_same_source=exclude)
    groups = np.repeat(np.arange(6), 10) if exclude else np.arange(60)
    for answer, right in zip(answers, expected, strict=True):
        assert (answer.query, answer.rows.tolist()) == (right.query, right.rows.tolist())
        np.testing.assert_allclose(answer.cosine, right.cosine, atol=1e-6)
        allowed = np.flatnonzero((groups != groups[answer.query]) & (np.arange(60) != FAILED_ROW))
        truth = cosine_similarity(vectors[answer.query][None], vectors[allowed])[0]
        np.testing.assert_allclose(answer.cosine, np.sort(truth)[::-1][:12], atol=1e-6)


def test_more_answers_than_there_are(tmp_path: Path, vectors: NDArray[np.float64]) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    build_index(store)
    (answer,) = open_index(store).nearest([20], 1000, exclude_same_source=False)
    assert sorted(answer.rows.tolist()) == [row for row in range(60) if row not in (FAILED_ROW, 20)]
    assert answer.rows[:2].tolist() == [30, 40]  # equal cosines in row order
    (lone,) = open_index(store).nearest([59], 3)
    assert not set(lone.rows.tolist()) & set(range(50, 60))


def test_an_index_grows_by_what_it_lacks(tmp_path: Path, vectors: NDArray[np.float64]) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6, units=2)
    assert build_index(store).added_rows == 31
    assert build_index(store).added_rows == 0
    for unit in (2, 3):
        write(store, unit, vectors)
    with pytest.raises(StoreError, match=r"0 units changed or gone, 2 new\). Run `coldframe index` again"):
        open_index(store)
    assert build_index(store).added_rows == 28
    whole = build_index(store, tmp_path / "whole")
    assert whole.added_rows == 59
    grown, fresh = (open_index(store, place).nearest(range(6, 60), 5) for place in (None, tmp_path / "whole"))
    for one, other in zip(grown, fresh, strict=True):
        assert one.rows.tolist() == other.rows.tolist()
        assert one.cosine.tolist() == other.cosine.tolist()


@pytest.mark.parametrize("kind", INDEX_KINDS)
def test_rows_that_were_written_anew_are_never_answered_from_the_old_ones(
    tmp_path: Path, vectors: NDArray[np.float64], kind: IndexKind
) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    build_index(store, kind=kind)
    discard_units(store, [1])
    with pytest.raises(StoreError, match="1 units changed or gone, 0 new"):
        open_index(store)
    changed = vectors.copy()
    changed[16:32] = np.random.default_rng(9).standard_normal((16, 8))
    write(store, 1, changed)
    with pytest.raises(StoreError, match="1 units changed or gone, 0 new"):
        open_index(store)
    assert build_index(store, kind=kind).added_rows == 59
    (answer,) = open_index(store).nearest([20], 4)
    allowed = [row for row in range(60) if row not in range(20, 30) and row != FAILED_ROW]
    truth = cosine_similarity(changed[20][None], changed[allowed])[0]
    assert answer.rows.tolist() == [allowed[place] for place in np.argsort(-truth)[:4]]


def test_another_recipe_is_refused(tmp_path: Path, vectors: NDArray[np.float64]) -> None:
    one = store_of(tmp_path / "one", vectors, [10] * 6)
    build_index(one)
    other = create_store(
        tmp_path / "other", small_plan([10] * 6, dtype="float16"), geometry=small_geometry(), encoder=ENCODER
    )
    with pytest.raises(UsageError, match="is of recipe"):
        open_index(other, index_folder(one))


@pytest.mark.parametrize("file", [VECTORS_FILE, "index.json"])
def test_damage_is_found_and_mended_by_another_build(tmp_path: Path, vectors: NDArray[np.float64], file: str) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    place = build_index(store).folder / file
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        open_index(store)
    assert build_index(store).added_rows == 59
    assert open_index(store).nearest([20], 1)[0].rows.tolist() == [30]


def test_a_build_that_dies_leaves_the_index_as_it_was(
    tmp_path: Path, vectors: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6, units=3)
    build_index(store)
    before = {file.name: file.read_bytes() for file in index_folder(store).iterdir()}
    write(store, 3, vectors)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_build, "write_sealed_json", full)
    with pytest.raises(Exception, match="No space left on device"):
        build_index(store)
    assert {file.name: file.read_bytes() for file in index_folder(store).iterdir()} == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["s", "s.index"]


def test_what_is_no_index_is_left_alone(tmp_path: Path, vectors: NDArray[np.float64]) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    for place in (tmp_path / "mine", tmp_path / "mine/notes.txt", store.path):
        with pytest.raises(UsageError, match="exists and is no index"):
            build_index(store, place)
    assert (tmp_path / "mine/notes.txt").read_text() == "keep"
    with pytest.raises(InputNotFound, match="There is no index at"):
        open_index(store)


def test_recall_of_clusters_is_what_a_count_by_hand_gives(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    vectors = generator.standard_normal((3000, 16))
    store = store_of(tmp_path / "s", vectors, [300] * 10)
    identity = build_index(store, kind="ivf").identity
    assert identity.lists == 3000 // 64
    assert 1 < identity.nprobe <= identity.lists
    assert identity.recall is not None
    index, ok = open_index(store), store.ok_rows()
    asked = ok[np.unique(np.linspace(0, 2998, 200).astype(np.int64))]
    cosine = cosine_similarity(vectors[asked], vectors)
    cosine[:, FAILED_ROW] = -2
    cosine[np.arange(200), asked] = -2
    right = np.argsort(-cosine, axis=1)[:, :10]
    found = [answer.rows for answer in index.nearest(asked, 10, exclude_same_source=False)]
    hits = sum(len(set(a.tolist()) & set(b.tolist())) for a, b in zip(found, right, strict=True))
    assert identity.recall.recall == pytest.approx(hits / 2000, abs=0.002)
    assert identity.recall.recall >= 0.95


@pytest.mark.parametrize("kind", INDEX_KINDS)
@pytest.mark.parametrize("noise", [0, 1e-4, 1e-3])
def test_near_ties_are_those_of_exact_search_in_whatever_order_units_came(
    tmp_path: Path, kind: IndexKind, noise: float
) -> None:
    generator = np.random.default_rng(3)
    vectors = generator.standard_normal((1, 24)) + noise * generator.standard_normal((320, 24))
    store = store_of(tmp_path / "s", vectors, [16] * 20, units=0)
    for units in (range(10, 20), range(10)):  # an index that grows has the later rows first
        for unit in units:
            write(store, unit, vectors)
        build_index(store, kind=kind)
    queries = [0, 7, 160, 319]
    index = open_index(store)
    found = index.faiss.search(
        vector_of(store, queries), 10, nprobe=index.faiss.lists, without=np.array([FAILED_ROW], np.int64)
    )
    for (rows, cosine), query, right in zip(
        found, queries, nearest(queries, store, 11, exclude_same_source=False), strict=True
    ):
        others = rows != query
        assert rows[others].tolist() == right.rows[: others.sum()].tolist()
        assert cosine[others].tolist() == right.cosine[: others.sum()].tolist()


def vector_of(store: Store, rows: list[int]) -> NDArray[np.float32]:
    return unit_vectors(store, np.array(rows), "cls")


def test_recall_is_that_of_the_question_that_is_asked(tmp_path: Path) -> None:
    """Clips of a video are near-copies in one list, which is searched for nothing if they are no answers."""
    generator = np.random.default_rng(2)
    videos = generator.standard_normal((40, 1, 16)) + 0.05 * generator.standard_normal((40, 50, 16))
    store = store_of(tmp_path / "s", videos.reshape(-1, 16), [50] * 40)
    identity = build_index(store, kind="ivf").identity
    assert identity.recall is not None
    asked, index = store.ok_rows()[np.linspace(0, 1998, 200).astype(np.int64)], open_index(store)
    shares = []
    for exclude in (True, False):
        found, right = (search(asked, 10, exclude_same_source=exclude) for search in (index.nearest, nearest_of(store)))
        assert {len(one.rows) for one in found} == {10}
        shares.append(sum(len(np.intersect1d(a.rows, b.rows)) for a, b in zip(found, right, strict=True)) / 2000)
    assert identity.recall.recall == pytest.approx(min(shares), abs=1e-9)
    assert min(shares) >= 0.95
    (many,) = index.nearest([0], 1000)  # more than lie in the lists of a search
    assert len(many.rows) == 1000


def nearest_of(store: Store) -> Callable[..., list[Neighbours]]:
    return lambda rows, k, **options: nearest(rows, store, k, **options)


def test_a_store_without_vectors_of_that_kind_is_told(tmp_path: Path, vectors: NDArray[np.float64]) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    with pytest.raises(UsageError, match="keeps no patch tokens"):
        build_index(store, features="mean")
    empty = store_of(tmp_path / "empty", vectors, [10] * 6, units=0)
    with pytest.raises(UsageError, match="has no row that is ok"):
        build_index(empty)


def test_it_says_how_to_install_faiss(
    tmp_path: Path, vectors: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingDependency, match=r"pip install 'coldframe\[cpu\]'"):
        build_index(store)
    assert not index_folder(store).exists()


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_commands(tmp_path: Path, vectors: NDArray[np.float64]) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    path = str(store.path)
    assert "Make one with: coldframe index STORE" in run("search", path, "--row", "20", code=2)
    assert "59 rows, 59 added now" in run("index", path)
    facts = json.loads(run("index", path, "--json"))
    assert (facts["rows"], facts["added_rows"], facts["kind"], facts["recall"]) == (59, 0, "exact", None)
    text = run("search", path, "--row", "20", "-k", "2")
    assert text.splitlines()[1].split() == [
        "+1.0000",
        "row",
        "30:",
        "kurz",
        "\\\\",
        "3",
        "é.mp4,",
        "0.00",
        "to",
        "0.53",
        "s",
    ]
    assert "Clips of the query's own source are left out" in text
    found = json.loads(run("search", path, "--video", "kurz \\\\ 2 é.mp4", "--at", "0.6", "-k", "2", "--json"))
    assert found["answers"][0]["query"]["row"] == 21
    assert len(found["answers"][0]["found"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Name a clip with --row"),
        (["--row", "60"], "60"),
        (["--row", "5"], "Row 5 has no tokens"),
        (["--video", "none.mp4"], "it has none such"),
        (["--video", "é.mp4"], "it has none such"),
        (["--video", "kurz \\\\ 2 é.mp4", "--at", "99"], "it has 0 to 5.33333 s"),
        (["--at", "3", "--row", "1"], "Name one with --video"),
    ],
)
def test_what_cannot_be_searched_for(
    tmp_path: Path, vectors: NDArray[np.float64], options: list[str], message: str
) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    build_index(store)
    assert message in run("search", str(store.path), *options, code=1 if "5" in options else 2)


def test_an_index_moves_with_its_store(tmp_path: Path, vectors: NDArray[np.float64]) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    build_index(store)
    (tmp_path / "there").mkdir()
    for name in ("s", "s.index"):
        shutil.move(tmp_path / name, tmp_path / "there" / name)
    moved = open_store(tmp_path / "there/s")
    assert open_index(moved).nearest([20], 1)[0].rows.tolist() == [30]


def test_an_index_does_not_lie_in_its_store_and_may_fill_an_empty_folder(
    tmp_path: Path, vectors: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    (tmp_path / "link").symlink_to(store.path)
    before = sorted(store.path.rglob("*"))
    for inside in (store.path / "index", store.path / "units/index", tmp_path / "link/index"):
        assert "is inside of" in run("index", str(store.path), "--out", str(inside), code=2)
    assert sorted(store.path.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    run("index", str(store.path), "--out", ".")
    assert "row 30" in run("search", str(store.path), "--index", ".", "--row", "20")


def test_what_cannot_be_written_or_read_is_said(tmp_path: Path, vectors: NDArray[np.float64]) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    name = os.fsdecode(b"\xff.index")
    place = str(tmp_path / name)
    for command in (["index", "--out"], ["search", "--row", "0", "--index"]):
        assert "FAISS takes only paths in UTF-8" in run(*command, place, str(store.path), code=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # as on a disk that is full
    try:
        with pytest.raises(ColdframeError, match=r"Cannot write .*File too large"):
            build_index(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_video_is_named_as_it_is_shown_or_as_its_file_is(tmp_path: Path, vectors: NDArray[np.float64]) -> None:
    store = store_of(tmp_path / "s", vectors, [10] * 6)
    build_index(store)
    shown, named = (run("search", str(store.path), "--video", name) for name in (r"kurz \\ 3 é.mp4", r"kurz \ 3 é.mp4"))
    assert shown == named
    assert shown.startswith("like row 30")
    assert f"Row {10**25} does not exist" in run("search", str(store.path), "--row", str(10**25), code=2)
