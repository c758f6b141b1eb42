"""Gradients made late are those of plain autograd, whatever the pieces of a batch and however many rows wait."""

import pytest
import torch

from coldframe.probes.heads import forward
from coldframe.probes.late_gradients import LateGradients
from coldframe.probes.presets import PRESETS
from tests.probes.plain_heads import TIME, drawn_heads, drawn_maps, shape_of, stacked

LATE = [name for name, preset in PRESETS.items() if not preset.self_blocks]
PIECES = {
    "one piece": [300],
    "less than waits": [60, 40],
    "more than waits": [100, 100, 100, 100, 7],
    "written twice": [256, 256, 1],
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize(("name", "looked_at"), [*((name, False) for name in LATE), ("levjepa", True)])
def test_late_gradients_are_those_of_plain_heads(name: str, looked_at: bool, pieces: list[int]) -> None:
    shape, heads, rows = shape_of(name), drawn_heads(name, count=2), sum(pieces)
    parameters = stacked(heads)
    # What is there before must not matter, and neither must an update before.
    sums = {key: torch.full_like(parameters[key], torch.nan) for key in shape.matrices()}
    late = LateGradients(sums=sums)
    for _ in range(2):
        maps = drawn_maps(name, samples=rows)
        mask = torch.rand(rows, len(TIME)) < 0.7
        mask[:, 1] = True
        weight = torch.randn(len(heads), rows, shape.classes, dtype=torch.float64)
        for value in [*parameters.values(), *(value for head in heads for value in head.parameters())]:
            value.grad = None
        start = 0
        for size in pieces:
            part = slice(start, start + size)
            (logits,) = forward(shape, parameters, [one[part] for one in maps], mask[part], TIME, None, late)
            torch.autograd.backward((logits * weight[:, part]).sum())
            start += size
            if looked_at:
                late.write()
        late.write()
        late.forget()
        for head, own in zip(heads, weight, strict=True):
            torch.autograd.backward((head(maps, mask, TIME) * own).sum())
        for key, value in parameters.items():
            wanted = torch.stack([dict(head.named_parameters())[key].grad for head in heads])  # type: ignore[misc]
            found = sums.get(key, value.grad)
            assert found is not None
            assert value.grad is None or key not in sums
            scale = float(wanted.abs().max().clamp_min(1))
            assert float((found - wanted).abs().max()) <= 1e-10 * scale, key


def test_every_matrix_of_a_chain_is_late() -> None:
    names = shape_of("mlap4").matrices()
    for j in range(4):
        for part in ("xattn.q", "xattn.kv", "xattn.proj", "mlp.fc1", "mlp.fc2"):
            assert f"pooler.rounds.{j}.{part}.weight" in names
