"""Caveats: what a reader must know before quoting a number of a report."""

from collections.abc import Iterator
from typing import Any

from coldframe.probes.bootstrap import MIN_SOURCES
from coldframe.probes.columns import doubtful_classes
from coldframe.probes.features import TokenStore
from coldframe.probes.probe_report import ProbeReport
from coldframe.probes.sealed import TestReads
from coldframe.probes.selection import Selection
from coldframe.probes.split import MIN_COMPONENTS
from coldframe.store.windows import window_text

_MOST_NAMED = 20


def caveats(report: ProbeReport[Any]) -> list[str]:
    """One sentence each, most serious first."""
    return [
        *of_encoder(report.store),
        *report.notes(),
        *of_reads(report.reads),
        *of_selection(report.selection, (report.split.folds if report.split is not None else 0) or MIN_COMPONENTS),
        *_of_splits(report),
        *_of_rows(report),
    ]


def of_encoder(store: TokenStore) -> Iterator[str]:
    """What is special about the encoder, or about what it was shown."""
    control, untrained = store.recipe.control, store.encoder.get("untrained")
    if store.recipe.window == "before_stop":
        yield f"each clip {window_text(store.recipe)}."
    if control != "none":
        yield f"the store is a CONTROL: its clips were encoded with {control} frames."
    if untrained:
        yield "the encoder is UNTRAINED: its weights are random, so these numbers are a baseline."
    if untrained is None:
        yield "the store does not say whether its encoder was trained."


def of_reads(reads: TestReads | None) -> Iterator[str]:
    """Whether the test part is still unseen."""
    if reads is not None and reads.count > 1:
        why = "; ".join(reads.reasons)
        yield f"the test part has been read {reads.count} times ({why}): it is no longer unseen."


def of_selection(selection: Selection, needed: int = MIN_COMPONENTS) -> Iterator[str]:
    """What is special about the classes in use, and those left out because they have fewer than `needed` sources."""
    excluded = selection.excluded
    if excluded:
        listed = ", ".join(
            f"{count.name!r} ({count.sources} sources, {count.rows} rows)" for count in excluded[:_MOST_NAMED]
        )
        more = f" and {len(excluded) - _MOST_NAMED} more" if len(excluded) > _MOST_NAMED else ""
        yield f"classes with fewer than {needed} sources are left out: {listed}{more}."
    yield from doubtful_classes(count.name for count in (*selection.classes, *excluded))


def _of_splits(report: ProbeReport[Any]) -> Iterator[str]:
    fewest = min(result.part_sources["test"] for result in report.results)
    if fewest < MIN_SOURCES:
        yield (f"{fewest} test sources: too few sources for an interval (at least {MIN_SOURCES} are needed).")
    distinct = len({result.split_digest for result in report.results})
    if report.split is not None and report.split.near_duplicates["suspected_count"]:
        count = report.split.near_duplicates["suspected_count"]
        yield f"{count} pairs of videos look like copies and could not be confirmed: the split lists them."
    if report.seeds_are_splits and distinct < len(report.results):
        yield f"only {distinct} of {len(report.results)} splits differ: the sd over seeds is too small."
    if report.selection.file_is_source:
        yield "every file is its own source: files that share a person, scene or date may be on both sides."


def of_missing(failed: int, absent: int) -> Iterator[str]:
    """Whether rows that were planned are not there."""
    if failed + absent:
        yield (
            f"{failed} failed and {absent} absent rows are not used: if they are not missing at random, the numbers "
            "are biased."
        )


def _of_rows(report: ProbeReport[Any]) -> Iterator[str]:
    selection = report.selection
    yield from of_missing(selection.failed, selection.absent)
    if report.reads_cls and report.store.recipe.clip_cls == "token" and selection.padded:
        yield f"{selection.padded} rows are padded: their [CLS] has seen repeated frames."
