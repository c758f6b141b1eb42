"""A linear probe's report as text for people and as plain data for JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from coldframe.cli_errors import one_line
from coldframe.probes.caveats import caveats
from coldframe.probes.linear import LinearReport, SeedResult, class_recalls

PROTOCOL = "linear probe: closed-form ridge, one-vs-all, lambda chosen on validation, test read once a seed"
SEED_MEANING = "Each seed is another split by source; the closed-form head has no seed of its own."

_WIDEST_CONFUSION = 30  # classes
_SHORT = 12  # hexadecimal digits of a digest that people compare


def to_dict(report: LinearReport) -> dict[str, Any]:
    """Everything in `report`, ready for `json.dumps`."""
    chosen = report.selection
    counts = report.confusion()
    return {
        "protocol": PROTOCOL,
        "store": report.store,
        "encoder": {"name": report.encoder, "untrained": report.untrained, "licence": report.licence},
        "recipe_id": report.recipe_id,
        "label": report.label,
        "group": list(report.groups),
        "features": report.features,
        "rows": {
            "ok": chosen.ok,
            "failed": chosen.failed,
            "absent": chosen.absent,
            "unlabelled": chosen.unlabelled,
            "excluded": sum(count.rows for count in chosen.excluded),
            "used": len(chosen.rows),
            "padded": chosen.padded,
        },
        "classes": [
            {**asdict(count), "recall": recall, "test_rows": int(rows)}
            for count, recall, rows in zip(chosen.classes, class_recalls(report), counts.sum(axis=1), strict=True)
        ],
        "excluded_classes": [asdict(count) for count in chosen.excluded],
        "sources": len(chosen.components.names),
        "seed_meaning": SEED_MEANING,
        "seeds": [_seed_dict(result) for result in report.results],
        "balanced_accuracy": {
            "mean": report.mean("balanced_accuracy"),
            "sd": report.sd("balanced_accuracy"),
        },
        "top1": {"mean": report.mean("top1"), "sd": report.sd("top1")},
        "confusion": counts.tolist(),
        "warnings": caveats(report),
    }


def _seed_dict(result: SeedResult) -> dict[str, Any]:
    # Not asdict, which would keep the array.
    return {**vars(result), "confusion": result.confusion.tolist()}


def to_text(report: LinearReport) -> str:
    """The report as people read it; ends with the warnings."""
    sections = [
        _head(report),
        _classes(report),
        _scores(report),
        _confusion(report),
        "\n".join(f"warning: {text}" for text in map(one_line, caveats(report))),
    ]
    return "\n\n".join(section for section in sections if section)


def _head(report: LinearReport) -> str:
    chosen = report.selection
    untrained = "  *** UNTRAINED: random weights ***" if report.untrained else ""
    excluded = sum(count.rows for count in chosen.excluded)
    groups = " + ".join([*map(one_line, report.groups), "file content"])
    lines = [
        f"{PROTOCOL[0].upper()}{PROTOCOL[1:]}.",
        f"store     {one_line(report.store)}",
        f"encoder   {one_line(report.encoder)}{untrained}",
        f"recipe    {report.recipe_id[:_SHORT]}",
        f"features  {report.features}",
        f"label     {one_line(report.label)}",
        f"grouped   by {groups}: {len(chosen.components.names)} sources",
        f"rows      {len(chosen.rows)} used of {chosen.ok} ok ({chosen.unlabelled} unlabelled, {excluded} in "
        f"excluded classes); {chosen.failed} failed, {chosen.absent} absent",
    ]
    return "\n".join(lines)


def _classes(report: LinearReport) -> str:
    rows = [
        [
            f"{number} {one_line(count.name)}",
            str(count.sources),
            str(count.rows),
            "-" if recall is None else f"{recall:.3f}",
        ]
        for number, (count, recall) in enumerate(zip(report.selection.classes, class_recalls(report), strict=True))
    ]
    return _table(["class", "sources", "rows", "test recall"], rows)


def _scores(report: LinearReport) -> str:
    head = [
        "seed",
        "test rows",
        "test sources",
        "balanced acc",
        "chance",
        "top-1",
        "majority",
        "lambda",
        "split",
    ]
    rows = [
        [
            str(result.seed),
            str(result.part_rows["test"]),
            str(result.part_sources["test"]),
            f"{result.balanced_accuracy:.3f}",
            f"{result.chance:.3f}",
            f"{result.top1:.3f}",
            f"{result.majority_top1:.3f}",
            f"{result.penalty:.2g}",
            result.split_digest[:_SHORT],
        ]
        for result in report.results
    ]
    for name, of in (("mean", report.mean), ("sd", report.sd)):
        values = [of("balanced_accuracy"), of("top1")]
        accuracy, top = ("-" if value is None else f"{value:.3f}" for value in values)
        rows.append([name, "", "", accuracy, "", top, "", "", ""])
    return f"{_table(head, rows)}\n{SEED_MEANING}"


def _confusion(report: LinearReport) -> str:
    names = [count.name for count in report.selection.classes]
    if len(names) > _WIDEST_CONFUSION:
        return f"confusion: {len(names)} classes are too many to print; --json has the matrix."
    rows = [
        [f"{number} {one_line(name)}", *map(str, line)]
        for number, (name, line) in enumerate(zip(names, report.confusion().tolist(), strict=True))
    ]
    title = f"Test rows summed over {len(report.results)} splits, true class by row, predicted class by column:"
    return f"{title}\n{_table(['true', *map(str, range(len(names)))], rows)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; the first to the left, the others to the right."""
    widths = np.max([[len(cell) for cell in row] for row in [head, *rows]], axis=0)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    )
