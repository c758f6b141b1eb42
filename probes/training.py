"""Training: a grid of attentive heads in one pass over the tokens an epoch."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coldframe.errors import UsageError
from coldframe.probes.adamw import Schedule, StackedAdamW
from coldframe.probes.heads import HeadShape, Parameters, forward, initialise
from coldframe.probes.kept_memory import KeptMemory
from coldframe.probes.late_gradients import LateGradients
from coldframe.probes.loader import TokenLoader
from coldframe.probes.losses import cross_entropy, losses
from coldframe.probes.metrics import balanced_accuracy, confusion, decide
from coldframe.probes.token_digest import TokenDigest
from coldframe.probes.token_view import TokenBatch


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


Validated = TypeVar("Validated")  # what is asked of the heads after every epoch


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained(Generic[Validated]):
    """Heads after training.

    Attributes:
        parameters: stacked, on the device.
        train_loss: (epochs, G) mean loss while training, smoothed labels included.
        validation: one an epoch; empty without validation rows.
        died_at: update at which a head's loss or gradient stopped being finite, by position. From then on it is frozen.
        token_digests: of the tokens that each epoch saw; all equal.
    """

    parameters: dict[str, Tensor]
    train_loss: NDArray[np.float64]
    validation: tuple[Validated, ...]
    died_at: dict[int, int]
    token_digests: tuple[str, ...]


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


def train_heads(
    loader: TokenLoader,
    labels: NDArray[np.int64],
    shape: HeadShape,
    settings: Sequence[Setting],
    *,
    epochs: int,
    batch: int,
    device: torch.device,
    validate: Callable[[Parameters], Validated] | None = None,
    on_rows: Callable[[int], object] = lambda count: None,
) -> Trained[Validated]:
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

    Raises:
        StoreError: an epoch saw other tokens than the first.
    """
    rows = len(loader.rows)
    digest = TokenDigest(store=loader.store.name, rows=loader.rows)
    training = Training.start(shape, settings, epochs * -(-rows // batch), device)
    curve, scores, digests = [], list[Validated](), []
    for epoch in range(epochs):
        total = np.zeros(len(settings))
        seen = 0
        for piece in loader.epoch(epoch):
            digest.add(piece)
            whole = min(batch, rows - seen // batch * batch)  # rows of this update
            total += training.accumulate(piece, labels, whole)
            seen += len(piece.rows)
            if seen % batch == 0 or seen == rows:
                training.update()
            on_rows(len(piece.rows))
        digests.append(digest.end_epoch())
        curve.append(total / rows)
        if validate is not None:
            scores.append(validate(training.optimiser.parameters))
    return Trained(
        parameters=dict(training.optimiser.parameters),
        train_loss=np.array(curve),
        validation=tuple(scores),
        died_at=training.died_at,
        token_digests=tuple(digests),
    )


@dataclass(kw_only=True, eq=False)
class Training:
    """Heads between two updates.

    Attributes:
        shape: of every head.
        optimiser: parameters, gradients and moments.
        late: gradients of matrices, made once an update; None for heads with self-attention blocks, whose matrices
            see every token, so that one piece of a batch has rows enough.
        rng: of dropout.
        memory: of what is computed on the way.
        died_at: update at which a head stopped being finite, by position.
    """

    shape: HeadShape
    optimiser: StackedAdamW
    late: LateGradients | None
    rng: torch.Generator
    memory: KeptMemory
    died_at: dict[int, int] = field(default_factory=dict)

    @classmethod
    def start(cls, shape: HeadShape, settings: Sequence[Setting], steps: int, device: torch.device) -> Self:
        """Fresh heads that will see `steps` updates in all."""
        preset = shape.preset
        made = initialise(shape, [setting.seed for setting in settings])
        warmup = int(preset.warmup * steps)
        optimiser = StackedAdamW(
            parameters={name: value.to(device) for name, value in made.items()},
            rates=[setting.rate for setting in settings],
            decays=[setting.decay for setting in settings],
            schedule=Schedule(steps=steps, warmup=warmup, start=0.0 if warmup else 1.0),
            beta2=preset.beta2,
            decay_all=preset.decays == "all",
        )
        sums = {name: optimiser.gradients[name] for name in shape.matrices()}
        memory = KeptMemory()
        late = None if shape.self_blocks else LateGradients(sums=sums, memory=memory)
        rng = torch.Generator(device).manual_seed(settings[0].seed)
        return cls(shape=shape, optimiser=optimiser, late=late, rng=rng, memory=memory)

    def accumulate(self, piece: TokenBatch, labels: NDArray[np.int64], whole: int) -> NDArray[np.float64]:
        """Add the gradients of `piece`, of a batch of `whole` rows; (G,) losses summed over the piece.

        Heads that share tokens go through together. Heads with blocks of their own over the tokens go one by one, so
        that activations of one head are held at a time.
        """
        parameters = self.optimiser.parameters
        device = next(iter(parameters.values())).device
        maps, mask, time = _to_device(piece, device)
        targets = targets_of(labels, piece.rows, device)
        heads = len(self.optimiser.rates)
        together = 1 if self.shape.self_blocks else heads
        average = whole if self.shape.preset.loss == "cross_entropy" else 1  # upstream sums the focal loss over rows
        sums = []
        for start in range(0, heads, together):
            leaves = self._leaves(slice(start, start + together))
            logits = forward(self.shape, leaves, maps, mask, time, self.rng, self.late, self.memory)
            loss = losses(self.shape.preset, logits, targets).sum(dim=1)
            torch.autograd.backward(loss.sum() / average)
            sums.append(loss.detach())
        return torch.cat(sums).double().cpu().numpy()

    def _leaves(self, span: slice) -> dict[str, Tensor]:
        """Parameters of some heads, to whose gradients backward adds in place; late matrices are no leaves."""
        leaves = {}
        for name, value in self.optimiser.parameters.items():
            leaves[name] = value[span].detach()
            if self.late is None or name not in self.late.sums:
                leaves[name].requires_grad_().grad = self.optimiser.gradients[name][span]
        return leaves

    def finish_gradients(self) -> None:
        """Make the gradients of everything that was accumulated; `update` does it too."""
        if self.late is not None:
            self.late.write()

    def update(self) -> None:
        """One step of the optimiser from what was accumulated, which is forgotten."""
        self.finish_gradients()
        self.optimiser.update()
        for head in self.optimiser.dead:
            self.died_at.setdefault(head, self.optimiser.step)
        if self.late is not None:
            self.late.forget()
        for name, gradient in self.optimiser.gradients.items():
            if self.late is None or name not in self.late.sums:
                gradient.zero_()


def targets_of(labels: NDArray[np.int64], rows: NDArray[np.int64], device: torch.device) -> tuple[Tensor, ...]:
    """(B,) class codes of `rows`, one tensor a classifier; `labels` is (store rows,) or (store rows, classifiers)."""
    chosen = labels[rows].reshape(len(rows), -1)
    return tuple(torch.from_numpy(chosen.T.copy()).to(device))


def _to_device(piece: TokenBatch, device: torch.device) -> tuple[list[Tensor], Tensor | None, Tensor]:
    maps = [torch.from_numpy(tokens).to(device, non_blocking=True) for tokens in piece.maps]
    mask = None if piece.mask.all() else torch.from_numpy(piece.mask).to(device)
    return maps, mask, torch.from_numpy(piece.time).to(device)


def logits_of(
    loader: TokenLoader, parameters: Parameters, shape: HeadShape
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """(rows, logits (G, n, classes)) of every batch of one pass, without dropout."""
    for rows, (logits, *_) in all_logits_of(loader, parameters, shape):
        yield rows, logits


@torch.no_grad()
def all_logits_of(
    loader: TokenLoader, parameters: Parameters, shape: HeadShape
) -> Iterator[tuple[NDArray[np.int64], tuple[Tensor, ...]]]:
    """`logits_of`, with those of every classifier."""
    device = next(iter(parameters.values())).device
    memory = KeptMemory()
    for piece in loader.epoch():
        yield piece.rows, forward(shape, parameters, *_to_device(piece, device), memory=memory)


def score_heads(loader: TokenLoader, labels: NDArray[np.int64], parameters: Parameters, shape: HeadShape) -> Scores:
    """Loss and confusion matrix of every head on the loader's rows."""
    heads = len(next(iter(parameters.values())))
    loss = np.zeros(heads)
    counts = np.zeros((heads, shape.classes, shape.classes), dtype=np.int64)
    for rows, logits in logits_of(loader, parameters, shape):
        (target,) = targets_of(labels, rows, logits.device)
        loss += cross_entropy(logits, target).sum(dim=1).double().cpu().numpy()
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
    return best_pair(settings, scores.balanced_accuracy(), scores.loss, died_at)


def best_pair(
    settings: Sequence[Setting], merit: NDArray[np.float64], loss: NDArray[np.float64], died_at: Mapping[int, int]
) -> tuple[float, float]:
    """`choose_setting` by any merit (G,), the higher the better, with the mean loss (G,) of each head."""
    merits: dict[tuple[float, float], tuple[float, float]] = {}
    for pair in dict.fromkeys((setting.rate, setting.decay) for setting in settings):
        heads = [i for i, setting in enumerate(settings) if (setting.rate, setting.decay) == pair]
        mean_loss = float(loss[heads].mean())
        if not any(head in died_at for head in heads) and math.isfinite(mean_loss):
            merits[pair] = (round(float(merit[heads].mean()), 12), -mean_loss)
    if not merits:
        raise UsageError(
            f"all {len(settings)} heads of the grid diverged, or one seed of every setting did. "
            "Add smaller learning rates with --lr."
        )
    return max(merits, key=merits.__getitem__)
