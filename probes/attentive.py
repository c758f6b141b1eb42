"""Attentive probe of a token store: a grid of heads in one pass an epoch, chosen on validation, test read once."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.attentive_report import AttentiveReport
from coldframe.probes.division import divide
from coldframe.probes.heads import HeadShape, Parameters
from coldframe.probes.kept_memory import KeptMemory
from coldframe.probes.loader import DEFAULT_MEMORY_BYTES, TokenLoader, micro_batch_rows
from coldframe.probes.presets import Loss, Preset
from coldframe.probes.scored import score
from coldframe.probes.sealed import count_read, require_readable
from coldframe.probes.split_manifest import SplitManifest
from coldframe.probes.token_view import ShardedStore, TokenView
from coldframe.probes.training import (
    Scores,
    Setting,
    Trained,
    choose_setting,
    logits_of,
    require_device,
    score_heads,
    train_heads,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may differ from a preset; None keeps the preset's value. Every difference is listed in the report.

    Attributes:
        heads: attention heads.
        rates, weight_decays: the grid.
        epochs, batch: passes over the train rows, rows of one update.
        loss: `cross_entropy` or `focal`.
        temporal_position: whether the head learns one position a time step, for encoders whose tokens carry none.
        device: `cpu` or `cuda`.
        memory_bytes: bound on tokens that the loader holds.
    """

    heads: int | None = None
    rates: tuple[float, ...] | None = None
    weight_decays: tuple[float, ...] | None = None
    epochs: int | None = None
    batch: int | None = None
    loss: Loss | None = None
    temporal_position: bool = False
    device: str = "cpu"
    memory_bytes: int = DEFAULT_MEMORY_BYTES

    def apply(self, preset: Preset) -> Preset:
        named = {
            "heads": self.heads,
            "rates": self.rates,
            "weight_decays": self.weight_decays,
            "epochs": self.epochs,
            "batch": self.batch,
            "loss": self.loss,
        }
        given = {name: value for name, value in named.items() if value is not None}
        return replace(preset, **given)  # type: ignore[arg-type]


def attentive_probe(
    store: ShardedStore,
    *,
    label: str,
    preset: Preset,
    groups: tuple[str, ...] = ("source",),
    options: Options | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    split_seed: int = 0,
    split: SplitManifest | None = None,
    again: str | None = None,
    on_rows: Callable[[int], object] = lambda count: None,
) -> AttentiveReport:
    """Train the preset's grid for every seed on one split, choose on validation, score the chosen setting on test.

    Args:
        store: an open token store with patch tokens.
        label: video column with the classes; videos without a value are left out and counted.
        preset: head and training.
        groups: video columns whose values must stay on one side of the split; equal file contents always do.
        options: what differs from the preset.
        seeds: of the initial weights and dropout; all heads see the same batches.
        split_seed: of the split, unless it is from a file, and of the order of the batches.
        split: a division from a file; its `by` is used instead of `groups`.
        again: reason for reading its test part once more.
        on_rows: called with the number of rows after each piece of a train batch.

    Raises:
        UsageError: the store lacks the tokens, the columns do not allow an honest split, all heads diverged, or
            the test part was read before.
        StoreError: ok rows hold inf or nan.
    """
    options = options or Options()
    device = require_device(options.device)
    used = options.apply(preset)
    view = token_view(store, used)
    view.check(store)
    require_readable(split, again)
    selection, ((_, division),) = divide(store, label, groups, [split_seed], _undivided(split))
    shape = HeadShape(
        preset=used,
        dim=store.geometry.dim,
        classes=len(selection.labels.names),
        time=store.geometry.time if options.temporal_position else 0,
    )
    settings = grid(used, seeds)
    codes = np.full(int(selection.rows.max()) + 1, -1, dtype=np.int64)
    codes[selection.rows] = selection.labels.codes
    parts = {name: selection.rows[positions] for name, positions in division.parts().items()}
    loaders = part_loaders(store, view, parts, used.batch, options.memory_bytes, split_seed)

    def validate(parameters: Parameters) -> Scores:
        return score_heads(loaders["validation"], codes, parameters, shape)

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
    rate, decay = choose_setting(settings, trained.validation[-1], trained.died_at)
    heads = [i for i, setting in enumerate(settings) if (setting.rate, setting.decay) == (rate, decay)]
    what = {"probe": "attentive", "preset": preset.name, "label": label, "recipe_id": store.recipe_id}
    reads = count_read(split, what, again)
    logits = _test_logits(loaders["test"], trained, heads, shape, selection.rows[division.test])
    validation = trained.validation[-1].balanced_accuracy()
    results = tuple(
        score(
            selection,
            division,
            values,
            seed=settings[head].seed,
            head=head,
            parameters=sum(math.prod(size) for size in shape.parameters().values()),
            validation=float(validation[head]),
            logits=True,
        )
        for head, values in zip(heads, logits, strict=True)
    )
    return AttentiveReport(
        store=store,
        label=label,
        groups=groups if split is None else split.by,
        selection=selection,
        results=results,
        split=split,
        reads=reads,
        preset=used,
        original=preset,
        shape=shape,
        split_seed=split_seed if split is None else split.seed,
        settings=settings,
        trained=trained,
        rate=rate,
        decay=decay,
        read=loaders["train"].rate,
    )


