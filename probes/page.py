"""Page: a report as one HTML file that needs no network, with its numbers as JSON beside it."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coldframe.errors import UsageError
from coldframe.probes import control_report, report, svg
from coldframe.probes.bootstrap import MIN_SOURCES
from coldframe.probes.caveats import caveats
from coldframe.probes.control_report import ControlReport
from coldframe.probes.features import TokenStore
from coldframe.probes.linear import LinearReport, class_recalls
from coldframe.probes.page_style import STYLE
from coldframe.probes.svg import text
from coldframe.probes.uncertainty import per_source, uncertainty
from coldframe.probes.verdict import Control
from coldframe.store import Store
from coldframe.store.files import disk_errors, write_bytes
from coldframe.store.text import path_to_text

_REASONS = "what, and why"  # heading of the column that is prose
_METRIC_NAMES = {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1", "top1": "top-1"}


def write_page(
    file: str | os.PathLike[str],
    store: TokenStore,
    probe: LinearReport,
    *,
    controls: ControlReport | None = None,
    seconds: Mapping[str, float],
) -> None:
    """Write `file` (`*.html`) and the same name with `.json`.

    Args:
        store: what was probed; its recipe says how it was extracted.
        probe: the linear probe.
        controls: what `run_controls` found, if it ran.
        seconds: wall time by stage.

    Raises:
        UsageError: the name does not end in `.html`.
        ColdframeError: it cannot be written.
    """
    require_html(file)
    path = Path(file)
    facts = extraction_facts(store)
    plain = {
        "probe": report.to_dict(probe),
        **({} if controls is None else control_report.to_dict(controls)),
        "extraction": facts,
        "seconds": dict(seconds),
    }
    with disk_errors("write", path):
        write_bytes(path.with_suffix(".json"), json.dumps(plain, indent=1, allow_nan=False).encode() + b"\n")
        write_bytes(path, _page(probe, controls, facts, seconds).encode())


def require_html(file: str | os.PathLike[str] | None) -> None:
    """Refuse another ending or a folder that is not there, before the test part is read for nothing."""
    if file is None:
        return
    path = Path(file)
    if path.suffix != ".html" or not path.parent.is_dir():
        raise UsageError(
            f"the report is {path_to_text(path)}; allowed is a name that ends in .html, in a folder that exists."
        )


def extraction_facts(store: TokenStore) -> dict[str, str]:
    """What was extracted how, as text for people."""
    recipe, encoder = store.recipe, store.encoder
    facts = {
        "encoder": recipe.encoder + (" (UNTRAINED: random weights)" if encoder.get("untrained") else ""),
        "weights": recipe.weights_sha256,
        "licence": str(encoder.get("licence")) + ("; no commercial use" if encoder.get("non_commercial") else ""),
        "frames a window": f"{recipe.frames} at {recipe.fps:g} per second",
        "seconds a window": f"{recipe.frames / recipe.fps:.3f}, one every {recipe.hop_frames / recipe.fps:.3f}",
        "sampling": recipe.sampling,
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


def _page(
    probe: LinearReport, controls: ControlReport | None, facts: Mapping[str, str], seconds: Mapping[str, float]
) -> str:
    sections = [
        _head(probe),
        _warnings(probe),
        _section("Scores", _scores(probe)),
        _section("Controls", _controls(controls)),
        _section("Classes", _classes(probe)),
        _section("Confusion", svg.confusion(probe.confusion(), [c.name for c in probe.selection.classes])),
        _fractions(probe),
        _section("What was extracted how", _facts(facts)),
        _section("The probe", _facts(_probe_facts(probe, seconds))),
    ]
    title = f"{probe.label}: linear probe of {probe.encoder}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><meta name="color-scheme" content="light dark"><title>{text(title)}</title>'
        f"<style>{STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


def _head(probe: LinearReport) -> str:
    spread = uncertainty(probe).averaged["balanced_accuracy"]
    chance = sum(result.chance for result in probe.results) / len(probe.results)
    interval = "no interval" if spread.low is None else f"95 % over sources {spread.low:.3f} to {spread.high:.3f}"
    reads = ("-", "not counted: no split file") if probe.reads is None else (str(probe.reads.count), "with this split")
    tiles = [
        (f"{probe.mean('balanced_accuracy'):.3f}", "balanced accuracy", interval),
        (f"{chance:.3f}", "chance", f"{len(probe.selection.classes)} classes"),
        (f"{probe.mean('macro_f1'):.3f}", "macro-F1", "classes with test rows"),
        (str(spread.sources), "test sources", f"of {len(probe.selection.components.names)} in all"),
        (reads[0], "readings of test", reads[1]),
    ]
    boxes = "".join(
        f'<div class="tile"><b>{text(value)}</b><span>{text(name)}</span><small>{text(note)}</small></div>'
        for value, name, note in tiles
    )
    return (
        f"<header><h1>{text(probe.label)}</h1><p>{text(probe.encoder)} &middot; {text(report.PROTOCOL)}</p></header>"
        f'<div class="tiles">{boxes}</div>'
    )


def _warnings(probe: LinearReport) -> str:
    found = caveats(probe)
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in found)
    return f'<section class="warnings"><h2>Before quoting</h2><ul>{items}</ul></section>' if found else ""


def _scores(probe: LinearReport) -> str:
    spread = uncertainty(probe)
    chance = probe.results[0].chance
    bars = [
        svg.Bar(
            name=_METRIC_NAMES[name],
            value=probe.mean(name),
            interval=None if one.low is None or one.high is None else (one.low, one.high),
            reference=chance if name == "balanced_accuracy" else None,
            note=f"{probe.mean(name):.3f}" if one.low is None else f"{one.low:.3f} to {one.high:.3f}",
        )
        for name, one in spread.averaged.items()
    ]
    head = ["seed", "test rows", "sources", "balanced", "macro-F1", "top-1", "top-5", "recall@5", "design effect"]
    rows = [
        [
            str(result.seed),
            str(result.part_rows["test"]),
            str(result.part_sources["test"]),
            *(_value(getattr(result, name)) for name in ("balanced_accuracy", "macro_f1", "top1")),
            _value(result.top5),
            _value(result.class_mean_recall5),
            "-" if of_seed.design.effect is None else f"{of_seed.design.effect:.1f}",
        ]
        for result, of_seed in zip(probe.results, spread.seeds, strict=True)
    ]
    sds = [_value(probe.sd(name)) for name in ("balanced_accuracy", "macro_f1", "top1")]
    rows.append(["sd", "", "", *sds, "", "", ""])
    few = "" if spread.averaged["top1"].low is not None else _sources(probe)
    title = "Scores with 95 % intervals over sources"
    plot = svg.intervals(bars, low=0.0, high=1.0, title=title)
    return f"{plot}<p>Bar: chance. {text(report.seed_meaning(probe))}</p>{_table(head, rows)}{few}"


def _sources(probe: LinearReport) -> str:
    rows = [
        [str(result.seed), name, str(count), str(hits)]
        for result in probe.results
        for name, count, hits in per_source(probe, result)
    ]
    note = f"<p>With fewer than {MIN_SOURCES} test sources there is no interval; these are the sources.</p>"
    return note + _table(["seed", "source", "test rows", "right"], rows)


def _controls(found: ControlReport | None) -> str:
    if found is None:
        return "<p>Not run. <code>coldframe-probe controls STORE --label ... --report R.html</code> runs them.</p>"
    measured = [control for control in found.controls if control.interval is not None and control.effect is not None]
    bars = [
        svg.Bar(
            name=c.name.replace("_", " "), value=c.effect or 0.0, interval=c.interval, reference=0.0, note=c.verdict
        )
        for c in measured
    ]
    plot = svg.intervals(bars, low=-1.0, high=1.0, title="Effects of the controls") if bars else ""
    head = ["control", "verdict", "effect", "95 %", "p", "p Holm", _REASONS]
    return plot + _table(head, [_control(control) for control in found.controls], raw={1}) + _leaks(found)


def _control(control: Control) -> list[str]:
    ends = "-" if control.interval is None else f"{control.interval[0]:+.3f} to {control.interval[1]:+.3f}"
    return [
        control.name.replace("_", " "),
        f'<span class="badge {control.verdict}">{control.verdict.replace("_", " ")}</span>',
        "-" if control.effect is None else f"{control.effect:+.3f}",
        ends,
        "-" if control.p is None else f"{control.p:.2g}",
        "-" if control.p_holm is None else f"{control.p_holm:.2g}",
        f"{control.what}: {control.reason}",
    ]


def _leaks(found: ControlReport) -> str:
    if found.other_sources is None or found.same_source is None:
        return f"<p>Leak meter: {text(found.no_retrieval)}</p>"
    one, both = found.other_sources, found.same_source
    rows = [
        [name, f"{score.micro:.3f}", f"{both.scores[name].micro:.3f}", f"{score.chance:.3f}"]
        for name, score in one.scores.items()
    ]
    head = ["retrieval", "other sources", "with its own source", "chance"]
    return f"<h3>Leak meter</h3>{_table(head, rows)}"


def _classes(probe: LinearReport) -> str:
    counts = probe.confusion()
    rows = []
    columns = (probe.selection.classes, class_recalls(probe), counts.sum(axis=1), counts.sum(axis=0))
    for count, recall, true, answered in zip(*columns, strict=True):
        bar = "" if recall is None else f'<i class="bar" style="--share:{recall:.3f}"></i>{recall:.3f}'
        rows.append([count.name, str(count.sources), str(count.rows), str(true), str(answered), bar])
    head = ["class", "sources", "rows", "test rows", "answered", "test recall"]
    return _table(head, rows, raw={5})


def _fractions(probe: LinearReport) -> str:
    if not probe.fractions:
        return ""
    points = [(result.fraction, result.mean, result.sd) for result in probe.fractions]
    plot = svg.curve(points, chance=probe.results[0].chance, title="Balanced accuracy by share of train sources")
    head = ["share", "sources", "draws", "balanced accuracy", "sd", "most classes without rows"]
    rows = [
        [
            f"{result.fraction:g}",
            str(result.sources),
            str(len(result.balanced_accuracy)),
            f"{result.mean:.3f}",
            _value(result.sd),
            str(max(result.classes_without_rows)),
        ]
        for result in probe.fractions
    ]
    return _section("Sample efficiency", plot + _table(head, rows))


def _probe_facts(probe: LinearReport, seconds: Mapping[str, float]) -> dict[str, str]:
    chosen, head = probe.selection, probe.results[0]
    facts = {
        "features": probe.features,
        "grouped by": " + ".join([*probe.groups, "file content"]),
        "rows": f"{len(chosen.rows)} used of {chosen.ok} ok; {chosen.unlabelled} unlabelled, {chosen.failed} failed, "
        f"{chosen.absent} absent",
        "parameters": f"{head.parameters} of the head; the encoder has none that were fitted",
        "penalty": ", ".join(f"{result.head.penalty:.2g}" for result in probe.results),
        "splits": ", ".join(result.split_digest[:12] for result in probe.results),
        "took": ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items()),
    }
    if probe.split is not None:
        facts["split file"] = f"{path_to_text(probe.split.path or '')}, digest {probe.split.digest}"
    if probe.reads is not None and probe.reads.reasons:
        facts["read again because"] = "; ".join(probe.reads.reasons)
    return facts


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts.items())
    return f"<dl>{rows}</dl>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{text(title)}</h2>{body}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], raw: set[int] | None = None) -> str:
    """A table; cells of the columns `raw` are HTML already, all others are text."""
    raw = raw or set()
    top = "".join(f"<th>{text(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if i in raw else text(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    kind = ' class="wide"' if head[-1] == _REASONS else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _value(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}"
