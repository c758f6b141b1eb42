"""Stacked AdamW is PyTorch's AdamW for each head, and one head's NaN stays its own."""

import math

import pytest
import torch
from torch import Tensor

from coldframe.probes.adamw import Schedule, StackedAdamW

RATES, DECAYS = [1e-2, 1e-3, 3e-4], [0.1, 0.0, 0.8]
SHAPES = {"weight": (4, 3), "bias": (4,), "query": (1, 1, 3)}


def optimiser(steps: int, *, decay_all: bool = True) -> StackedAdamW:
    torch.manual_seed(0)
    return StackedAdamW(
        parameters={name: torch.randn(3, *shape) for name, shape in SHAPES.items()},
        rates=RATES,
        decays=DECAYS,
        schedule=Schedule(steps=steps),
        beta2=0.999,
        decay_all=decay_all,
    )


def set_gradients(ours: StackedAdamW, step: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(step)
    drawn = {name: torch.randn(3, *shape, generator=rng) for name, shape in SHAPES.items()}
    for name, value in drawn.items():
        ours.gradients[name].copy_(value)
    return drawn


@pytest.mark.parametrize("decay_all", [True, False])
def test_each_head_is_pytorchs_adamw(decay_all: bool) -> None:
    ours = optimiser(20, decay_all=decay_all)
    theirs = []
    for head in range(3):
        own = {name: value[head].clone().requires_grad_() for name, value in ours.parameters.items()}
        groups = [
            {"params": [value], "weight_decay": DECAYS[head] if decay_all or value.dim() > 1 else 0.0}
            for value in own.values()
        ]
        theirs.append((own, torch.optim.AdamW(groups, lr=RATES[head])))
    for step in range(1, 21):
        drawn = set_gradients(ours, step)
        ours.update()
        for head, (own, adamw) in enumerate(theirs):
            for name, value in own.items():
                value.grad = drawn[name][head]
            for group in adamw.param_groups:
                group["lr"] = RATES[head] * 0.5 * (1 + math.cos(math.pi * step / 20))
            adamw.step()
    for head, (own, _) in enumerate(theirs):
        for name, value in own.items():
            torch.testing.assert_close(ours.parameters[name][head], value.detach(), rtol=1e-6, atol=1e-7)


def test_a_head_with_nan_is_frozen_and_the_others_do_not_notice() -> None:
    broken, whole = optimiser(10), optimiser(10)
    for step in range(1, 11):
        for ours in (broken, whole):
            set_gradients(ours, step)
        before = broken.parameters["bias"][1].clone()
        if step == 4:
            broken.gradients["bias"][1, 2] = float("nan")
        for ours in (broken, whole):
            ours.update()
        assert broken.dead == ({1} if step >= 4 else set())
        if step >= 4:
            assert torch.equal(broken.parameters["bias"][1], before)
    for name in SHAPES:
        assert torch.isfinite(broken.parameters[name]).all()
        assert torch.equal(broken.parameters[name][[0, 2]], whole.parameters[name][[0, 2]])


def test_schedule_is_stepped_before_the_update() -> None:
    plain = Schedule(steps=100)
    assert plain.share(1) == 0.5 * (1 + math.cos(math.pi / 100)) < 1
    assert plain.share(100) == 0.0
    warm = Schedule(steps=100, warmup=10, start=0.2)
    assert [warm.share(step) for step in (1, 5, 9)] == pytest.approx([0.28, 0.6, 0.92])
    assert warm.share(10) == 1.0
    assert warm.share(55) == pytest.approx(0.5)