def _undivided(split: SplitManifest | None) -> SplitManifest | None:
    """`split`, unless it has folds: a grid for each would be several reports in one."""
    if split is not None and split.folds:
        raise UsageError(
            f"the split has {split.folds} folds; an attentive probe trains on one division into train, validation and "
            "test. Make one with `coldframe-probe split` without --folds."
        )
    return split


def grid(preset: Preset, seeds: Sequence[int]) -> tuple[Setting, ...]:
    """Every learning rate with every weight decay with every seed."""
    return tuple(
        Setting(rate=rate, decay=decay, seed=seed)
        for rate in preset.rates
        for decay in preset.weight_decays
        for seed in seeds
    )


def token_view(store: ShardedStore, preset: Preset) -> TokenView:
    """The tokens that `preset` reads of `store`.

    Raises:
        UsageError: a chained preset, and the store does not keep exactly the blocks before the encoder's output.
    """
    if preset.rounds == 1:
        return TokenView(cls=preset.reads_cls)
    wanted = preset.rounds - 1
    stored = tuple(sorted(getattr(store.geometry, "layers", ())))
    if len(stored) != wanted or stored[-1] - stored[0] != wanted - 1:
        kept = ", ".join(map(str, stored)) or "none"
        raise UsageError(
            f"preset {preset.name} reads the last {preset.rounds} blocks: the encoder's output and the {wanted} blocks "
            f"before it. Beside the output the store keeps the blocks {kept}. Export the encoder with these {wanted} "
            "as layers and extract into a new store."
        )
    return TokenView(cls=preset.reads_cls, layers=stored)


def part_loaders(
    store: ShardedStore,
    view: TokenView,
    rows: Mapping[str, NDArray[np.int64]],
    batch: int,
    memory_bytes: int,
    seed: int,
) -> Mapping[str, TokenLoader]:
    """A loader for the rows of each part; those of `train` come in an order that `seed` decides."""
    batch_rows = micro_batch_rows(batch, view.row_bytes(store), memory_bytes)
    memory = KeptMemory()  # one for all, of which one reads at a time
    return {
        part: TokenLoader(
            store=store,
            rows=own,
            view=view,
            batch_rows=batch_rows,
            seed=seed if part == "train" else None,
            memory_bytes=memory_bytes,
            memory=memory,
            yields=part == "train",
        )
        for part, own in rows.items()
    }


def _test_logits(
    loader: TokenLoader, trained: Trained[Scores], heads: Sequence[int], shape: HeadShape, wanted: NDArray[np.int64]
) -> NDArray[np.float32]:
    """(heads, n, classes) logits of some heads of the grid on the `wanted` rows of the store, in their order."""
    parameters = {name: value[list(heads)] for name, value in trained.parameters.items()}
    pieces = [(rows, logits.cpu().numpy()) for rows, logits in logits_of(loader, parameters, shape)]
    rows, logits = np.concatenate([rows for rows, _ in pieces]), np.concatenate([one for _, one in pieces], axis=1)
    order = np.argsort(rows)
    assert np.array_equal(rows[order], wanted), "the loader delivers every row once, and `wanted` ascends"
    if not np.isfinite(logits).all():
        raise UsageError(
            "the chosen heads give logits on test that are not finite. Add smaller learning rates with --lr."
        )
    return logits[:, order]
