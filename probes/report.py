"""A linear probe's report as text for people and as plain data for JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from coldframe.cli_errors import one_line
from coldframe.probes.caveats import caveats
from coldframe.probes.linear import LinearReport, SeedResult, class_recalls
from coldframe.probes.source_counts import METRICS
from coldframe.probes.uncertainty import uncertainty
from coldframe.store.text import path_to_text

PROTOCOL = "linear probe: closed-form ridge, one-vs-all, lambda chosen on validation, test read once a seed"
SEED_MEANING = "Each seed is another split by source; the closed-form head has no seed of its own."
FOLD_MEANING = "Each number is a fold of the split: it is tested, the next one validates, the others train."
SPLIT_MEANING = "One split from a file; the closed-form head has no seed, so there is no spread over seeds."

_WIDEST_CONFUSION = 30  # classes
_SHORT = 12  # hexadecimal digits of a digest that people compare


def to_dict(report: LinearReport) -> dict[str, Any]:
    """Everything in `report`, ready for `json.dumps`."""
    chosen = report.selection
    counts = report.confusion()
    spread = uncertainty(report)
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
        "seed_meaning": seed_meaning(report),
        "seeds": [
            {**_seed_dict(result), "uncertainty": asdict(of_seed)}
            for result, of_seed in zip(report.results, spread.seeds, strict=True)
        ],
        **{
            name: {
                "mean": report.mean(name),
                "sd": report.sd(name),
                "interval": asdict(spread.averaged[name]),
            }
            for name in METRICS
        },
        "split": _split_dict(report),
        "fractions": [{**asdict(result), "mean": result.mean, "sd": result.sd} for result in report.fractions],
        "confusion": counts.tolist(),
        "warnings": caveats(report),
    }


def _seed_dict(result: SeedResult) -> dict[str, Any]:
    # Not asdict, which would keep the arrays.
    fields = {name: value for name, value in vars(result).items() if name not in ("split", "scores", "head")}
    return {**fields, "penalty": result.head.penalty, "confusion": result.confusion.tolist()}


def _split_dict(report: LinearReport) -> dict[str, Any] | None:
    split = report.split
    if split is None:
        return None
    return {
        "file": None if split.path is None else path_to_text(split.path),
        "digest": split.digest,
        "by": list(split.by),
        "folds": split.folds,
        "seed": split.seed,
        "test_reads": None if report.reads is None else asdict(report.reads),
    }


def seed_meaning(report: LinearReport) -> str:
    """What the numbers in the column `seed` stand for."""
    if report.split is None:
        return SEED_MEANING
    return FOLD_MEANING if report.split.folds else SPLIT_MEANING


def to_text(report: LinearReport) -> str:
    """The report as people read it; ends with the warnings."""
    sections = [
        _head(report),
        _classes(report),
        _scores(report),
        _intervals(report),
        _fractions(report),
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
        f"test      {_reads(report)}",
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
    return table(["class", "sources", "rows", "test recall"], rows)


def _scores(report: LinearReport) -> str:
    head = [
        "seed",
        "test rows",
        "test sources",
        "balanced acc",
        "chance",
        "macro-F1",
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
            f"{result.macro_f1:.3f}",
            f"{result.top1:.3f}",
            f"{result.majority_top1:.3f}",
            f"{result.head.penalty:.2g}",
            result.split_digest[:_SHORT],
        ]
        for result in report.results
    ]
    for name, of in (("mean", report.mean), ("sd", report.sd)):
        values = [of("balanced_accuracy"), of("macro_f1"), of("top1")]
        accuracy, f1, top = ("-" if value is None else f"{value:.3f}" for value in values)
        rows.append([name, "", "", accuracy, "", f1, top, "", "", ""])
    return f"{table(head, rows)}\n{seed_meaning(report)}"


def _reads(report: LinearReport) -> str:
    if report.reads is None:
        return "each seed splits anew, so no reading is counted; fix a split with --split to count them"
    times = "once" if report.reads.count == 1 else f"{report.reads.count} times"
    return f"part read {times} ({one_line(report.reads.ledger)})"


def _intervals(report: LinearReport) -> str:
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
        text += f"\n{absent:.0%} of the replicates lack a class and average over the others."
    return text


def _fractions(report: LinearReport) -> str:
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


def _confusion(report: LinearReport) -> str:
    names = [count.name for count in report.selection.classes]
    if len(names) > _WIDEST_CONFUSION:
        return f"confusion: {len(names)} classes are too many to print; --json has the matrix."
    rows = [
        [f"{number} {one_line(name)}", *map(str, line)]
        for number, (name, line) in enumerate(zip(names, report.confusion().tolist(), strict=True))
    ]
    title = f"Test rows summed over {len(report.results)} splits, true class by row, predicted class by column:"
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
