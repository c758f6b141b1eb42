"""Anticipation probe: verb, noun and action of the clip before them, by an attentive head with a query for each.

The head is that of V-JEPA 2's EK100 probe (`heads.HeadShape` with `tasks`), the grid, the loader and the training are
those of the attentive probe. What differs: classes are those of train, rows of others stay and count as misses, and
the setting is chosen by class-mean recall@5 of the action on validation rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from coldframe.probes.action_scores import (
    TOP,
    Ranked,
    Ranks,
    TaskScore,
    class_mean_interval,
    frequency_ranks,
    rank_heads,
    require_finite,
    score_task,
)
from coldframe.probes.actions import ActionRows, ActionStore, Task, class_name, divide_actions, make_tasks
from coldframe.probes.attentive import Options, grid, part_loaders, token_view
from coldframe.probes.bootstrap import Interval, cluster_robust
from coldframe.probes.heads import HeadShape, Parameters
from coldframe.probes.loader import ReadRate
from coldframe.probes.presets import Preset
from coldframe.probes.sealed import TestReads, count_read, require_readable
from coldframe.probes.split import Split
from coldframe.probes.split_manifest import SplitManifest
from coldframe.probes.training import Setting, Trained, best_pair, require_device, train_heads


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskResult:
    """One task on the test part.

    Attributes:
        task: its classes.
        seeds: scores of each seed's head, on all test rows.
        filtered: the same on rows whose action train knows, as V-JEPA 2's released evaluation filters; empty if none.
        frequency: what answering train's commonest classes scores.
        unseen_rows, unseen_classes: test rows of classes that train lacks, and how many these are.
        intervals: 95 % over sources of `recall5`, `top1` and `top5`, each averaged over seeds; those that there are.
        per_class: for each class of the test part its name, test rows and recall at 5 averaged over seeds.
    """

    task: Task
    seeds: tuple[TaskScore, ...]
    filtered: tuple[TaskScore, ...]
    frequency: TaskScore
    unseen_rows: int
    unseen_classes: int
    intervals: dict[str, Interval]
    per_class: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class AnticipationReport:
    """What was trained and what came out.

    Attributes:
        store: that was read.
        columns: annotation columns with the classes.
        groups: columns whose values stayed on one side.
        rows, split: what was used, and its parts as positions in `rows`.
        tasks: one a classifier.
        preset, original: with the options applied, and as it is.
        shape: of the heads.
        settings, trained: all heads of the grid, and their curves.
        rate, decay: chosen on validation; `heads` are their positions in the grid, one a seed.
        manifest, reads: the split from a file, and how often its test part was read.
        split_seed: of the division.
        read: how fast train tokens came.
    """

    store: ActionStore
    columns: tuple[str, ...]
    groups: tuple[str, ...]
    rows: ActionRows
    split: Split
    tasks: tuple[TaskResult, ...]
    preset: Preset
    original: Preset
    shape: HeadShape
    settings: tuple[Setting, ...]
    trained: Trained[Ranked]
    rate: float
    decay: float
    heads: tuple[int, ...]
    manifest: SplitManifest | None
    reads: TestReads | None
    split_seed: int
    read: ReadRate

    @property
    def parameters(self) -> int:
        """Numbers that were fitted in one head."""
        return sum(math.prod(size) for size in self.shape.parameters().values())


def anticipation_probe(
    store: ActionStore,
    *,
    columns: tuple[str, ...],
    preset: Preset,
    groups: tuple[str, ...] = ("source",),
    options: Options | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    split_seed: int = 0,
    split: SplitManifest | None = None,
    again: str | None = None,
    on_rows: Callable[[int], object] = lambda count: None,
) -> AnticipationReport:
    """Train the preset's grid for every seed, choose on validation, score the chosen setting on test once.

    Args:
        store: an open token store whose clips annotations made, with patch tokens.
        columns: annotation columns: the verb, or the verb and the noun, whose pair is then a third task.
        preset: head and training.
        groups: columns of videos, or annotation columns that say one thing of a video, whose values stay on one side.
        options: what differs from the preset.
        seeds: of the initial weights; all heads see the same batches.
        split_seed: of the split, unless it is from a file, and of the order of the batches.
        split: a division from a file; its `by` is used instead of `groups`.
        again: reason for reading its test part once more.
        on_rows: called with the number of rows after each piece of a train batch.

    Raises:
        UsageError: the store lacks tokens, annotations or columns, they do not allow an honest split, all heads
            diverged, or the test part was read before.
        StoreError: a clip shows a frame that its window forbids, or ok rows hold inf or nan.
    """
    options = options or Options()
    device = require_device(options.device)
    used = options.apply(preset)
    view = token_view(store, used)
    view.check(store)
    require_readable(split, again)
    rows, division = divide_actions(store, columns, groups, seed=split_seed, manifest=split)
    tasks = make_tasks(rows, division.train)
    shape = HeadShape(
        preset=used,
        dim=store.geometry.dim,
        tasks=tuple((task.name, len(task.classes)) for task in tasks),
        time=store.geometry.time if options.temporal_position else 0,
    )
    settings = grid(used, seeds)
    codes = np.full((int(rows.rows.max()) + 1, len(tasks)), -1, np.int64)
    codes[rows.rows] = np.stack([task.codes for task in tasks], axis=1)
    parts = {name: rows.rows[positions] for name, positions in division.parts().items()}
    loaders = part_loaders(store, view, parts, used.batch, options.memory_bytes, split_seed)

    def validate(parameters: Parameters) -> Ranked:
        return rank_heads(loaders["validation"], tasks, division.validation, parameters, shape)

    trained = train_heads(
        loaders["train"],
        codes,
        shape,
        settings,
        epochs=used.epochs,
        batch=used.batch,
        device=device,
        validate=validate,
        on_rows=on_rows,
    )
    last = trained.validation[-1]
    rate, decay = best_pair(settings, last.merit, last.loss, trained.died_at)
    heads = tuple(i for i, setting in enumerate(settings) if (setting.rate, setting.decay) == (rate, decay))
    what = {"probe": "anticipation", "preset": preset.name, "columns": list(columns), "recipe_id": store.recipe_id}
    reads = count_read(split, what, again)
    chosen = {name: value[list(heads)] for name, value in trained.parameters.items()}
    ranked = rank_heads(loaders["test"], tasks, division.test, chosen, shape)
    require_finite(ranked)
    return AnticipationReport(
        store=store,
        columns=columns,
        groups=groups if split is None else split.by,
        rows=rows,
        split=division,
        tasks=tuple(_result(rows, division, tasks, place, ranked) for place in range(len(tasks))),
        preset=used,
        original=preset,
        shape=shape,
        settings=settings,
        trained=trained,
        rate=rate,
        decay=decay,
        heads=heads,
        manifest=split,
        reads=reads,
        split_seed=split_seed if split is None else split.seed,
        read=loaders["train"].rate,
    )


def _result(rows: ActionRows, split: Split, tasks: Sequence[Task], place: int, ranked: Ranked) -> TaskResult:
    task, ranks, test = tasks[place], ranked.ranks[place], split.test
    known = tasks[-1].is_seen[test]  # of the pair where there is one: what the released evaluation filters by
    scores = [score_task(task, one, test) for one in ranks]
    filtered = [score_task(task, one[known], test[known]) for one in ranks]
    frequency = score_task(task, frequency_ranks(task, split.train, test), test)
    assert frequency is not None, "a test part is never empty"
    unseen = task.codes[test][~task.is_seen[test]]
    return TaskResult(
        task=task,
        seeds=tuple(score for score in scores if score is not None),
        filtered=tuple(score for score in filtered if score is not None),
        frequency=frequency,
        unseen_rows=len(unseen),
        unseen_classes=len(np.unique(unseen)),
        intervals=_intervals(rows, split, task, ranks),
        per_class=_per_class(task, ranks, split),
    )


def _intervals(rows: ActionRows, split: Split, task: Task, ranks: Ranks) -> dict[str, Interval]:
    """Intervals of scores averaged over seeds, which are those of each row's mean hits."""
    owners, codes = rows.components.codes[split.test], task.codes[split.test]
    sources = len(rows.components.names)
    found = {}
    for name, k in (("1", 1), ("5", TOP)):
        if k == 1 or len(task.classes) > TOP:
            hits = (ranks < k).mean(axis=0)
            found[f"recall{name}"] = class_mean_interval(hits, codes, owners, sources)
            found[f"top{name}"] = cluster_robust(
                np.bincount(owners, weights=hits, minlength=sources).astype(np.float64),
                np.bincount(owners, minlength=sources).astype(np.float64),
            )
    return found


def _per_class(task: Task, ranks: Ranks, split: Split) -> tuple[tuple[str, int, float], ...]:
    codes = task.codes[split.test]
    k = TOP if len(task.classes) > TOP else 1
    support = np.bincount(codes)
    hits = np.bincount(codes, weights=(ranks < k).mean(axis=0))
    names = [*task.classes, *task.unseen]
    present = np.flatnonzero(support)
    return tuple((class_name(names[c]), int(support[c]), float(hits[c] / support[c])) for c in present.tolist())
