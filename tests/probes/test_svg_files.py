"""Plots as files of their own: whole XML, every colour written out, nothing that only a browser would know."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np

from coldframe.probes import svg
from coldframe.probes.svg_files import svg_files
from tests.probes.memory import separable_store
from tests.probes.test_page import page_of

SPACE = "{http://www.w3.org/2000/svg}"


def test_every_plot_of_a_page_is_a_file_beside_it(tmp_path: Path) -> None:
    html, _ = page_of(separable_store(videos=60), tmp_path, fractions=[0.1, 1.0])
    files = sorted(tmp_path.glob("r.*.svg"))
    assert len(files) == html.count("<svg") >= 3
    assert tmp_path / "r.confusion-matrix.svg" in files
    for file in files:
        root = ET.fromstring(file.read_text())
        assert root.tag == f"{SPACE}svg"
        assert float(root.attrib["width"]) > 100
        assert "var(" not in file.read_text()
        assert len(list(root.iter())) > 5


def test_cells_keep_their_share() -> None:
    (drawing,) = svg_files(svg.confusion(np.array([[3, 1], [0, 4]]), ["a<b", "c"])).values()
    found = {
        (cell.attrib["fill"], float(cell.attrib["fill-opacity"]))
        for cell in ET.fromstring(drawing).iter(f"{SPACE}rect")
        if "fill-opacity" in cell.attrib
    }
    hit, miss = "rgb(43,95,168)", "rgb(179,55,44)"
    assert found == {(hit, 0.762), (hit, 1.0), (miss, 0.28), (miss, 0.04)}
    assert "a&lt;b" in drawing


def test_plots_of_one_title_have_names_of_their_own() -> None:
    plot = svg.canvas(200, 100, [svg.axis_text(1, 1, "start", "x")], "Loss: on Train!")
    assert list(svg_files(plot * 3)) == ["loss-on-train", "loss-on-train-2", "loss-on-train-3"]
    assert re.fullmatch(r"<svg .*</svg>\n", svg_files(plot)["loss-on-train"], re.DOTALL)
