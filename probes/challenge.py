"""Challenge file: predictions of an anticipation probe in the form that EPIC-KITCHENS' action anticipation takes.

    {"version": "0.2", "challenge": "action_anticipation", "sls_pt": ., "sls_tl": ., "sls_td": ., "results": {id:
     {"verb": {"0": score, ..., "96": score}, "noun": {"0": ..., "299": ...}, "action": {"v,n": score, 100 of them}}}}

as `test.json` at the root of a zip file (epic-kitchens/C3-Action-Anticipation, README). Every annotation must be there.
One whose row failed has no clip; it gets what train holds most of, and is counted. Classes that train lacks get a score
below all others. Where train has fewer than 100 actions they are left out, and the scorer multiplies verb and noun.
"""

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.actions import ActionStore
from coldframe.probes.anticipation import AnticipationReport
from coldframe.probes.attentive import part_loaders, token_view
from coldframe.probes.columns import annotation_text
from coldframe.probes.loader import DEFAULT_MEMORY_BYTES
from coldframe.probes.saved import require_writable
from coldframe.probes.training import all_logits_of
from coldframe.store.files import disk_errors, write_bytes
from coldframe.store.text import path_to_text

CLASSES: Mapping[str, int] = {"verb": 97, "noun": 300}
ACTIONS = 100  # an annotation, exactly
_MEMBER = "test.json"
_BELOW = 1000.0  # under the lowest score of an annotation
_LEVELS = range(6)


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """What was written.

    Attributes:
        annotations: in the file.
        guessed: of them, those without a clip, which have train's commonest classes.
        has_actions: whether scores of actions are there.
    """

    annotations: int
    guessed: int
    has_actions: bool

    def to_text(self) -> str:
        actions = "" if self.has_actions else f"; no scores of actions, as train has fewer than {ACTIONS}"
        return (
            f"{self.annotations} annotations, {self.guessed} of them without a clip, for which train's commonest "
            f"classes stand{actions}"
        )


def require_challenge_place(path: Path) -> None:
    """`require_writable` for a challenge file: a file that is there must be one, which the new one replaces.

    Raises:
        UsageError: it cannot become a file, or holds something else.
    """
    require_writable(path)
    if path.exists():
        is_ours = zipfile.is_zipfile(path)
        if is_ours:
            with zipfile.ZipFile(path) as archive:
                is_ours = archive.namelist() == [_MEMBER]
        if not is_ours:
            raise UsageError(f"{path_to_text(path)} is there already and is no challenge file. Choose another name.")


def require_challenge(
    columns: Sequence[str], known: ActionStore, store: ActionStore, sls: tuple[int, int, int]
) -> None:
    """Refuse early what could not be written after hours of training.

    Args:
        columns: annotation columns of `known` with verb and noun.
        known: the store that the probe is trained on.
        store: whose annotations are to be predicted.
        sls: supervision levels.

    Raises:
        UsageError: no noun, classes that are no numbers of the challenge, a level outside 0 to 5, or clips that do not
            end a second or more before the action starts.
        RecipeMismatch: the stores have different recipes.
    """
    if len(columns) < len(CLASSES):
        raise UsageError("the challenge asks for verb and noun; name both columns.")
    if not all(level in _LEVELS for level in sls):
        raise UsageError(f"the supervision levels are {sls}; each is 0 to 5 (pretraining, training labels, data).")
    if store.recipe.window != "before_start" or store.recipe.anticipation_s < 1:
        raise UsageError(
            f"the clips of {store.name} have the window {store.recipe.window}, {store.recipe.anticipation_s:g} s "
            "ahead; the challenge allows nothing later than 1 s before the start. Extract with --window before-start."
        )
    store.recipe.require_equal(known.recipe, f"the store {known.name}")
    for (task, limit), column in zip(CLASSES.items(), columns, strict=True):
        names = sorted({*annotation_text(known, column)} - {""})
        wrong = [name for name in names if not (name.isascii() and name.isdecimal() and int(name) < limit)]
        if wrong:
            raise UsageError(
                f"the {task} {wrong[0]!r} is no class number of the challenge; allowed are 0 to {limit - 1}. Name the "
                "columns verb_class and noun_class."
            )


