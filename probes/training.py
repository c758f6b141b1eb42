"""Training: a grid of attentive heads in one pass over the tokens an epoch."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from coldframe.errors import UsageError
from coldframe.probes.adamw import Schedule, StackedAdamW
from coldframe.probes.heads import HeadShape, Parameters, forward, initialise
from coldframe.probes.loader import TokenBatch, TokenLoader
from coldframe.probes.metrics import balanced_accuracy, confusion, decide

# Tokens that pass through the heads at once. Gradients of a batch add up, and adding costs as much as writing all
# parameters of the grid, so small pieces are slow: 20 heads of width 1,024 have 1 GB of gradients.
MICRO_BATCH_BYTES = 512 << 20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One head of a grid: learning rate, weight decay, and the seed of its initial weights and dropout."""

    rate: float
    decay: float
    seed: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """What G heads do on some rows.

    Attributes:
        loss: (G,) mean cross-entropy, without label smoothing; NaN or inf for heads that diverged.
        confusion: (G, classes, classes) true class by row, predicted by column; zero for heads with a row whose
            logits are not finite.
    """

    loss: NDArray[np.float64]
    confusion: NDArray[np.int64]

    def balanced_accuracy(self) -> NDArray[np.float64]:
        """(G,) in [0, 1]; NaN for heads that diverged."""
        return np.array([balanced_accuracy(counts) if counts.any() else np.nan for counts in self.confusion])


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Heads after training.

    Attributes:
        parameters: stacked, on the device.
        train_loss: (epochs, G) mean loss while training, smoothed labels included.
        validation: one an epoch; empty without validation rows.
        died_at: update at which a head's loss or gradient stopped being finite, by position. From then on it is frozen.
    """

    parameters: dict[str, Tensor]
    train_loss: NDArray[np.float64]
    validation: tuple[Scores, ...]
    died_at: dict[int, int]


def require_device(name: str) -> torch.device:
    """The device called `name`: `cpu`, `cuda` or `cuda:<i>`.

    Raises:
        UsageError: this machine does not have it. There is no fallback.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device is {name!r}; allowed are cpu, cuda and cuda:<number>.") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {name!r}; allowed are cpu, cuda and cuda:<number>.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device is {name!r}, but PyTorch sees {torch.cuda.device_count()} CUDA devices. Use cpu.")
    return device


