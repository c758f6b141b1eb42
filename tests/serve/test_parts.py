"""Parts of a job array: together each unit once, one store, whatever their order, and the last one seals."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coldframe.cli import main
from coldframe.errors import UsageError
from coldframe.export import Bundle
from coldframe.serve.parts import Part
from coldframe.store import Status, open_store, verify_store
from tests.forkserver import CONTEXT
from tests.serve import inline
from tests.serve.test_extract import contents, corpus, run

Barcodes = Callable[[int, int], Path]


@pytest.mark.parametrize(("units", "of"), [(10, 3), (2, 5), (1, 1), (0, 2), (1000, 7)])
def test_parts_have_each_unit_once_and_are_equal(units: int, of: int) -> None:
    shares = [Part(number=number, of=of).units(units) for number in range(1, of + 1)]
    assert [unit for share in shares for unit in share] == list(range(units))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/3", r"part is 0/3; parts are counted from 1, so allowed are 1/3 to 3/3"),
        ("4/3", r"part is 4/3; .* allowed are 1/3 to 3/3"),
        ("1/0", r"part is 1/0; there must be at least one part"),
        ("3", r"part is '3'; allowed is i/n"),
        ("-1/3", r"allowed is i/n"),
        ("1/3/", r"allowed is i/n"),
        ("", r"allowed is i/n"),
    ],
)
def test_wrong_part_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Part.parse(text)
    assert str(Part.parse("2/3")) == "2/3"


def run_part(part: str, inputs: Path, bundle: Bundle, store: Path) -> Result:
    arguments = ["extract", inputs, "--encoder", bundle.path, "--store", store, "--part", part, "--json"]
    arguments += ["--tokens", "full", "--dtype", "float32"]
    return CliRunner().invoke(main, list(map(str, arguments)))


def _part_in_child(part: str, inputs: Path, bundle: Path, store: Path) -> None:
    from coldframe.export import open_bundle

    inline.install()
    sys.exit(run_part(part, inputs, open_bundle(bundle), store).exit_code)


def test_parts_in_any_order_give_the_store_of_one_run(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    folder = corpus(tmp_path / "c", barcodes, videos=24)
    whole = run(folder, bundle, tmp_path / "whole")
    order = ["1/3", "2/3", "3/3"]
    random.Random(1).shuffle(order)
    answers: list[dict[str, Any]] = []
    for part in order:
        if answers:
            assert Status.ABSENT in open_store(tmp_path / "parts").column("status")
        result = run_part(part, folder, bundle, tmp_path / "parts")
        answers.append(json.loads(result.stdout))
        assert result.exit_code == (3 if answers[-1]["failed"] else 0), result.output
    assert [answer["sealed"] for answer in answers] == [False, False, True]
    assert [answer["part"] for answer in answers] == order
    assert sum(answer["rows"] for answer in answers) == whole.rows
    assert sum(answer["failed"] for answer in answers) == whole.failed == 2
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert not verify_store(tmp_path / "parts").problems
    for name in ("summary.json", "failures.jsonl"):
        left, right = ((tmp_path / store / "units" / name).read_text() for store in ("parts", "whole"))
        assert left == right
    again = run_part(order[0], folder, bundle, tmp_path / "parts")  # nothing is left to do
    found = json.loads(again.stdout)
    assert (found["resumed_rows"], found["sealed"]) == (found["rows"], True)


def test_three_parts_at_once_create_and_fill_one_store(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    folder = corpus(tmp_path / "c", barcodes, videos=12)
    run(folder, bundle, tmp_path / "whole")
    parts = [
        CONTEXT.Process(target=_part_in_child, args=(f"{number}/3", folder, bundle.path, tmp_path / "parts"))
        for number in (1, 2, 3)
    ]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    assert {part.exitcode for part in parts} <= {0, 3}
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert (tmp_path / "parts/units/summary.json").exists()
    assert not verify_store(tmp_path / "parts").problems
    assert not [path for path in tmp_path.iterdir() if ".partial" in path.name]


def test_part_that_runs_already_is_refused_and_others_are_not(
    tmp_path: Path, bundle: Bundle, barcodes: Barcodes
) -> None:
    folder = corpus(tmp_path / "c", barcodes, videos=24)
    assert run_part("1/2", folder, bundle, tmp_path / "s").exit_code in (0, 3)
    store = open_store(tmp_path / "s")
    held = f"from coldframe.store import open_store\nwith open_store({str(store.path)!r}).lock({{}}): print('held')"
    first, second = range(1), range(1, store.unit_count)
    with store.lock(first):
        for wanted, said in ((second, "held"), (first, ""), (None, ""), (range(store.unit_count), "")):
            code = held.format(wanted)
            other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert other.stdout.strip() == said, other.stderr
            assert said or "Another extraction is running on" in other.stderr
        result = run_part("1/2", folder, bundle, tmp_path / "s")
        assert result.exit_code == 2
        assert "overlaps this part" in result.stderr


def test_part_names_the_videos_that_the_store_does_not_have(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    folder = corpus(tmp_path / "c", barcodes)
    shutil.copy(folder / "00.mp4", folder / "twin.mp4")  # equal content has one entry and two paths
    assert run_part("1/2", folder, bundle, tmp_path / "s").exit_code in (0, 3)
    shutil.copy(barcodes(20, 7), folder / "new.mp4")
    (folder / "09.mp4").unlink()
    result = run_part("2/2", folder, bundle, tmp_path / "s")
    assert result.exit_code == 2
    assert "new.mp4 is new" in result.stderr
    assert "09.mp4 is missing" in result.stderr
    assert "twin" not in result.stderr


def test_nothing_else_is_done_to_a_store_while_a_part_runs(tmp_path: Path, bundle: Bundle, barcodes: Barcodes) -> None:
    folder = corpus(tmp_path / "c", barcodes, videos=24)
    assert run_part("1/2", folder, bundle, tmp_path / "s").exit_code in (0, 3)
    assert run_part("2/2", folder, bundle, tmp_path / "s").exit_code in (0, 3)
    (tmp_path / "more").mkdir()
    shutil.copy(barcodes(70, 7000), tmp_path / "more/new.mp4")
    store = open_store(tmp_path / "s", writable=True)
    before = {file: file.read_bytes() for file in store.path.rglob("*") if file.is_file()}
    encoder = ["--encoder", str(bundle.path)]
    more = ["--store", str(store.path), "--tokens", "full", "--dtype", "float32", "--append"]
    with store.lock(range(1)):
        for command in (
            ["extract", str(tmp_path / "more"), *encoder, *more],
            ["repair", str(store.path), *encoder],
            ["retry-failed", str(store.path), *encoder],
        ):
            result = CliRunner().invoke(main, command)
            assert (result.exit_code, "Another extraction is running" in result.stderr) == (2, True), result.output
    assert {file: file.read_bytes() for file in store.path.rglob("*") if file.is_file()} == before
