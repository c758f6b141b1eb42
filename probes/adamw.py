"""AdamW on stacked heads: one learning rate and one weight decay a head, in one update of every stacked tensor.

Decoupled weight decay as in Loshchilov and Hutter (arXiv 1711.05101) and `torch.optim.AdamW`, to which it is equal head
by head. The schedules are those of V-JEPA 2 (facebookresearch/vjepa2@c2963a4, src/utils/schedulers.py): the step
counter starts at 1 and is advanced before the update, so the first rate is already below the reference.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """Updates parameters (G, *shape) in place.

    Attributes:
        parameters: by name.
        rates, decays: (G,) reference learning rate and weight decay of each head.
        schedule: of the learning rate; weight decay stays.
        beta2: of the second moment.
        decay_all: whether weight decay also acts on norms and biases (parameters of one dimension a head).
        dead: (G,) True for heads that no update touches any more.
    """

    parameters: Mapping[str, Tensor]
    rates: Tensor
    decays: Tensor
    schedule: Schedule
    beta2: float
    decay_all: bool
    step: int = 0
    gradients: dict[str, Tensor] = field(init=False)
    dead: Tensor = field(init=False)
    _first: dict[str, Tensor] = field(init=False)
    _second: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.gradients, self._first, self._second = (
            {name: torch.zeros_like(value) for name, value in self.parameters.items()} for _ in range(3)
        )
        self.dead = torch.zeros(len(self.rates), dtype=torch.bool, device=self.rates.device)

    @torch.no_grad()
    def update(self) -> None:
        """One step from `gradients`, which are zero afterwards. Heads with a gradient that is not finite die."""
        self.step += 1
        self._bury()
        rates = torch.where(self.dead, 0.0, self.rates * self.schedule.share(self.step))
        correction1 = 1 - _BETA1**self.step
        correction2 = 1 - self.beta2**self.step
        for name, value in self.parameters.items():
            gradient, first, second = self.gradients[name], self._first[name], self._second[name]
            column = (-1, *[1] * (value.dim() - 1))
            first.lerp_(gradient, 1 - _BETA1)
            second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
            # gradient is free from here on and serves as the denominator
            torch.sqrt(second, out=gradient)
            gradient.div_(math.sqrt(correction2)).add_(_EPSILON)
            if self.decay_all or value.dim() > 2:
                value.mul_((1 - rates * self.decays).view(column))
            value.sub_(torch.div(first, gradient, out=gradient).mul_((rates / correction1).view(column)))
            gradient.zero_()

    def _bury(self) -> None:
        """Mark heads whose gradient is not finite, and forget the gradients of all dead ones."""
        total = torch.zeros_like(self.rates)
        for gradient in self.gradients.values():
            total += gradient.flatten(1).sum(dim=1)
        self.dead |= ~torch.isfinite(total)
        if bool(self.dead.any()):
            for tensors in (self.gradients, self._first, self._second):
                for tensor in tensors.values():
                    tensor[self.dead] = 0.0
