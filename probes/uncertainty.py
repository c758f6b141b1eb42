"""Uncertainty of a probe's scores: intervals over sources, and what clustering costs.

Spread over seeds (other splits, or other initial weights) and intervals over sources answer different questions and
are never added up.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coldframe.probes.bootstrap import (
    DesignEffect,
    Interval,
    averaged_bootstrap,
    cluster_bootstrap,
    cluster_robust,
    design_effect,
)
from coldframe.probes.metrics import decide
from coldframe.probes.probe_report import ProbeReport
from coldframe.probes.scored import Scored
from coldframe.probes.source_counts import HITS, METRICS, TRUE, Counts, source_counts


@dataclass(frozen=True, kw_only=True)
class SeedUncertainty:
    """Uncertainty of one test set.

    Attributes:
        intervals: cluster bootstrap of each metric, by its name.
        top1_robust: cluster-robust t interval of top-1.
        design: design effect of top-1.
    """

    intervals: dict[str, Interval]
    top1_robust: Interval
    design: DesignEffect


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Uncertainty of a report.

    Attributes:
        averaged: cluster bootstrap of each metric averaged over seeds.
        seeds: one a result.
    """

    averaged: dict[str, Interval]
    seeds: tuple[SeedUncertainty, ...]


def uncertainty(report: ProbeReport[Any]) -> Uncertainty:
    """Intervals of every score of `report`."""
    counts = [counts_of_test(report, result) for result in report.results]
    return Uncertainty(
        averaged={name: averaged_bootstrap(counts, metric) for name, metric in METRICS.items()},
        seeds=tuple(_of_one(one) for one in counts),
    )


def counts_of_test(report: ProbeReport[Any], result: Scored[Any]) -> Counts:
    """(sources, 3, classes) of one test set; sources are all leak components of the selection."""
    selection = report.selection
    return source_counts(
        selection.labels.codes[result.split.test],
        decide(result.scores),
        selection.components.codes[result.split.test],
        classes=len(selection.labels.names),
        count=len(selection.components.names),
    )


def per_source(report: ProbeReport[Any], result: Scored[Any]) -> list[tuple[str, int, int]]:
    """(component, test rows, right rows) of each source of one test set; what to show where there is no interval."""
    counts = counts_of_test(report, result)
    rows, hits = counts[:, TRUE].sum(axis=1), counts[:, HITS].sum(axis=1)
    names = report.selection.components.names
    return [(names[source], int(rows[source]), int(hits[source])) for source in np.flatnonzero(rows).tolist()]


def _of_one(counts: Counts) -> SeedUncertainty:
    hits, rows = counts[:, HITS].sum(axis=1), counts[:, TRUE].sum(axis=1)
    return SeedUncertainty(
        intervals={name: cluster_bootstrap(counts, metric) for name, metric in METRICS.items()},
        top1_robust=cluster_robust(hits, rows),
        design=design_effect(hits, rows),
    )
