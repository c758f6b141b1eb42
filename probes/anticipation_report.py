"""An anticipation probe's report as text for people and as plain data for JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from coldframe.cli_errors import one_line
from coldframe.probes.action_scores import TaskScore
from coldframe.probes.actions import class_name
from coldframe.probes.anticipation import AnticipationReport, TaskResult
from coldframe.probes.bootstrap import Interval
from coldframe.probes.caveats import of_encoder, of_reads
from coldframe.probes.report import read_text, split_dict, table
from coldframe.store.windows import window_text

METRICS = {
    "recall5": "class-mean recall@5",
    "recall1": "class-mean recall@1",
    "top1": "top-1",
    "top5": "top-5",
}
OF_RELEASED_FILTER = (
    "only test rows whose action train knows, as V-JEPA 2's released evaluation filters; not comparable with the "
    "numbers of all rows, nor with the official ones"
)
_MIN_SEEDS = 3


def title(report: AnticipationReport) -> str:
    """What the clips allow the readout to be called."""
    return {
        "before_start": "action anticipation",
        "before_stop": "NOT anticipation: clips show the action",
        "inside": "action recognition on trimmed clips",
    }[report.store.recipe.window]


def protocol(report: AnticipationReport) -> str:
    """What was done, as one clause."""
    changed = " (modified)" if list(differences(report)) else ""
    return (
        f"{title(report)}, attentive probe with a query a task, preset {report.original.name}{changed}: "
        f"{len(report.settings)} heads in one pass, learning rate and weight decay chosen on validation, test read once"
    )


def differences(report: AnticipationReport) -> Iterator[str]:
    """What differs from the preset, one sentence each."""
    for name in ("heads", "rates", "weight_decays", "epochs", "batch", "loss"):
        used, published = getattr(report.preset, name), getattr(report.original, name)
        if used != published:
            yield f"{name.replace('_', ' ')}: {_value(used)} instead of {_value(published)}."
    if report.store.recipe.tokens != "full":
        yield f"tokens: the tier {report.store.recipe.tokens!r} instead of all tokens."
    if report.shape.time:
        yield "a learned temporal position is added to the normalised tokens."


def _value(value: Any) -> str:
    return ", ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)


def to_dict(report: AnticipationReport) -> dict[str, Any]:
    """The report for `json.dumps`."""
    rows, recipe = report.rows, report.store.recipe
    return {
        "protocol": protocol(report),
        "window": recipe.window,
        "anticipation_s": recipe.anticipation_s,
        "window_text": window_text(recipe),
        "store": report.store.name,
        "recipe_id": report.store.recipe_id,
        "encoder": {"name": recipe.encoder, "untrained": report.store.encoder.get("untrained")},
        "columns": list(report.columns),
        "group": list(report.groups),
        "rows": {
            "used": len(rows.rows),
            "ok": rows.ok,
            "failed": rows.failed,
            "absent": rows.absent,
            "unlabelled": rows.unlabelled,
            "unlisted": rows.unlisted,
            "padded": rows.padded,
        },
        "parts": {name: len(own) for name, own in report.split.parts().items()},
        "sources": {name: len(np.unique(rows.components.codes[own])) for name, own in report.split.parts().items()},
        "split_digest": report.split.digest,
        "split_seed": report.split_seed,
        "split": split_dict(report.manifest, report.reads),
        "tasks": {one.task.name: _task_dict(one) for one in report.tasks},
        "preset": asdict(report.preset),
        "differences": list(differences(report)),
        "parameters": report.parameters,
        "chosen": {"rate": report.rate, "weight_decay": report.decay},
        "chosen_by": "class-mean recall of the last task on validation rows, then the smaller loss",
        "grid": [
            {
                **asdict(setting),
                "died_at_update": report.trained.died_at.get(head),
                "validation": [_finite(one.merit[head]) for one in report.trained.validation],
                "validation_loss": [_finite(one.loss[head]) for one in report.trained.validation],
                "train_loss": [_finite(value) for value in report.trained.train_loss[:, head]],
            }
            for head, setting in enumerate(report.settings)
        ],
        "reading": report.read.to_dict(),
        "train_token_digests": list(report.trained.token_digests),
        "warnings": warnings(report),
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _task_dict(one: TaskResult) -> dict[str, Any]:
    return {
        "train_classes": [class_name(name) for name in one.task.classes],
        "test_classes": one.seeds[0].classes,
        "unseen_rows": one.unseen_rows,
        "unseen_classes": one.unseen_classes,
        "seeds": [asdict(score) for score in one.seeds],
        **{name: {**spread(one.seeds, name), "interval": _interval_dict(one, name)} for name in METRICS},
        "by_train_frequency": asdict(one.frequency),
        "released_filter": {
            "what": OF_RELEASED_FILTER,
            "rows": one.filtered[0].rows if one.filtered else 0,
            **{name: spread(one.filtered, name) for name in METRICS},
        },
        "per_class": [{"name": name, "test_rows": rows, "recall": value} for name, rows, value in one.per_class],
    }


def _interval_dict(one: TaskResult, name: str) -> dict[str, Any] | None:
    return asdict(one.intervals[name]) if name in one.intervals else None


def spread(scores: Sequence[TaskScore], name: str) -> dict[str, float | None]:
    """Mean and standard deviation over seeds of one score; None where it is not defined."""
    values = [getattr(score, name) for score in scores]
    if not values or None in values:
        return {"mean": None, "sd": None}
    return {"mean": float(np.mean(values)), "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def warnings(report: AnticipationReport) -> list[str]:
    """What to know before quoting a number, most serious first."""
    return [*of_encoder(report.store), *of_reads(report.reads), *_of_protocol(report), *_of_rows(report)]


def _of_protocol(report: AnticipationReport) -> Iterator[str]:
    for text in differences(report):
        yield f"differs from preset {report.original.name}: {text}"
    last = report.tasks[-1]
    yield (
        f"class-mean recall is over the {last.seeds[0].classes} classes of {last.task.name} in this test part, those "
        "that train lacks included, which count 0. EPIC-KITCHENS' scorer has its own 9,668 rows. V-JEPA 2's released "
        "evaluation drops rows whose action train lacks, which alone raises recall@5 there by a factor of 1.2, and "
        "takes the best head of each task on the rows that it reports. Never put two of these into one column."
    )
    if report.store.recipe.window != "inside":
        yield (
            f"one clip an action, {report.store.recipe.anticipation_s:g} s ahead in training too, where the released "
            "training draws 0.25 to 1.75 s anew. Tokens are the encoder's alone: the store holds none of a predictor."
        )
    if any(one.seeds[0].recall5 is None for one in report.tasks):
        yield "recall@5 and top-5 of tasks with 5 classes or fewer would be 1 and are left out."
    if len(report.heads) < _MIN_SEEDS:
        yield f"{len(report.heads)} seeds: at least {_MIN_SEEDS} are needed for a standard deviation worth quoting."
    if report.trained.died_at:
        yield f"{len(report.trained.died_at)} of {len(report.settings)} heads diverged and were frozen."


def _of_rows(report: AnticipationReport) -> Iterator[str]:
    rows = report.rows
    for one in report.tasks:
        if one.unseen_rows:
            yield (
                f"{one.task.name}: {one.unseen_rows} of {one.seeds[0].rows} test rows are of {one.unseen_classes} "
                "classes that train lacks; they stay and count as misses."
            )
    if rows.failed + rows.absent:
        yield (
            f"{rows.failed} failed and {rows.absent} absent rows are not used, actions without a window among them: an "
            "official scorer counts them as misses."
        )
    if rows.unlisted:
        yield f"{rows.unlisted} labelled rows are of videos that the split leaves out."
    if rows.file_is_source:
        yield "every file is its own source: files that share a person, scene or date may be on both sides."
    for reason in sorted({interval.reason for one in report.tasks for interval in one.intervals.values()} - {""}):
        yield f"no interval: {reason}."


def score_cells(one: TaskResult, name: str) -> list[str]:
    """Mean, sd and interval of a score, as text."""
    found, interval = spread(one.seeds, name), one.intervals.get(name)
    return [_number(found["mean"]), _number(found["sd"]), interval_text(interval)]


def interval_text(interval: Interval | None) -> str:
    """Both ends, or a dash."""
    return "-" if interval is None or interval.low is None else f"{interval.low:.3f} to {interval.high:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def to_text(report: AnticipationReport) -> str:
    """The report as people read it."""
    rows, parts = report.rows, report.split.parts()
    head = ["task", "score", "mean", "sd", "95 % over sources", "by train frequency", "known actions only"]
    scores = [
        [
            one.task.name,
            label,
            *score_cells(one, name),
            _number(getattr(one.frequency, name)),
            _number(spread(one.filtered, name)["mean"]),
        ]
        for one in report.tasks
        for name, label in METRICS.items()
    ]
    counts = [
        [
            one.task.name,
            str(len(one.task.classes)),
            str(one.seeds[0].classes),
            f"{one.unseen_classes} ({one.unseen_rows} rows)",
            str(one.filtered[0].rows if one.filtered else 0),
        ]
        for one in report.tasks
    ]
    said = protocol(report)
    return "\n".join(
        [
            f"{said[0].upper()}{said[1:]}.",
            f"store {one_line(report.store.name)}; each clip {window_text(report.store.recipe)}",
            f"rows  {len(rows.rows)} used ({', '.join(f'{name} {len(own)}' for name, own in parts.items())}) of "
            f"{rows.ok} ok; {rows.unlabelled} unlabelled, {rows.failed} failed, {rows.absent} absent",
            f"test  {read_text(report.reads)}",
            f"head  lr {report.rate:g}, weight decay {report.decay:g}, {report.parameters} parameters",
            "",
            table(["task", "train classes", "test classes", "of them unseen", "rows of known actions"], counts),
            "",
            table(head, scores),
            "Seeds vary initial weights on one split; all heads see the same batches.",
            f"known actions only: {OF_RELEASED_FILTER}.",
            *(f"warning: {one_line(text)}" for text in warnings(report)),
        ]
    )