def micro_batch_rows(batch: int, row_bytes: int) -> int:
    """The largest divisor of `batch` whose tokens fit into `MICRO_BATCH_BYTES`, at least 1."""
    fitting = max(1, MICRO_BATCH_BYTES // row_bytes)
    return max(rows for rows in range(1, batch + 1) if batch % rows == 0 and rows <= fitting)


def train_heads(
    loader: TokenLoader,
    labels: NDArray[np.int64],
    shape: HeadShape,
    settings: Sequence[Setting],
    *,
    epochs: int,
    batch: int,
    device: torch.device,
    validate: Callable[[Parameters], Scores] | None = None,
    on_rows: Callable[[int], object] = lambda count: None,
) -> Trained:
    """Train one head a setting. All see the same batches in the same order.

    Args:
        loader: of the train rows; its `batch_rows` divides `batch`.
        labels: class code of every row of the store; other values outside the train rows are not read.
        shape: of every head.
        settings: one a head.
        epochs: passes over the rows.
        batch: rows of one update; the last of an epoch may have fewer.
        device: where the heads are.
        validate: called with the parameters after every epoch.
        on_rows: called with the number of rows after each piece of a batch.
    """
    rows = len(loader.rows)
    steps = epochs * -(-rows // batch)
    optimiser = optimiser_of(shape, settings, steps, device)
    rng = torch.Generator(device).manual_seed(settings[0].seed)
    died_at: dict[int, int] = {}
    losses, scores = [], []
    for epoch in range(epochs):
        total = np.zeros(len(settings))
        seen = 0
        for piece in loader.epoch(epoch):
            whole = min(batch, rows - seen // batch * batch)  # rows of this update
            share = accumulate(piece, labels, shape, optimiser, whole, rng)
            total += share * whole
            seen += len(piece.rows)
            if seen % batch == 0 or seen == rows:
                optimiser.update()
                for head in np.flatnonzero(optimiser.dead.cpu().numpy()).tolist():
                    died_at.setdefault(head, optimiser.step)
            on_rows(len(piece.rows))
        losses.append(total / rows)
        if validate is not None:
            scores.append(validate(optimiser.parameters))
    return Trained(
        parameters=dict(optimiser.parameters),
        train_loss=np.array(losses),
        validation=tuple(scores),
        died_at=died_at,
    )


def optimiser_of(shape: HeadShape, settings: Sequence[Setting], steps: int, device: torch.device) -> StackedAdamW:
    """Fresh heads and their optimiser, which makes `steps` updates in all."""
    preset = shape.preset
    made = initialise(shape, [setting.seed for setting in settings])
    warmup = int(preset.warmup * steps)
    return StackedAdamW(
        parameters={name: value.to(device) for name, value in made.items()},
        rates=torch.tensor([setting.rate for setting in settings], device=device),
        decays=torch.tensor([setting.decay for setting in settings], device=device),
        schedule=Schedule(steps=steps, warmup=warmup, start=0.0 if warmup else 1.0),
        beta2=preset.beta2,
        decay_all=preset.decays == "all",
    )


def accumulate(
    piece: TokenBatch,
    labels: NDArray[np.int64],
    shape: HeadShape,
    optimiser: StackedAdamW,
    whole: int,
    rng: torch.Generator,
) -> NDArray[np.float64]:
    """Add the gradients of `piece`; (G,) its share of the batch's mean loss.

    Heads that share tokens go through together. Heads with blocks of their own over the tokens go one by one, so that
    activations of one head are held at a time.
    """
    device = optimiser.rates.device
    maps, mask, time = _to_device(piece, device)
    target = torch.from_numpy(labels[piece.rows]).to(device)
    heads = len(optimiser.rates)
    together = 1 if shape.self_blocks else heads
    shares = []
    for start in range(0, heads, together):
        span = slice(start, start + together)
        leaves = {}
        for name, value in optimiser.parameters.items():
            leaves[name] = value[span].detach().requires_grad_()
            leaves[name].grad = optimiser.gradients[name][span]  # backward adds to it in place
        logits = forward(shape, leaves, maps, mask, time, rng)
        loss = _losses(logits, target, shape.preset.label_smoothing).sum(dim=1) / whole
        torch.autograd.backward(loss.sum())
        shares.append(loss.detach())
    return torch.cat(shares).double().cpu().numpy()


def _losses(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """(G, B) cross-entropy of logits (G, B, classes)."""
    heads, batch, _ = logits.shape
    flat = functional.cross_entropy(
        logits.flatten(0, 1), target.repeat(heads), reduction="none", label_smoothing=smoothing
    )
    return flat.view(heads, batch)


def _to_device(piece: TokenBatch, device: torch.device) -> tuple[list[Tensor], Tensor | None, Tensor]:
    maps = [torch.from_numpy(tokens).to(device, non_blocking=True) for tokens in piece.maps]
    mask = None if piece.mask.all() else torch.from_numpy(piece.mask).to(device)
    return maps, mask, torch.from_numpy(piece.time).to(device)


@torch.no_grad()
def logits_of(
    loader: TokenLoader, parameters: Parameters, shape: HeadShape
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """(rows, logits (G, n, classes)) of every batch of one pass, without dropout."""
    device = next(iter(parameters.values())).device
    for piece in loader.epoch():
        yield piece.rows, forward(shape, parameters, *_to_device(piece, device))


def score_heads(loader: TokenLoader, labels: NDArray[np.int64], parameters: Parameters, shape: HeadShape) -> Scores:
    """Loss and confusion matrix of every head on the loader's rows."""
    heads = len(next(iter(parameters.values())))
    loss = np.zeros(heads)
    counts = np.zeros((heads, shape.classes, shape.classes), dtype=np.int64)
    for rows, logits in logits_of(loader, parameters, shape):
        target = torch.from_numpy(labels[rows]).to(logits.device)
        loss += _losses(logits, target).sum(dim=1).double().cpu().numpy()
        for head, values in enumerate(logits.double().cpu().numpy()):
            if np.isfinite(values).all():
                counts[head] += confusion(labels[rows], decide(values), shape.classes)
    counts[~np.isfinite(loss)] = 0
    return Scores(loss=loss / len(loader.rows), confusion=counts)


def choose_setting(settings: Sequence[Setting], scores: Scores, died_at: Mapping[int, int]) -> tuple[float, float]:
    """Learning rate and weight decay with the highest mean balanced accuracy over seeds on validation rows.

    Equal accuracies go to the smaller mean loss there. Pairs of which a seed diverged do not take part.

    Raises:
        UsageError: every pair has a seed that diverged.
    """
    accuracy = scores.balanced_accuracy()
    merits: dict[tuple[float, float], tuple[float, float]] = {}
    for pair in dict.fromkeys((setting.rate, setting.decay) for setting in settings):
        heads = [i for i, setting in enumerate(settings) if (setting.rate, setting.decay) == pair]
        loss = float(scores.loss[heads].mean())
        if not any(head in died_at for head in heads) and math.isfinite(loss):
            merits[pair] = (round(float(accuracy[heads].mean()), 12), -loss)
    if not merits:
        raise UsageError(
            f"all {len(settings)} heads of the grid diverged, or one seed of every setting did. "
            "Add smaller learning rates with --lr."
        )
    return max(merits, key=merits.__getitem__)