def write_challenge(
    file: Path,
    report: AnticipationReport,
    store: ActionStore,
    *,
    sls: tuple[int, int, int],
    on_rows: Callable[[int], object] = lambda count: None,
) -> Challenge:
    """Predict every annotation of `store` with the report's best head on validation, and write the zip file.

    Args:
        file: to write; an existing one is replaced.
        report: of a probe with verb and noun, whose classes are whole numbers.
        store: of the same recipe; it need not have labels.
        sls: supervision levels of pretraining, training labels and training data, as the challenge defines them.
        on_rows: called with the number of rows after each batch.

    Raises:
        RecipeMismatch, UsageError: as `require_challenge`, or no ok row.
    """
    require_challenge(report.columns, report.store, store, sls)
    tasks = [one.task for one in report.tasks]
    numbers = {task.name: [int(name) for (name,) in task.classes] for task in tasks[:2]}
    names = [f"{int(verb)},{int(noun)}" for verb, noun in tasks[2].classes]
    ids = store.annotation_column("id")
    prior = [np.log(np.bincount(task.codes[report.split.train], minlength=len(task.classes))) for task in tasks]
    ok = store.ok_rows()
    scores = dict.fromkeys(range(len(ids)), prior) | _logits(report, store, ok, on_rows)
    results = {ids[row]: _entry(values, numbers, names) for row, values in scores.items()}
    body = {
        "version": "0.2",
        "challenge": "action_anticipation",
        **dict(zip(("sls_pt", "sls_tl", "sls_td"), sls, strict=True)),
        "results": results,
    }
    with disk_errors("write", file):
        write_bytes(file, _zipped(json.dumps(body, allow_nan=False).encode()))
    return Challenge(annotations=len(ids), guessed=len(ids) - len(ok), has_actions=len(names) >= ACTIONS)


def _logits(
    report: AnticipationReport, store: ActionStore, rows: NDArray[np.int64], on_rows: Callable[[int], object]
) -> dict[int, list[NDArray[np.float64]]]:
    """Logits of every task by row."""
    if not len(rows):
        raise UsageError(f"{store.name} has no ok row; there is nothing to predict.")
    best = max(report.heads, key=lambda head: float(report.trained.validation[-1].merit[head]))
    parameters = {name: value[best : best + 1] for name, value in report.trained.parameters.items()}
    view = token_view(store, report.preset)
    view.check(store)
    loaders = part_loaders(store, view, {"test": rows}, report.preset.batch, DEFAULT_MEMORY_BYTES, 0)
    found: dict[int, list[NDArray[np.float64]]] = {}
    for numbers, logits in all_logits_of(loaders["test"], parameters, report.shape):
        values = [one[0].double().cpu().numpy() for one in logits]
        found |= {row: [one[i] for one in values] for i, row in enumerate(numbers.tolist())}
        on_rows(len(numbers))
    return found


def _entry(
    values: Sequence[NDArray[np.float64]], numbers: Mapping[str, list[int]], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    entry = {}
    for (task, classes), own in zip(CLASSES.items(), values[:2], strict=True):
        scores = np.full(classes, own.min() - _BELOW)
        scores[numbers[task]] = own
        entry[task] = {str(code): round(float(score), 6) for code, score in enumerate(scores)}
    if len(names) >= ACTIONS:
        first = np.argsort(-values[2], kind="stable")[:ACTIONS]
        entry["action"] = {names[i]: round(float(values[2][i]), 6) for i in first.tolist()}
    return entry


def _zipped(body: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        # without the present time, so that equal predictions give equal files
        archive.writestr(zipfile.ZipInfo(_MEMBER, (1980, 1, 1, 0, 0, 0)), body, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
