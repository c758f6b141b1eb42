"""Caveats: what a reader must know before quoting a number of a report."""

from collections.abc import Iterator

from coldframe.probes.linear import LinearReport
from coldframe.probes.selection import Selection
from coldframe.probes.split import MIN_COMPONENTS

MIN_SOURCES_FOR_INTERVAL = 10  # below it even intervals over sources undercover
_MOST_NAMED = 20


def caveats(report: LinearReport) -> list[str]:
    """One sentence each, most serious first."""
    return [*_of_encoder(report), *_of_classes(report.selection), *_of_splits(report), *_of_rows(report)]


def _of_encoder(report: LinearReport) -> Iterator[str]:
    if report.untrained:
        yield "the encoder is UNTRAINED: its weights are random, so these numbers are a baseline."
    if report.untrained is None:
        yield "the store does not say whether its encoder was trained."


def _of_classes(selection: Selection) -> Iterator[str]:
    excluded = selection.excluded
    if excluded:
        listed = ", ".join(
            f"{count.name!r} ({count.sources} sources, {count.rows} rows)" for count in excluded[:_MOST_NAMED]
        )
        more = f" and {len(excluded) - _MOST_NAMED} more" if len(excluded) > _MOST_NAMED else ""
        yield f"classes with fewer than {MIN_COMPONENTS} sources are left out: {listed}{more}."


def _of_splits(report: LinearReport) -> Iterator[str]:
    fewest = min(result.part_sources["test"] for result in report.results)
    if fewest < MIN_SOURCES_FOR_INTERVAL:
        yield (
            f"{fewest} test sources: too few sources for an interval (at least {MIN_SOURCES_FOR_INTERVAL} are needed)."
        )
    distinct = len({result.split_digest for result in report.results})
    if distinct < len(report.results):
        yield f"only {distinct} of {len(report.results)} splits differ: the sd over seeds is too small."
    if report.selection.file_is_source:
        yield "every file is its own source: files that share a person, scene or date may be on both sides."


def _of_rows(report: LinearReport) -> Iterator[str]:
    selection = report.selection
    if selection.failed + selection.absent:
        yield (
            f"{selection.failed} failed and {selection.absent} absent rows are not used: if they are not "
            "missing at random, the numbers are biased."
        )
    if report.features == "cls" and selection.padded:
        yield f"{selection.padded} rows are padded: their [CLS] has seen repeated frames."
