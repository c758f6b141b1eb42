"""Scores on a page: intervals, seeds, calibration, classes, curves, sample efficiency."""

from typing import Any

from coldframe.probes import svg
from coldframe.probes.bootstrap import MIN_SOURCES
from coldframe.probes.html_parts import number, section, table
from coldframe.probes.probe_report import ProbeReport
from coldframe.probes.report import CALIBRATION_NAMES
from coldframe.probes.svg import text
from coldframe.probes.svg_lines import line_plot
from coldframe.probes.uncertainty import per_source, uncertainty

_METRIC_NAMES = {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1", "top1": "top-1"}


def scores_part(probe: ProbeReport[Any]) -> str:
    """Intervals over sources, a line a seed, and calibration."""
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
    head = ["seed", "test rows", "sources", "balanced", "macro-F1", "top-1"]
    names = tuple(_METRIC_NAMES)
    if probe.results[0].top5 is not None:
        head, names = [*head, "top-5", "recall@5"], (*names, "top5", "class_mean_recall5")
    rows = [
        [
            str(result.seed),
            str(result.part_rows["test"]),
            str(result.part_sources["test"]),
            *(number(getattr(result, name)) for name in names),
            "-" if of_seed.design.effect is None else f"{of_seed.design.effect:.1f}",
        ]
        for result, of_seed in zip(probe.results, spread.seeds, strict=True)
    ]
    for kind, over_seeds in (("mean", probe.mean), ("sd", probe.sd)):
        rows.append([kind, "", "", *(number(over_seeds(name)) for name in names), ""])
    absent = any(of_seed.design.effect is None for of_seed in spread.seeds)
    why = "<p>No design effect: one test row a source, or all or none of the rows are right.</p>" if absent else ""
    few = "" if spread.averaged["top1"].low is not None else _sources(probe)
    title = "Scores with 95 % intervals over sources"
    plot = svg.intervals(bars, low=0.0, high=1.0, title=title)
    seeds = table([*head, "design effect"], rows) + why
    return f"{plot}<p>Bar: chance. {text(probe.seed_meaning)}</p>{seeds}{few}{_calibration(probe)}"


def _sources(probe: ProbeReport[Any]) -> str:
    rows = [
        [str(result.seed), name, str(count), str(hits)]
        for result in probe.results
        for name, count, hits in per_source(probe, result)
    ]
    note = f"<p>With fewer than {MIN_SOURCES} test sources there is no interval; these are the sources.</p>"
    return note + table(["seed", "source", "test rows", "right"], rows)


def _calibration(probe: ProbeReport[Any]) -> str:
    found = probe.calibration()
    if not found:
        return f"<h3>Calibration</h3><p>Absent: {text(probe.no_calibration)}.</p>"
    rows = [
        [str(result.seed), *(number(getattr(result.calibration, name)) for name in CALIBRATION_NAMES)]
        for result in probe.results
    ]
    for kind in ("mean", "sd"):
        rows.append([kind, *(number(found[name][kind]) for name in CALIBRATION_NAMES)])
    note = "<p>Of the probabilities on test. ECE is never 0: beside it is what calibrated outcomes would give.</p>"
    return f"<h3>Calibration</h3>{table(['seed', *CALIBRATION_NAMES.values()], rows)}{note}"


def classes_part(probe: ProbeReport[Any]) -> str:
    """Counts and recall of each class."""
    counts = probe.confusion()
    rows = []
    columns = (probe.selection.classes, probe.recalls(), counts.sum(axis=1), counts.sum(axis=0))
    for count, recall, true, answered in zip(*columns, strict=True):
        bar = "" if recall is None else f'<i class="bar" style="--share:{recall:.3f}"></i>{recall:.3f}'
        rows.append([count.name, str(count.sources), str(count.rows), str(true), str(answered), bar])
    head = ["class", "sources", "rows", "test rows", "answered", "test recall"]
    return table(head, rows, raw={5})


def curves_part(probe: ProbeReport[Any]) -> str:
    """How the fit went; empty for a closed form without curves."""
    plots = [line_plot(plot) for plot in probe.plots()]
    note = "<p>Strong: what was chosen on validation. Pale: the rest of the grid.</p>"
    return section("Curves", note + "".join(plots)) if plots else ""


def fractions_part(probe: ProbeReport[Any]) -> str:
    """Sample efficiency; empty if it was not asked for."""
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
            number(result.sd),
            str(max(result.classes_without_rows)),
        ]
        for result in probe.fractions
    ]
    return section("Sample efficiency", plot + table(head, rows))
