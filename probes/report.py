"""A probe's report as text for people and as plain data for JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from coldframe.cli_errors import one_line
from coldframe.probes.caveats import caveats
from coldframe.probes.features import TokenStore
from coldframe.probes.probe_report import ProbeReport
from coldframe.probes.scored import Scored
from coldframe.probes.sealed import TestReads
from coldframe.probes.selection import Selection
from coldframe.probes.source_counts import METRICS
from coldframe.probes.split_manifest import SplitManifest
from coldframe.probes.uncertainty import uncertainty
from coldframe.store.text import path_to_text

CALIBRATION_NAMES = {
    "ece": "ECE",
    "ece_equal_mass": "ECE, equal mass",
    "ece_if_calibrated": "ECE if calibrated",
    "nll": "NLL, nats",
    "brier": "Brier",
}
_WIDEST_CONFUSION = 30  # classes
_SHORT = 12  # hexadecimal digits of a digest that people compare


def to_dict(report: ProbeReport[Any]) -> dict[str, Any]:
    """Everything in `report`, ready for `json.dumps`."""
    chosen = report.selection
    counts = report.confusion()
    spread = uncertainty(report)
    return {
        "protocol": report.protocol,
        **store_dict(report.store),
        "label": report.label,
        "group": list(report.groups),
        "rows": rows_dict(chosen),
        "classes": [
            {**asdict(count), "recall": recall, "test_rows": int(rows)}
            for count, recall, rows in zip(chosen.classes, report.recalls(), counts.sum(axis=1), strict=True)
        ],
        "excluded_classes": [asdict(count) for count in chosen.excluded],
        "sources": len(chosen.components.names),
        "seed_meaning": report.seed_meaning,
        "seeds": [
            {**_seed_dict(result), **report.seed_details(place), "uncertainty": asdict(spread.seeds[place])}
            for place, result in enumerate(report.results)
        ],
        **{
            name: {
                "mean": report.mean(name),
                "sd": report.sd(name),
                "interval": asdict(spread.averaged[name]),
            }
            for name in METRICS
        },
        "calibration": report.calibration() or None,
        "no_calibration": report.no_calibration or None,
        "split": split_dict(report.split, report.reads),
        "confusion": counts.tolist(),
        **report.details(),
        "warnings": caveats(report),
    }


def store_dict(store: TokenStore) -> dict[str, Any]:
    """Which store, and what made it, for `json.dumps`."""
    return {
        "store": store.name,
        "encoder": {
            "name": store.recipe.encoder,
            "untrained": store.encoder.get("untrained"),
            "licence": store.encoder.get("licence"),
        },
        "recipe_id": store.recipe_id,
    }


def rows_dict(chosen: Selection) -> dict[str, int]:
    """How many rows are used, and why others are not, for `json.dumps`."""
    return {
        "ok": chosen.ok,
        "failed": chosen.failed,
        "absent": chosen.absent,
        "unlabelled": chosen.unlabelled,
        "excluded": sum(count.rows for count in chosen.excluded),
        "used": len(chosen.rows),
        "padded": chosen.padded,
    }


def _seed_dict(result: Scored[Any]) -> dict[str, Any]:
    # Not asdict, which would keep the arrays.
    fields = {name: value for name, value in vars(result).items() if name not in ("split", "scores", "head")}
    calibration = None if result.calibration is None else asdict(result.calibration)
    return {**fields, "calibration": calibration, "confusion": result.confusion.tolist()}


def split_dict(split: SplitManifest | None, reads: TestReads | None) -> dict[str, Any] | None:
    """A split in a file and the readings of its test part; None without one."""
    if split is None:
        return None
    return {
        "file": None if split.path is None else path_to_text(split.path),
        "digest": split.digest,
        "by": list(split.by),
        "folds": split.folds,
        "seed": split.seed,
        "test_reads": None if reads is None else asdict(reads),
    }


def to_text(report: ProbeReport[Any]) -> str:
    """The report as people read it; ends with the warnings."""
    sections = [
        _head(report),
        _classes(report),
        _scores(report),
        _intervals(report),
        _calibration(report),
        _fractions(report),
        _confusion(report),
        "\n".join(f"warning: {text}" for text in map(one_line, caveats(report))),
    ]
    return "\n\n".join(section for section in sections if section)


def _head(report: ProbeReport[Any]) -> str:
    protocol = report.protocol
    lines = [
        f"{protocol[0].upper()}{protocol[1:]}.",
        *store_lines(report.store),
        *(f"{name:<9} {one_line(value)}" for name, value in report.facts().items()),
        *selection_lines(report.selection, report.label, report.groups),
        f"test      {read_text(report.reads)}",
    ]
    return "\n".join(lines)


def store_lines(store: TokenStore) -> list[str]:
    """Which store, and what made it."""
    untrained = "  *** UNTRAINED: random weights ***" if store.encoder.get("untrained") else ""
    return [
        f"store     {one_line(store.name)}",
        f"encoder   {one_line(store.recipe.encoder)}{untrained}",
        f"recipe    {store.recipe_id[:_SHORT]}",
    ]


def selection_lines(chosen: Selection, label: str, groups: Sequence[str]) -> list[str]:
    """Which rows of it are used."""
    excluded = sum(count.rows for count in chosen.excluded)
    columns = " + ".join([*map(one_line, groups), "file content"])
    return [
        f"label     {one_line(label)}",
        f"grouped   by {columns}: {len(chosen.components.names)} sources",
        f"rows      {len(chosen.rows)} used of {chosen.ok} ok ({chosen.unlabelled} unlabelled, {excluded} in "
        f"excluded classes); {chosen.failed} failed, {chosen.absent} absent",
    ]


def _classes(report: ProbeReport[Any]) -> str:
    rows = [
        [
            f"{number} {one_line(count.name)}",
            str(count.sources),
            str(count.rows),
            "-" if recall is None else f"{recall:.3f}",
        ]
        for number, (count, recall) in enumerate(zip(report.selection.classes, report.recalls(), strict=True))
    ]
    return table(["class", "sources", "rows", "test recall"], rows)


def _scores(report: ProbeReport[Any]) -> str:
    head = [
        "seed",
        "test rows",
        "test sources",
        "balanced acc",
        "chance",
        "macro-F1",
        "top-1",
        "majority",
        report.chosen(report.results[0])[0],
        "split",
    ]
    rows = [
        [
            str(result.seed),
            str(result.part_rows["test"]),
            str(result.part_sources["test"]),
            f"{result.balanced_accuracy:.3f}",
            f"{result.chance:.3f}",
            f"{result.macro_f1:.3f}",
            f"{result.top1:.3f}",
            f"{result.majority_top1:.3f}",
            report.chosen(result)[1],
            result.split_digest[:_SHORT],
        ]
        for result in report.results
    ]
    for name, of in (("mean", report.mean), ("sd", report.sd)):
        values = [of("balanced_accuracy"), of("macro_f1"), of("top1")]
        accuracy, f1, top = ("-" if value is None else f"{value:.3f}" for value in values)
        rows.append([name, "", "", accuracy, "", f1, top, "", "", ""])
    return f"{table(head, rows)}\n{report.seed_meaning}"


def read_text(reads: TestReads | None) -> str:
    """How often the test part was read, or why nobody knows."""
    if reads is None:
        return "no split in a file, so no reading is counted; fix a split with --split to count them"
    times = "once" if reads.count == 1 else f"{reads.count} times"
    return f"part read {times} ({one_line(reads.ledger)})"


def _intervals(report: ProbeReport[Any]) -> str:
    spread = uncertainty(report)
    rows = []
    for name, interval in spread.averaged.items():
        ends = f"{interval.low:.3f} to {interval.high:.3f}" if interval.low is not None else f"none: {interval.reason}"
        rows.append([name.replace("_", " "), f"{report.mean(name):.3f}", ends])
    text = table(["95 % over sources", "mean", "cluster bootstrap"], rows)
    effects = [seed.design.effect for seed in spread.seeds if seed.design.effect is not None]
    if effects:
        text += f"\nDesign effect of top-1: {min(effects):.1f} to {max(effects):.1f}; so many rows count as one."
    absent = max(interval.absent_share for interval in spread.averaged.values())
    if absent:
        text += f"\n{_share(absent)} of the replicates lack a class and average over the others."
    return text


def _share(share: float) -> str:
    """A share in (0, 1] in whole per cent, without calling a few none or nearly all all."""
    if share < 0.005:
        return "Fewer than 1%"
    return "More than 99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _calibration(report: ProbeReport[Any]) -> str:
    found = report.calibration()
    if not found:
        return f"No calibration: {report.no_calibration}."
    rows = [
        [CALIBRATION_NAMES[name], f"{one['mean']:.3f}", "-" if one["sd"] is None else f"{one['sd']:.3f}"]
        for name, one in found.items()
    ]
    return table(["calibration on test", "mean", "sd"], rows)


def _fractions(report: ProbeReport[Any]) -> str:
    if not report.fractions:
        return ""
    rows = [
        [
            f"{result.fraction:g}",
            str(result.sources),
            str(len(result.balanced_accuracy)),
            f"{result.mean:.3f}",
            "-" if result.sd is None else f"{result.sd:.3f}",
            f"{max(result.classes_without_rows)}",
        ]
        for result in report.fractions
    ]
    head = ["share of train", "sources", "draws", "balanced acc", "sd", "most classes without rows"]
    return f"{table(head, rows)}\nNested shares of the first split's train sources, always on all of its test rows."


def _confusion(report: ProbeReport[Any]) -> str:
    names = [count.name for count in report.selection.classes]
    if len(names) > _WIDEST_CONFUSION:
        return f"confusion: {len(names)} classes are too many to print; --json has the matrix."
    rows = [
        [f"{number} {one_line(name)}", *map(str, line)]
        for number, (name, line) in enumerate(zip(names, report.confusion().tolist(), strict=True))
    ]
    title = f"Test rows summed over {len(report.results)} results, true class by row, predicted class by column:"
    return f"{title}\n{table(['true', *map(str, range(len(names)))], rows)}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; the first to the left, the others to the right."""
    widths = np.max([[len(cell) for cell in row] for row in [head, *rows]], axis=0)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    )
