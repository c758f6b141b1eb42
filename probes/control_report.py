"""Control report: a probe, its controls, and how much sources give away, from one reading of the test part."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coldframe.cli_errors import one_line
from coldframe.errors import UsageError
from coldframe.probes.baseline_controls import baseline_controls
from coldframe.probes.category import Category
from coldframe.probes.columns import video_text
from coldframe.probes.controls import PERMUTATIONS, Problem, label_controls, leak_controls
from coldframe.probes.features import FeatureKind, TokenStore, read_varied_features
from coldframe.probes.linear import LinearReport, linear_probe
from coldframe.probes.make_split import frame_reader
from coldframe.probes.near_duplicates import Windows, find_near_duplicates
from coldframe.probes.report import table
from coldframe.probes.retrieval import Retrieval, retrieve
from coldframe.probes.siblings import Siblings, sibling_controls
from coldframe.probes.split_manifest import SplitManifest
from coldframe.probes.verdict import Control, judged


@dataclass(frozen=True, kw_only=True, eq=False)
class ControlReport:
    """What `controls` found.

    Attributes:
        probe: the linear probe; the controls are of its first split.
        controls: judged, in the order of the documentation.
        other_sources, same_source: retrieval without and with windows of the query's own source; their difference
            is what a leak could contribute. None if it cannot be measured; `no_retrieval` says why.
        no_retrieval: why there is no retrieval.
    """

    probe: LinearReport
    controls: tuple[Control, ...]
    other_sources: Retrieval | None
    same_source: Retrieval | None
    no_retrieval: str


def run_controls(
    store: TokenStore,
    *,
    label: str,
    groups: tuple[str, ...] = ("source",),
    features: FeatureKind = "cls",
    seeds: Sequence[int] = (0, 1, 2),
    split: SplitManifest | None = None,
    again: str | None = None,
    siblings: Siblings | None = None,
    permutations: int = PERMUTATIONS,
    on_rows: Callable[[int], object] = lambda count: None,
    on_fit: Callable[[int], object] = lambda count: None,
) -> ControlReport:
    """Probe `store` and run every control that can be run; arguments as `linear_probe`.

    Args:
        siblings: stores of the same clips under a control.
        permutations: of the label null.
        on_fit: called with 1 after each permutation.
    """
    probe = linear_probe(
        store, label=label, groups=groups, features=features, seeds=seeds, split=split, again=again, on_rows=on_rows
    )
    selection = probe.selection
    matrix = read_varied_features(store, selection.rows, features)
    problem = Problem(matrix=matrix, selection=selection, split=probe.results[0].split)
    video = store.column("video").astype(np.int64)[selection.rows]
    starts = store.column("clip_start_s")[selection.rows]
    windows = Windows(features=matrix, video=video, components=selection.components, start_s=starts)
    copies = find_near_duplicates(windows, frame_reader(store, selection.rows))
    sources = Category.from_text([video_text(store, "source")[v] for v in video.tolist()])
    controls = [
        *leak_controls(problem, sources, copies, video),
        *label_controls(problem, permutations=permutations, on_fit=on_fit),
        *baseline_controls(store, problem, features),
        *([] if siblings is None else sibling_controls(store, problem, features, siblings)),
    ]
    sha256 = video_text(store, "sha256")
    names = [f"{sha256[v]} {start}" for v, start in zip(video.tolist(), starts.tolist(), strict=True)]
    try:
        pair = [
            retrieve(matrix, selection.labels, selection.components, names, exclude_same_source=exclude)
            for exclude in (True, False)
        ]
    except UsageError as error:
        return ControlReport(
            probe=probe, controls=tuple(judged(controls)), other_sources=None, same_source=None, no_retrieval=str(error)
        )
    return ControlReport(
        probe=probe, controls=tuple(judged(controls)), other_sources=pair[0], same_source=pair[1], no_retrieval=""
    )


def to_dict(report: ControlReport) -> dict[str, Any]:
    """The controls and the leak meter, ready for `json.dumps`; the probe has a `to_dict` of its own."""
    return {
        "controls": [asdict(control) for control in report.controls],
        "leak_meter": {
            "other_sources": None if report.other_sources is None else asdict(report.other_sources),
            "same_source": None if report.same_source is None else asdict(report.same_source),
            "no_retrieval": report.no_retrieval,
        },
    }


def to_text(report: ControlReport) -> str:
    """Verdict table and leak meter."""
    rows = [
        [
            control.name,
            control.verdict.replace("_", " "),
            _number(control.effect),
            "-" if control.interval is None else f"{control.interval[0]:+.3f} to {control.interval[1]:+.3f}",
            _p(control.p),
            _p(control.p_holm),
            str(control.draws or "-"),
            str(control.sources or "-"),
        ]
        for control in report.controls
    ]
    head = ["control", "verdict", "effect", "95 %", "p", "p Holm", "draws", "test sources"]
    reasons = [f"{control.name}: {control.what}: {one_line(control.reason)}." for control in report.controls]
    return "\n\n".join([table(head, rows), "\n".join(reasons), _leak_text(report)])


def _leak_text(report: ControlReport) -> str:
    if report.other_sources is None or report.same_source is None:
        return f"leak meter: {report.no_retrieval}"
    one, both = report.other_sources, report.same_source
    rows = [
        [name, f"{one.scores[name].micro:.3f}", f"{both.scores[name].micro:.3f}", f"{one.scores[name].chance:.3f}"]
        for name in one.scores
    ]
    lines = [
        "Leak meter: retrieval over all windows, without and with windows of the query's own source.",
        table(["metric", "other sources", "and its own", "chance"], rows),
        f"The nearest other window is of the same source for {both.nearest_same_source:.1%} of the windows: the more, "
        "the more a window-level split would flatter.",
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _p(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
