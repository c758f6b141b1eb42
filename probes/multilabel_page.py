"""A multi-label report as one HTML page, with its numbers as JSON beside it."""

import os
from collections.abc import Mapping

import numpy as np

from coldframe.probes import svg
from coldframe.probes.html_parts import heading, number, reads_tile, section, table, warnings_list
from coldframe.probes.multilabel import MultiLabelReport
from coldframe.probes.multilabel_report import CALIBRATION_MEANING, PROTOCOL, seed_meaning, to_dict, warnings
from coldframe.probes.page import split_facts, write_sections
from coldframe.probes.report import CALIBRATION_NAMES
from coldframe.probes.svg import text


def write_multilabel_page(
    file: str | os.PathLike[str], report: MultiLabelReport, *, seconds: Mapping[str, float]
) -> None:
    """Write `file` (`*.html`) and the same name with `.json`.

    Args:
        seconds: wall time by stage.

    Raises:
        UsageError: the name does not end in `.html`.
        ColdframeError: it cannot be written.
    """
    sections = [
        _head(report),
        warnings_list(warnings(report)),
        section("Scores", _scores(report)),
        section("Classes", _classes(report)),
    ]
    write_sections(
        file,
        report.store,
        title=f"{report.label}: multi-label probe of ",
        sections=sections,
        facts=_probe_facts(report, seconds),
        plain=to_dict(report),
        seconds=seconds,
    )


def _head(report: MultiLabelReport) -> str:
    low, high = report.interval.low, report.interval.high
    interval = "no interval" if low is None else f"95 % over sources {low:.3f} to {high:.3f}"
    tiles = [
        (number(_mean(report, "map")), "mAP over videos", interval),
        (number(_mean(report, "chance")), "chance", f"{len(report.selection.classes)} classes"),
        (number(_mean(report, "map_windows")), "mAP of windows", "windows taken as items"),
        (str(report.interval.sources), "test sources", f"of {len(report.selection.components.names)} in all"),
        reads_tile(report.reads),
    ]
    return heading(report.label, [report.store.recipe.encoder, PROTOCOL], tiles)


def _scores(report: MultiLabelReport) -> str:
    bars = [
        svg.Bar(
            name=f"mAP, seed {one.seed}",
            value=one.map,
            interval=None
            if one.interval.low is None or one.interval.high is None
            else (one.interval.low, one.interval.high),
            reference=one.chance,
            note=number(one.map),
        )
        for one in report.results
    ]
    head = ["seed", "C", "validation mAP", "mAP", "low", "high", "mAP of windows", "videos", "sources", "absent"]
    rows = [
        [
            str(one.seed),
            f"{one.head.strength:.2g}",
            *map(number, (one.validation_map, one.map, one.interval.low, one.interval.high, one.map_windows)),
            *map(str, (one.test_videos, one.test_sources, one.absent)),
        ]
        for one in report.results
    ]
    plot = svg.intervals(bars, low=0.0, high=1.0, title="mAP with 95 % intervals over sources")
    calibrated = [
        [str(one.seed), *(number(getattr(one.calibration, name)) for name in CALIBRATION_NAMES)]
        for one in report.results
    ]
    return (
        f"{plot}<p>Bar: chance. {text(seed_meaning(report))}</p>{table(head, rows)}"
        "<p>Absent: classes without a positive in test.</p>"
        f"{table(['seed', *CALIBRATION_NAMES.values()], calibrated)}<p>{text(CALIBRATION_MEANING)}</p>"
    )


def _classes(report: MultiLabelReport) -> str:
    per_class = np.array([one.per_class for one in report.results])
    rows = []
    for count, values in zip(report.selection.classes, per_class.T, strict=True):
        seen = values[np.isfinite(values)]
        share = None if not len(seen) else float(seen.mean())
        bar = "" if share is None else f'<i class="bar" style="--share:{share:.3f}"></i>{share:.3f}'
        rows.append([count.name, str(count.sources), str(count.rows), bar])
    return table(["class", "sources", "rows", "AP on test"], rows, raw={3})


def _probe_facts(report: MultiLabelReport, seconds: Mapping[str, float]) -> dict[str, str]:
    chosen = report.selection
    return {
        "features": report.features,
        "grouped by": " + ".join([*report.groups, "file content"]),
        "rows": f"{len(chosen.rows)} used, {chosen.without_label} of them with no label; "
        f"{chosen.unlabelled} unlabelled; "
        f"{chosen.unlisted} of videos that the split leaves out",
        "C": "; ".join(f"{one.head.strength:.2g}" for one in report.results),
        "splits": ", ".join(dict.fromkeys(one.split_digest[:12] for one in report.results)),
        "took": ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items()),
        **split_facts(report.split, report.reads),
    }


def _mean(report: MultiLabelReport, metric: str) -> float:
    return float(np.mean([getattr(one, metric) for one in report.results]))
