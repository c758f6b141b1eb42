import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.errors import ColdframeError, UsageError
from coldframe.probe_cli import main
from coldframe.probes import svg
from coldframe.probes.control_report import run_controls
from coldframe.probes.linear import linear_probe
from coldframe.probes.page import require_html, write_page
from coldframe.probes.report import to_dict
from tests.probes.memory import MemoryStore, separable_store


class Balanced(HTMLParser):
    """Counts tags, and fails on one that is closed before those inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(store: MemoryStore, folder: Path, **options: object) -> tuple[str, Balanced]:
    report = linear_probe(store, label="label", **options)  # type: ignore[arg-type]
    controls = run_controls(store, label="label", seeds=[0], permutations=99)
    write_page(folder / "r.html", store, report, controls=controls, seconds={"probe": 1.0})
    html = (folder / "r.html").read_text()
    parsed = Balanced()
    parsed.feed(html)
    assert parsed.open == []
    return html, parsed


def test_one_file_without_network_that_says_everything(tmp_path: Path) -> None:
    store = separable_store(videos=60, untrained=True)
    html, parsed = page_of(store, tmp_path, fractions=[0.1, 1.0])
    assert parsed.links == []
    assert "@import" not in html
    assert "url(" not in html
    assert "prefers-color-scheme: dark" in html
    words = " ".join(parsed.words)
    for said in (
        "UNTRAINED", "16 at 7.5 per second", "2.133", "short_side to 224 px", store.recipe_id, "MIT",
        "label null", "Sample efficiency", "3 of the head",
    ):  # fmt: skip
        assert said.replace("3 of the head", f"{16 * 3 + 3} of the head") in words, said


def test_json_beside_it_has_the_same_numbers(tmp_path: Path) -> None:
    store = separable_store(videos=60)
    page_of(store, tmp_path)
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["probe"] == json.loads(json.dumps(to_dict(linear_probe(store, label="label"))))
    assert {control["name"] for control in data["controls"]} >= {"label_null", "source_relabel"}
    assert data["extraction"]["recipe id"] == store.recipe_id


@pytest.mark.parametrize("classes", [3, 6])
def test_the_mean_of_the_seeds_is_there_and_top_5_only_where_it_says_something(tmp_path: Path, classes: int) -> None:
    store = separable_store(videos=20 * classes, windows=1, classes="abcdef"[:classes])
    report = linear_probe(store, label="label")
    html, parsed = page_of(store, tmp_path)
    mean = sum(result.macro_f1 for result in report.results) / 3
    assert f"<td>mean</td><td></td><td></td><td>{report.mean('balanced_accuracy'):.3f}</td><td>{mean:.3f}</td>" in html
    assert ("top-5" in parsed.words) == (classes > 5)
    assert "No design effect: one test row a source, or all or none of the rows are right." in parsed.words


def test_names_cannot_break_out(tmp_path: Path) -> None:
    store = separable_store(videos=60, classes=("<script>alert(1)</script>", '"><b>', "a & b"))
    html, parsed = page_of(store, tmp_path)
    assert "<script" not in html
    assert "<b>&lt;" not in html
    assert "<script>alert(1)</script>" in " ".join(parsed.words)


def test_few_sources_show_the_sources_instead_of_an_interval(tmp_path: Path) -> None:
    _, parsed = page_of(separable_store(videos=15), tmp_path)
    words = " ".join(parsed.words)
    assert "there is no interval; these are the sources" in words
    assert "no interval" in words


def test_plots_place_marks_where_the_numbers_are() -> None:
    bar = svg.Bar(name="a", value=0.5, interval=(0.25, 0.75), reference=0.0, note="n")
    root = ET.fromstring(svg.intervals([bar], low=0.0, high=1.0, title="t"))
    (dot,) = root.iter("circle")
    (whisker,) = [line for line in root.iter("line") if line.get("class") == "whisker"]
    ticks = {
        float(t.text or ""): float(t.get("x") or 0) for t in root.iter("text") if re.fullmatch(r"[\d.]+", t.text or "")
    }
    middle = (ticks[0.4] + ticks[0.6]) / 2
    assert float(dot.get("cx") or 0) == pytest.approx(middle, abs=0.2)
    ends = [float(whisker.get(name) or 0) for name in ("x1", "x2")]
    assert ends == pytest.approx([ticks[0] + (ticks[1] - ticks[0]) * v for v in (0.25, 0.75)], abs=0.2)


def test_confusion_cells_hold_counts_and_shares() -> None:
    root = ET.fromstring(svg.confusion(np.array([[3, 1], [0, 0]]), ["a", "b"]))
    titles = [title.text for title in root.iter("title")]
    assert titles == [
        "a answered as a: 3 rows, 75.0%",
        "a answered as b: 1 rows, 25.0%",
        "b answered as a: 0 rows, 0.0%",
        "b answered as b: 0 rows, 0.0%",
    ]


def test_higher_is_higher_on_the_curve() -> None:
    root = ET.fromstring(svg.curve([(0.01, 0.2, 0.1), (1.0, 0.9, None)], chance=0.1, title="t"))
    first, last = root.iter("circle")
    assert float(first.get("cy") or 0) > float(last.get("cy") or 0)
    assert float(first.get("cx") or 0) < float(last.get("cx") or 0)


@pytest.mark.parametrize("name", ["r.pdf", "nowhere/r.html"])
def test_other_names_are_refused_before_test_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"ends in \.html, in a folder that exists"):
        require_html(tmp_path / name)


def test_only_another_report_is_replaced(tmp_path: Path) -> None:
    page, numbers = tmp_path / "split.html", tmp_path / "split.json"
    numbers.write_text('{"format": 1, "kind": "a split"}')
    with pytest.raises(UsageError, match=r"would replace .*split\.json, which is there already and is not the report"):
        require_html(page)
    numbers.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="would replace"):
        require_html(page)
    numbers.unlink()
    page.write_text("<p>my notes</p>")
    with pytest.raises(UsageError, match=r"would replace .*split\.html"):
        require_html(page)
    page.unlink()
    store = separable_store()
    for _ in range(2):
        write_page(page, store, linear_probe(store, label="label"), seconds={})
    assert "Scores" in page.read_text()


def test_numbers_are_printed_even_if_the_report_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*args: object, **more: object) -> None:
        raise ColdframeError("no space is left")

    for module in ("cli", "controls_cli"):
        monkeypatch.setattr(f"coldframe.probes.{module}.open_store", lambda path: separable_store())
        monkeypatch.setattr(f"coldframe.probes.{module}.write_page", full)
    for command in (["linear"], ["controls", "--permutations", "99"]):
        out = str(tmp_path / "r.html")
        result = CliRunner().invoke(main, [*command, "S", "--label", "label", "--report", out, "--json"])
        assert result.exit_code == 1
        assert "no space is left" in result.stderr
        found = json.loads(result.stdout)
        assert found.get("probe", found)["balanced_accuracy"]["mean"] == 1.0


@pytest.mark.parametrize("command", [["linear"], ["controls", "--permutations", "99"]])
def test_commands_write_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]) -> None:
    for module in ("cli", "controls_cli"):
        monkeypatch.setattr(f"coldframe.probes.{module}.open_store", lambda path: separable_store())
    out = tmp_path / "r.html"
    result = CliRunner().invoke(main, [*command, "S", "--label", "label", "--report", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_text().startswith("<!doctype html>")
    assert ("Not run." in out.read_text()) == (command == ["linear"])
