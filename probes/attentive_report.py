"""An attentive probe's report as text for people and as plain data for JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from coldframe.cli_errors import one_line
from coldframe.probes.attentive import AttentiveReport

SEED_MEANING = "Seeds vary initial weights and dropout on one split; all heads see the same batches."
_MIN_SEEDS = 3
_SHORT = 12


def protocol(report: AttentiveReport) -> str:
    """Name of what was done; never `linear probe`."""
    changed = " (modified)" if list(differences(report)) else ""
    return (
        f"attentive probe, preset {report.original.name}{changed}: {len(report.settings)} heads in one pass, learning "
        "rate and weight decay chosen on validation, test read once"
    )


def differences(report: AttentiveReport) -> Iterator[str]:
    """What differs from the published protocol, one sentence each."""
    for name in ("heads", "rates", "weight_decays", "epochs", "batch"):
        used, published = getattr(report.preset, name), getattr(report.original, name)
        if used != published:
            yield f"{name.replace('_', ' ')}: {_text(used)} instead of {_text(published)}."
    tier = report.store.recipe.tokens
    if tier != "full":
        yield f"tokens: the tier {tier!r} instead of all tokens."
    if report.shape.time:
        yield "a learned temporal position is added to the normalised tokens."


def _text(value: Any) -> str:
    return ", ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)


def warnings(report: AttentiveReport) -> list[str]:
    """What to know before quoting a number."""
    return list(_warnings(report))


def _warnings(report: AttentiveReport) -> Iterator[str]:
    untrained = report.store.encoder.get("untrained")
    if untrained:
        yield "the encoder is UNTRAINED: its weights are random, so these numbers are a baseline."
    if untrained is None:
        yield "the store does not say whether its encoder was trained."
    for text in differences(report):
        yield f"differs from preset {report.original.name}: {text}"
    yield "one stored view a clip (no augmentation while training): published numbers use random crops."
    if len(report.results) < _MIN_SEEDS:
        yield f"{len(report.results)} seeds: at least {_MIN_SEEDS} are needed for a standard deviation worth quoting."
    if report.trained.died_at:
        died = [report.settings[head] for head in report.trained.died_at]
        listed = ", ".join(f"lr {one.rate:g} wd {one.decay:g} seed {one.seed}" for one in died[:5])
        yield f"{len(died)} of {len(report.settings)} heads diverged and were frozen: {listed}."
    if report.selection.excluded:
        listed = ", ".join(repr(count.name) for count in report.selection.excluded[:20])
        yield f"{len(report.selection.excluded)} classes with too few sources are left out: {listed}."
    if report.selection.file_is_source:
        yield "every file is its own source: files that share a person, scene or date may be on both sides."


def to_dict(report: AttentiveReport) -> dict[str, Any]:
    """Everything in `report` but parameters and logits, ready for `json.dumps`."""
    return {
        "protocol": protocol(report),
        "preset": asdict(report.preset),
        "differences": list(differences(report)),
        "store": report.store.name,
        "recipe_id": report.store.recipe_id,
        "encoder": {"name": report.store.recipe.encoder, "untrained": report.store.encoder.get("untrained")},
        "label": report.label,
        "group": list(report.groups),
        "classes": [asdict(count) for count in report.selection.classes],
        "split": {
            "seed": report.split_seed,
            "digest": report.split.digest,
            "rows": {part: len(rows) for part, rows in report.split.parts().items()},
            "sources": _sources(report),
        },
        "seed_meaning": SEED_MEANING,
        "chosen": {"rate": report.rate, "weight_decay": report.decay},
        "grid": _grid(report),
        "seeds": [{**vars(result), "confusion": result.confusion.tolist()} for result in report.results],
        "balanced_accuracy": {"mean": report.mean("balanced_accuracy"), "sd": report.sd("balanced_accuracy")},
        "top1": {"mean": report.mean("top1"), "sd": report.sd("top1")},
        "chance": report.chance,
        "majority_top1": report.majority_top1,
        "reading": report.read.to_dict(),
        "train_token_digests": list(report.trained.token_digests),
        "warnings": warnings(report),
    }


def _sources(report: AttentiveReport) -> dict[str, int]:
    codes = report.selection.components.codes
    return {part: len(np.unique(codes[rows])) for part, rows in report.split.parts().items()}


def _grid(report: AttentiveReport) -> list[dict[str, Any]]:
    """Every head: its setting and its curves; None where a value is not finite."""
    accuracy = np.array([scores.balanced_accuracy() for scores in report.trained.validation])
    loss = np.array([scores.loss for scores in report.trained.validation])
    return [
        {
            **asdict(setting),
            "died_at_update": report.trained.died_at.get(head),
            "train_loss": _finite(report.trained.train_loss[:, head]),
            "validation_loss": _finite(loss[:, head]),
            "validation_balanced_accuracy": _finite(accuracy[:, head]),
        }
        for head, setting in enumerate(report.settings)
    ]


def _finite(values: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def to_text(report: AttentiveReport) -> str:
    """The report as people read it; ends with the warnings."""
    first = protocol(report)
    reading = report.read.to_dict()
    lines = [
        f"{first[0].upper()}{first[1:]}.",
        f"store     {one_line(report.store.name)}",
        f"encoder   {one_line(report.store.recipe.encoder)}",
        f"recipe    {report.store.recipe_id[:_SHORT]}",
        f"label     {one_line(report.label)}: {len(report.selection.classes)} classes",
        f"split     {report.split.digest[:_SHORT]}, "
        + ", ".join(f"{part} {len(rows)} rows" for part, rows in report.split.parts().items()),
        f"chosen    lr {report.rate:g}, weight decay {report.decay:g}",
        f"reading   {reading['rows_per_s']:.1f} rows/s, {reading['mb_per_s']:.1f} MB/s while training, "
        f"{reading['waited_share']:.0%} of the time waiting",
        "",
        "seed   validation   balanced acc   top-1",
        *[
            f"{result.seed:<6} {result.validation_balanced_accuracy:>10.3f} {result.balanced_accuracy:>14.3f} "
            f"{result.top1:>7.3f}"
            for result in report.results
        ],
        f"mean   {'':>10} {report.mean('balanced_accuracy'):>14.3f} {report.mean('top1'):>7.3f}",
        f"sd     {'':>10} {_number(report.sd('balanced_accuracy')):>14} {_number(report.sd('top1')):>7}",
        f"chance {'':>10} {report.chance:>14.3f} {report.majority_top1:>7.3f}  (majority)",
        SEED_MEANING,
        "",
        *[f"warning: {one_line(text)}" for text in warnings(report)],
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
