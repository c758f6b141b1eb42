"""Page: a report as one HTML file that needs no network, with its numbers as JSON and its plots as SVG beside it."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coldframe.errors import UsageError
from coldframe.probes import control_report, report, svg
from coldframe.probes.caveats import caveats
from coldframe.probes.control_report import ControlReport
from coldframe.probes.features import TokenStore
from coldframe.probes.html_parts import facts_list, heading, reads_tile, section, warnings_list
from coldframe.probes.page_controls import controls_part
from coldframe.probes.page_scores import classes_part, curves_part, fractions_part, scores_part
from coldframe.probes.page_style import STYLE
from coldframe.probes.probe_report import ProbeReport
from coldframe.probes.sealed import TestReads
from coldframe.probes.split_manifest import SplitManifest
from coldframe.probes.svg import text
from coldframe.probes.svg_files import svg_files
from coldframe.probes.uncertainty import uncertainty
from coldframe.store import Store
from coldframe.store.files import disk_errors, write_bytes
from coldframe.store.recipe import Recipe
from coldframe.store.text import path_to_text
from coldframe.store.windows import window_text


def write_page(
    file: str | os.PathLike[str],
    store: TokenStore,
    probe: ProbeReport[Any],
    *,
    controls: ControlReport | None = None,
    seconds: Mapping[str, float],
) -> None:
    """Write `file` (`*.html`), the same name with `.json`, and every plot as `<name>.<plot>.svg`.

    Args:
        store: what was probed; its recipe says how it was extracted.
        probe: the readout.
        controls: what `run_controls` found, if they ran.
        seconds: wall time by stage.

    Raises:
        UsageError: the name does not end in `.html`.
        ColdframeError: it cannot be written.
    """
    require_html(file)
    facts = extraction_facts(store)
    plain = {
        "probe": report.to_dict(probe),
        **({} if controls is None else control_report.to_dict(controls)),
        "extraction": facts,
        "seconds": dict(seconds),
    }
    write_both(file, _page(probe, controls, facts, seconds), plain)


def write_sections(
    file: str | os.PathLike[str],
    store: TokenStore,
    *,
    title: str,
    sections: Sequence[str],
    facts: Mapping[str, str],
    plain: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> None:
    """`write_page` of a readout with sections of its own; the store's extraction and the probe's facts follow them.

    Args:
        title: of the page, before the encoder's name.
        sections: HTML.
        facts: about the probe, in words.
        plain: the probe's numbers for JSON.
    """
    require_html(file)
    extraction = extraction_facts(store)
    ends = [section("What was extracted how", facts_list(extraction)), section("The probe", facts_list(facts))]
    html = document(f"{title}{store.recipe.encoder}", [*sections, *ends])
    write_both(file, html, {"probe": plain, "extraction": extraction, "seconds": dict(seconds)})


def write_both(file: str | os.PathLike[str], html: str, plain: Mapping[str, Any]) -> None:
    """Write a page, and its numbers with `.json` and its plots with `.<plot>.svg` beside it.

    Raises:
        ColdframeError: one of them cannot be written.
    """
    path = Path(file)
    with disk_errors("write", path):
        write_bytes(path.with_suffix(".json"), json.dumps(plain, indent=1, allow_nan=False).encode() + b"\n")
        for name, drawing in svg_files(html).items():
            write_bytes(path.with_suffix(f".{name}.svg"), drawing.encode())
        write_bytes(path, html.encode())


def document(title: str, sections: Sequence[str]) -> str:
    """A whole page; `sections` are HTML already."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><meta name="color-scheme" content="light dark"><title>{text(title)}</title>'
        f"<style>{STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


def require_html(file: str | os.PathLike[str] | None) -> None:
    """Refuse a name that a report cannot have, before the test part is read for nothing.

    Raises:
        UsageError: another ending, a folder that is not there, or files of that name which are no report, such as a
            split: they would be replaced.
    """
    if file is None:
        return
    path = Path(file)
    if path.suffix != ".html" or not path.parent.is_dir():
        raise UsageError(
            f"the report is {path_to_text(path)}; allowed is a name that ends in .html, in a folder that exists."
        )
    numbers = path.with_suffix(".json")
    there = [one for one in (numbers, path) if one.exists()]
    if there and not _is_report(numbers):
        raise UsageError(
            f"the report would replace {path_to_text(there[0])}, which is there already and is not the report of a "
            "probe. Choose another name, or move it away."
        )


def _is_report(numbers: Path) -> bool:
    try:
        found = json.loads(numbers.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"probe", "extraction"} <= set(found)


