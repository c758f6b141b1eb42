"""An anticipation report as one HTML page, with its numbers as JSON and its plots as SVG beside it."""

import os
from collections.abc import Mapping

from coldframe.probes import svg
from coldframe.probes.actions import class_name
from coldframe.probes.anticipation import AnticipationReport, TaskResult
from coldframe.probes.anticipation_report import (
    METRICS,
    OF_RELEASED_FILTER,
    interval_text,
    protocol,
    score_cells,
    spread,
    title,
    to_dict,
    warnings,
)
from coldframe.probes.html_parts import heading, number, reads_tile, section, table, warnings_list
from coldframe.probes.page import split_facts, write_sections
from coldframe.probes.svg import text

_MOST_CLASSES = 200  # of one task in the table; JSON has all of them


def write_anticipation_page(
    file: str | os.PathLike[str], report: AnticipationReport, *, seconds: Mapping[str, float]
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
        *(section(f"Classes: {one.task.name}", _classes(one)) for one in report.tasks),
    ]
    write_sections(
        file,
        report.store,
        title=f"{title(report)}: ",
        sections=sections,
        facts=_facts(report, seconds),
        plain=to_dict(report),
        seconds=seconds,
    )


def _head(report: AnticipationReport) -> str:
    tiles = []
    for one in report.tasks:
        name = "recall5" if one.seeds[0].recall5 is not None else "recall1"
        interval = one.intervals[name]
        between = "no interval" if interval.low is None else f"95 % over sources {interval_text(interval)}"
        tiles.append((number(spread(one.seeds, name)["mean"]), f"{one.task.name}: {METRICS[name]}", between))
    tiles.append((str(len(report.split.test)), "test actions", f"of {len(report.rows.rows)} in all"))
    return heading(title(report), [report.store.recipe.encoder, protocol(report)], [*tiles, reads_tile(report.reads)])


def _scores(report: AnticipationReport) -> str:
    bars, rows = [], []
    for one in report.tasks:
        for name, label in METRICS.items():
            mean, interval = spread(one.seeds, name)["mean"], one.intervals.get(name)
            frequency = getattr(one.frequency, name)
            rows.append(
                [
                    one.task.name,
                    label,
                    *score_cells(one, name),
                    number(frequency),
                    number(spread(one.filtered, name)["mean"]),
                ]
            )
            if mean is not None:
                ends = None if interval is None or interval.low is None or interval.high is None else interval
                bars.append(
                    svg.Bar(
                        name=f"{one.task.name}, {label}",
                        value=mean,
                        interval=None if ends is None else (ends.low or 0.0, ends.high or 0.0),
                        reference=frequency,
                        note=number(mean),
                    )
                )
    plot = svg.intervals(bars, low=0.0, high=1.0, title="Scores with 95 % intervals over sources")
    head = ["task", "score", "mean", "sd over seeds", "95 % over sources", "by train frequency", "known actions only"]
    return (
        f"{plot}<p>Bar: what answering train's commonest classes scores.</p>{table(head, rows)}"
        f"<p>Known actions only: {text(OF_RELEASED_FILTER)}.</p>"
    )


def _classes(one: TaskResult) -> str:
    largest = sorted(one.per_class, key=lambda entry: (-entry[1], entry[0]))[:_MOST_CLASSES]
    known = {class_name(name) for name in one.task.classes}
    rows = [
        [
            name,
            "yes" if name in known else "no",
            str(count),
            f'<i class="bar" style="--share:{share:.3f}"></i>{share:.3f}',
        ]
        for name, count, share in largest
    ]
    k = 5 if one.seeds[0].recall5 is not None else 1
    note = (
        f"{one.unseen_classes} of {one.seeds[0].classes} classes in test, with {one.unseen_rows} rows, are not in "
        "train; they count 0."
    )
    return f"<p>{text(note)}</p>{table(['class', 'in train', 'test rows', f'recall@{k}'], rows, raw={3})}"


def _facts(report: AnticipationReport, seconds: Mapping[str, float]) -> dict[str, str]:
    rows, reading = report.rows, report.read.to_dict()
    return {
        "classes from": " and ".join(report.columns),
        "grouped by": " + ".join([*report.groups, "file content"]),
        "rows": f"{len(rows.rows)} used of {rows.ok} ok; {rows.unlabelled} unlabelled, {rows.failed} failed, "
        f"{rows.absent} absent, {rows.padded} padded, {rows.unlisted} of videos that the split leaves out",
        "parameters": f"{report.parameters} of one head; the encoder has none that were fitted",
        "lr, weight decay": f"{report.rate:g}, {report.decay:g}",
        "loss": report.preset.loss,
        "split": report.split.digest[:12],
        "reading": f"{reading['rows_per_s']:.1f} rows/s, {reading['mb_per_s']:.1f} MB/s while training",
        "took": ", ".join(f"{stage} {value:.1f} s" for stage, value in seconds.items()),
        **split_facts(report.manifest, report.reads),
    }
