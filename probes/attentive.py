"""Attentive probe of a token store: a grid of heads in one pass an epoch, chosen on validation, test read once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coldframe.errors import UsageError
from coldframe.probes.heads import HeadShape, Parameters
from coldframe.probes.loader import DEFAULT_MEMORY_BYTES, ReadRate, TokenLoader
from coldframe.probes.metrics import (
    balanced_accuracy,
    chance,
    confusion,
    decide,
    majority_top1,
    top1,
)
from coldframe.probes.presets import Preset
from coldframe.probes.selection import Selection, select_rows
from coldframe.probes.split import Split, require_disjoint, split_by_group
from coldframe.probes.token_view import ShardedStore, TokenView
from coldframe.probes.training import (
    Scores,
    Setting,
    Trained,
    choose_setting,
    logits_of,
    micro_batch_rows,
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
        temporal_position: whether the head learns one position a time step, for encoders whose tokens carry none.
        device: `cpu` or `cuda`.
        memory_bytes: bound on tokens that the loader holds.
    """

    heads: int | None = None
    rates: tuple[float, ...] | None = None
    weight_decays: tuple[float, ...] | None = None
    epochs: int | None = None
    batch: int | None = None
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
        }
        given = {name: value for name, value in named.items() if value is not None}
        return replace(preset, **given)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedScore:
    """One seed of the chosen setting on the test rows.

    Attributes:
        seed: of the initial weights and dropout.
        validation_balanced_accuracy: after the last epoch.
        confusion: (classes, classes) true class by row, predicted by column.
        balanced_accuracy, top1: in [0, 1].
    """

    seed: int
    validation_balanced_accuracy: float
    confusion: NDArray[np.int64]
    balanced_accuracy: float
    top1: float


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentiveReport:
    """What was trained and what came out.

    Attributes:
        store: that was read.
        label, groups: video columns with the classes, and whose values stay on one side of the split.
        preset: with the options applied.
        original: the preset as published.
        shape: of the heads.
        options, split_seed: as asked for.
        selection, split: rows and their division.
        settings: all heads of the grid.
        trained: their curves; parameters of all heads.
        rate, decay: chosen on validation.
        results: one a seed.
        chance, majority_top1: on the same test rows, without looking at the features.
        test_rows: (n,) rows of the store, ascending; `test_logits` (seeds, n, classes) are theirs.
        read: how fast train tokens came.
    """

    store: ShardedStore
    label: str
    groups: tuple[str, ...]
    preset: Preset
    original: Preset
    shape: HeadShape
    options: Options
    split_seed: int
    selection: Selection
    split: Split
    settings: tuple[Setting, ...]
    trained: Trained
    rate: float
    decay: float
    results: tuple[SeedScore, ...]
    chance: float
    majority_top1: float
    test_rows: NDArray[np.int64]
    test_logits: NDArray[np.float32]
    read: ReadRate

    def mean(self, metric: str) -> float:
        """Mean over seeds of `balanced_accuracy` or `top1`."""
        return float(np.mean([getattr(result, metric) for result in self.results]))

    def sd(self, metric: str) -> float | None:
        """Standard deviation over seeds (n - 1 below the line), None for one seed."""
        if len(self.results) < 2:
            return None
        return float(np.std([getattr(result, metric) for result in self.results], ddof=1))

    def chosen_heads(self) -> list[int]:
        """Positions of the chosen setting's heads, one a seed."""
        pair = (self.rate, self.decay)
        return [i for i, setting in enumerate(self.settings) if (setting.rate, setting.decay) == pair]

    def best_state(self) -> tuple[int, dict[str, Tensor]]:
        """Seed and parameters, on the CPU, of the chosen setting's head that is best on validation."""
        accuracy = [result.validation_balanced_accuracy for result in self.results]
        place = int(np.argmax(accuracy))
        head = self.chosen_heads()[place]
        return self.results[place].seed, {
            name: value[head].detach().cpu().clone() for name, value in self.trained.parameters.items()
        }


def attentive_probe(
    store: ShardedStore,
    *,
    label: str,
    preset: Preset,
    groups: tuple[str, ...] = ("source",),
    options: Options | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    split_seed: int = 0,
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
        split_seed: of the split and of the order of the batches.
        on_rows: called with the number of rows after each piece of a train batch.

    Raises:
        UsageError: the store lacks the tokens, the columns do not allow an honest split, or all heads diverged.
        StoreError: ok rows hold inf or nan.
    """
    options = options or Options()
    device = require_device(options.device)
    used = options.apply(preset)
    view = token_view(store, used)
    view.check(store)
    selection = select_rows(store, label, groups)
    split = split_by_group(selection.components, selection.labels, seed=split_seed)
    require_disjoint(split, selection.components)
    shape = HeadShape(
        preset=used,
        dim=store.geometry.dim,
        classes=len(selection.labels.names),
        time=store.geometry.time if options.temporal_position else 0,
    )
    settings = grid(used, seeds)
    codes = np.full(int(selection.rows.max()) + 1, -1, dtype=np.int64)
    codes[selection.rows] = selection.labels.codes
    loaders = _loaders(store, view, selection, split, used.batch, options.memory_bytes, split_seed)

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
    chosen = [i for i, setting in enumerate(settings) if (setting.rate, setting.decay) == (rate, decay)]
    parameters = {name: value[chosen] for name, value in trained.parameters.items()}
    rows, logits = _test_logits(loaders["test"], parameters, shape)
    validation = trained.validation[-1].balanced_accuracy()
    results = tuple(
        _result(settings[head].seed, float(validation[head]), codes[rows], logits[place])
        for place, head in enumerate(chosen)
    )
    train_codes = selection.labels.codes[split.train]
    return AttentiveReport(
        store=store,
        label=label,
        groups=groups,
        preset=used,
        original=preset,
        shape=shape,
        options=options,
        split_seed=split_seed,
        selection=selection,
        split=split,
        settings=settings,
        trained=trained,
        rate=rate,
        decay=decay,
        results=results,
        chance=chance(results[0].confusion),
        majority_top1=majority_top1(train_codes, results[0].confusion),
        test_rows=rows,
        test_logits=logits,
        read=loaders["train"].rate,
    )


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


def _loaders(
    store: ShardedStore,
    view: TokenView,
    selection: Selection,
    split: Split,
    batch: int,
    memory_bytes: int,
    seed: int,
) -> Mapping[str, TokenLoader]:
    rows = micro_batch_rows(batch, view.row_bytes(store))
    return {
        part: TokenLoader(
            store=store,
            rows=selection.rows[positions],
            view=view,
            batch_rows=rows,
            seed=seed if part == "train" else None,
            memory_bytes=memory_bytes,
        )
        for part, positions in split.parts().items()
    }


def _test_logits(
    loader: TokenLoader, parameters: Parameters, shape: HeadShape
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    pieces = [(rows, logits.cpu().numpy()) for rows, logits in logits_of(loader, parameters, shape)]
    return np.concatenate([rows for rows, _ in pieces]), np.concatenate([logits for _, logits in pieces], axis=1)


def _result(seed: int, validation: float, true: NDArray[np.int64], logits: NDArray[np.float32]) -> SeedScore:
    counts = confusion(true, decide(logits.astype(np.float64)), logits.shape[-1])
    return SeedScore(
        seed=seed,
        validation_balanced_accuracy=validation,
        confusion=counts,
        balanced_accuracy=balanced_accuracy(counts),
        top1=top1(counts),
    )