def extraction_facts(store: TokenStore) -> dict[str, str]:
    """What was extracted how, as text for people."""
    recipe, encoder = store.recipe, store.encoder
    facts = {
        "encoder": recipe.encoder + (" (UNTRAINED: random weights)" if encoder.get("untrained") else ""),
        "weights": recipe.weights_sha256,
        "licence": str(encoder.get("licence")) + ("; no commercial use" if encoder.get("non_commercial") else ""),
        "frames a window": f"{recipe.frames} at {recipe.fps:g} per second",
        "seconds a window": f"{recipe.frames / recipe.fps:.3f}, {_where(recipe)}",
        "sampling": recipe.sampling if recipe.window == "grid" else "the frame on display",
        "picture": f"{recipe.resize} to {recipe.image_size} px ({recipe.interpolation}), crop {recipe.crop}",
        "colour": f"untagged video read as {recipe.untagged_colour}",
        "attention": recipe.attention,
        "layer": recipe.layer,
        "arithmetic": f"{recipe.precision}, stored as {recipe.dtype}",
        "tokens": f"{recipe.tokens}, {store.geometry.dim} values each",
        "recipe id": store.recipe_id,
        "store": store.name,
    }
    if isinstance(store, Store):
        spent: dict[str, float] = {}
        for unit in store.committed_units():
            for stage, value in store.committed_marker(unit).seconds.items():
                spent[stage] = spent.get(stage, 0.0) + value
        facts["extraction took"] = ", ".join(f"{stage} {value:.1f} s" for stage, value in spent.items())
    return facts


def _where(recipe: Recipe) -> str:
    if recipe.window == "grid":
        return f"one every {recipe.hop_frames / recipe.fps:.3f}"
    return f"one an action: {window_text(recipe)}"


def _page(
    probe: ProbeReport[Any], controls: ControlReport | None, facts: Mapping[str, str], seconds: Mapping[str, float]
) -> str:
    sections = [
        _head(probe),
        warnings_list(caveats(probe)),
        section("Scores", scores_part(probe)),
        section("Controls", controls_part(controls)),
        section("Classes", classes_part(probe)),
        curves_part(probe),
        section("Confusion", svg.confusion(probe.confusion(), [c.name for c in probe.selection.classes])),
        fractions_part(probe),
        section("What was extracted how", facts_list(facts)),
        section("The probe", facts_list(_probe_facts(probe, seconds))),
    ]
    return document(f"{probe.label}: {probe.title} of {probe.store.recipe.encoder}", sections)


def _head(probe: ProbeReport[Any]) -> str:
    spread = uncertainty(probe).averaged["balanced_accuracy"]
    chance = sum(result.chance for result in probe.results) / len(probe.results)
    interval = "no interval" if spread.low is None else f"95 % over sources {spread.low:.3f} to {spread.high:.3f}"
    tiles = [
        (f"{probe.mean('balanced_accuracy'):.3f}", "balanced accuracy", interval),
        (f"{chance:.3f}", "chance", f"{len(probe.selection.classes)} classes"),
        (f"{probe.mean('macro_f1'):.3f}", "macro-F1", "classes with test rows"),
        (str(spread.sources), "test sources", f"of {len(probe.selection.components.names)} in all"),
        reads_tile(probe.reads),
    ]
    return heading(probe.label, [probe.store.recipe.encoder, probe.protocol], tiles)


def _probe_facts(probe: ProbeReport[Any], seconds: Mapping[str, float]) -> dict[str, str]:
    chosen, head = probe.selection, probe.results[0]
    facts = {
        **probe.facts(),
        "grouped by": " + ".join([*probe.groups, "file content"]),
        "rows": f"{len(chosen.rows)} used of {chosen.ok} ok; {chosen.unlabelled} unlabelled, {chosen.failed} failed, "
        f"{chosen.absent} absent",
        "parameters": f"{head.parameters} of the head; the encoder has none that were fitted",
        probe.chosen(head)[0]: "; ".join(probe.chosen(result)[1] for result in probe.results),
        "splits": ", ".join(dict.fromkeys(result.split_digest[:12] for result in probe.results)),
        "took": ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items()),
    }
    return {**facts, **split_facts(probe.split, probe.reads)}


def split_facts(split: SplitManifest | None, reads: TestReads | None) -> dict[str, str]:
    """The split in a file and why its test part was read again; empty without one."""
    facts = {}
    if split is not None:
        facts["split file"] = f"{path_to_text(split.path or '')}, digest {split.digest}"
    if reads is not None and reads.reasons:
        facts["read again because"] = "; ".join(reads.reasons)
    return facts
