"""AdamW on stacked heads: one learning rate and one weight decay a head, and a head that breaks is left out.

The schedules are those of V-JEPA 2 (facebookresearch/vjepa2@c2963a4, src/utils/schedulers.py): the step
counter starts at 1 and is advanced before the update, so the first rate is already below the reference.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_BETA1 = 0.9
_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate over steps 1 to `steps`, as a share of the reference rate.

    Attributes:
        steps: updates in all.
        warmup: updates with a rising rate, from `start` to 1.
        start, final: shares before the first and after the last update.
    """

    steps: int
    warmup: int = 0
    start: float = 1.0
    final: float = 0.0

    def share(self, step: int) -> float:
        """Share of the reference rate at `step`, counted from 1."""
        if step < self.warmup:
            return self.start + step / self.warmup * (1 - self.start)
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return max(self.final, self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass(kw_only=True, eq=False)
class StackedAdamW:
    """Updates parameters (G, *shape) in place: PyTorch's fused AdamW with each head's part of them as a group.

    Attributes:
        parameters: by name.
        rates, decays: reference learning rate and weight decay of each head.
        schedule: of the learning rate; weight decay stays.
        beta2: of the second moment.
        decay_all: whether weight decay also acts on norms and biases (parameters of one dimension a head).
        step: updates so far.
        gradients: by name; what the next update reads.
        dead: heads that no update touches any more.
    """

    parameters: Mapping[str, Tensor]
    rates: Sequence[float]
    decays: Sequence[float]
    schedule: Schedule
    beta2: float
    decay_all: bool
    step: int = 0
    gradients: dict[str, Tensor] = field(init=False)
    dead: set[int] = field(init=False, default_factory=set)
    _adamw: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        self.gradients = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        self._adamw = torch.optim.AdamW(
            [group for head in range(len(self.rates)) for group in self._groups(head)],
            betas=(_BETA1, self.beta2),
            eps=_EPSILON,
            fused=True,
        )

    def _groups(self, head: int) -> Iterator[dict[str, Any]]:
        """The head's decayed and other parameters; views that share memory, as do their gradients."""
        parts: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, value in self.parameters.items():
            own = value[head]
            own.grad = self.gradients[name][head]
            parts[self.decay_all or own.dim() > 1].append(own)
        for decayed, params in parts.items():
            if params:
                decay = self.decays[head] if decayed else 0.0
                yield {"params": params, "weight_decay": decay, "head": head}

    @torch.no_grad()
    def update(self) -> None:
        """One step from `gradients`. Heads with a gradient that is not finite die."""
        self.step += 1
        self._bury()
        share = self.schedule.share(self.step)
        for group in self._adamw.param_groups:
            group["lr"] = self.rates[group["head"]] * share
        self._adamw.step()

    def _bury(self) -> None:
        """Take the gradients away from heads where one is not finite; PyTorch leaves parameters without one alone."""
        total = sum(gradient.flatten(1).sum(dim=1) for gradient in self.gradients.values())
        assert isinstance(total, Tensor)
        self.dead.update(torch.isfinite(total).logical_not().nonzero().flatten().tolist())
        for group in self._adamw.param_groups:
            if group["head"] in self.dead:
                for own in group["params"]:
                    own.grad = None
