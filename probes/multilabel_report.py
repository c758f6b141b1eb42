"""A multi-label probe's report as text for people and as plain data for JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from coldframe.cli_errors import one_line
from coldframe.probes.caveats import of_encoder, of_missing, of_reads
from coldframe.probes.columns import doubtful_classes
from coldframe.probes.logistic import unsolved
from coldframe.probes.multilabel import MultiLabelReport, MultiLabelResult
from coldframe.probes.probe_report import FOLD_MEANING
from coldframe.probes.report import CALIBRATION_NAMES, read_text, split_dict, table

CALIBRATION_MEANING = "Calibration is of windows: each class is a binary problem, and the mean over classes is shown."
PROTOCOL = "linear probe, several labels a video: one binary logistic problem a class, C chosen on validation by mAP"


def to_dict(report: MultiLabelReport) -> dict[str, Any]:
    """The report for `json.dumps`."""
    chosen, scores = report.selection, [result.map for result in report.results]
    return {
        "protocol": PROTOCOL,
        "store": report.store.name,
        "recipe_id": report.store.recipe_id,
        "encoder": {"name": report.store.recipe.encoder, "untrained": report.store.encoder.get("untrained")},
        "label": report.label,
        "group": list(report.groups),
        "features": report.features,
        "rows": {
            "used": len(chosen.rows),
            "unlabelled": chosen.unlabelled,
            "without_label": chosen.without_label,
            "unlisted": chosen.unlisted,
        },
        "empty_video_policy": "an empty cell leaves the video out; a cell of `;` is a negative of every class",
        "ensemble": "mean_prob",
        "classes": [asdict(count) for count in chosen.classes],
        "excluded_classes": [asdict(count) for count in chosen.excluded],
        "seed_meaning": seed_meaning(report),
        "seeds": [_seed_dict(one) for one in report.results],
        "map": {
            "mean": float(np.mean(scores)),
            "sd": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
            "interval": asdict(report.interval),
        },
        "split": split_dict(report.split, report.reads),
        "warnings": warnings(report),
    }


def _seed_dict(one: MultiLabelResult) -> dict[str, Any]:
    # Not asdict, which would keep the arrays.
    arrays = ("head", "per_class", "interval", "scores", "truth", "owners")
    return {
        **{name: value for name, value in vars(one).items() if name not in arrays},
        "C": one.head.strength,
        "interval": asdict(one.interval),
        "calibration": asdict(one.calibration),
        "absent_classes": one.absent,
        "per_class": [None if np.isnan(value) else float(value) for value in one.per_class],
    }


def seed_meaning(report: MultiLabelReport) -> str:
    """What the numbers in the column `seed` stand for."""
    if report.split is None:
        return "Each seed is another split by source."
    if report.split.folds:
        return FOLD_MEANING
    return "One split from a file; the head is solved to tolerance, so there is no spread over seeds."


def warnings(report: MultiLabelReport) -> list[str]:
    """What to know before quoting a number, most serious first."""
    return list(_warnings(report))


def _warnings(report: MultiLabelReport) -> Iterator[str]:
    yield from of_encoder(report.store)
    yield from unsolved([one.head for one in report.results])
    yield from of_reads(report.reads)
    chosen = report.selection
    if chosen.excluded:
        listed = ", ".join(f"{count.name!r} ({count.sources} sources)" for count in chosen.excluded)
        why = "with too few sources" if report.split is None else "without a positive in every part of the split"
        yield f"labels {why} are left out: {listed}."
    yield from doubtful_classes(count.name for count in (*chosen.classes, *chosen.excluded))
    yield from of_missing(*chosen.missing)
    if chosen.unlisted:
        yield f"{chosen.unlisted} labelled rows are of videos that the split leaves out."
    for reason in sorted({one.interval.reason for one in report.results} - {""}):
        yield f"no interval: {reason}."


def to_text(report: MultiLabelReport) -> str:
    """The report as people read it."""
    facts, chosen = to_dict(report), report.selection
    head = ["split", "C", "validation mAP", "mAP", "95 % over sources", "chance", "mAP of windows", "videos", "absent"]
    rows = [
        [
            str(one.seed),
            f"{one.head.strength:.2g}",
            f"{one.validation_map:.3f}",
            f"{one.map:.3f}",
            "-" if one.interval.low is None else f"{one.interval.low:.3f} to {one.interval.high:.3f}",
            f"{one.chance:.3f}",
            f"{one.map_windows:.3f}",
            str(one.test_videos),
            str(one.absent),
        ]
        for one in report.results
    ]
    sd = facts["map"]["sd"]
    low, high = report.interval.low, report.interval.high
    between = "" if low is None else f", 95 % over sources {low:.3f} to {high:.3f}"
    lines = [
        f"{PROTOCOL[0].upper()}{PROTOCOL[1:]}.",
        f"store {one_line(facts['store'])}, features {report.features}, label {one_line(report.label)}",
        f"rows  {len(chosen.rows)} used, {chosen.without_label} of them with no label; {chosen.unlabelled} unlabelled",
        f"test  {read_text(report.reads)}",
        "",
        table(["class", "sources", "rows"], [[one_line(c.name), str(c.sources), str(c.rows)] for c in chosen.classes]),
        "",
        table(head, rows),
        "",
        _calibration(report),
        "",
        f"mean {facts['map']['mean']:.3f}, sd {'-' if sd is None else f'{sd:.3f}'}{between}",
        facts["seed_meaning"],
        *(f"warning: {one_line(text)}" for text in facts["warnings"]),
    ]
    return "\n".join(lines)


def _calibration(report: MultiLabelReport) -> str:
    """Table of what each split's probabilities are worth."""
    rows = [
        [str(one.seed), *(f"{getattr(one.calibration, name):.3f}" for name in CALIBRATION_NAMES)]
        for one in report.results
    ]
    return table(["calibration", *CALIBRATION_NAMES.values()], rows) + "\n" + CALIBRATION_MEANING
