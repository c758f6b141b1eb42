"""Stacked folded heads are the plain heads: forward, gradients, names, initial weights, masks and order."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from coldframe.errors import UsageError
from coldframe.probes.heads import HeadShape, Parameters, initialise
from coldframe.probes.heads import forward as forward_tasks
from coldframe.probes.presets import PRESETS
from tests.probes.plain_heads import (
    DIM,
    HEADS,
    TIME,
    Head,
    drawn_heads,
    drawn_maps,
    plain,
    shape_of,
    stacked,
)


def forward(shape: HeadShape, parameters: Parameters, maps: list[Tensor], *rest: Any) -> Tensor:
    """Logits of the one classifier."""
    (logits,) = forward_tasks(shape, parameters, maps, *rest)
    return logits


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("time", [0, 3], ids=["no position", "temporal position"])
@pytest.mark.parametrize("name", PRESETS)
def test_folded_and_stacked_is_plain_forward_and_backward(name: str, time: int, masked: bool) -> None:
    heads, maps = drawn_heads(name, time=time), drawn_maps(name)
    mask = None
    if masked:
        mask = torch.ones(4, len(TIME), dtype=torch.bool)
        mask[1, 4:] = False
        mask[2, 1:] = False
    ours = stacked(heads)
    logits = forward(shape_of(name, time), ours, maps, mask, TIME)
    theirs = torch.stack([head(maps, mask, TIME) for head in heads])
    torch.testing.assert_close(logits, theirs, rtol=0, atol=1e-10)
    weight = torch.randn_like(logits)
    torch.autograd.backward((logits * weight).sum())
    torch.autograd.backward((theirs * weight).sum())
    for key, value in ours.items():
        wanted = torch.stack([dict(head.named_parameters())[key].grad for head in heads])  # type: ignore[misc]
        assert value.grad is not None
        scale = float(wanted.abs().max().clamp_min(1))
        assert float((value.grad - wanted).abs().max()) <= 1e-10 * scale, key


@pytest.mark.parametrize("name", PRESETS)
def test_names_and_shapes_are_those_of_the_plain_modules(name: str) -> None:
    wanted = {key: tuple(value.shape) for key, value in plain(name).state_dict().items()}
    assert shape_of(name).parameters() == wanted


def test_released_vitl_probe_has_its_51_tensors_and_parameter_count() -> None:
    shapes = HeadShape(preset=PRESETS["vjepa2-d4"], dim=1024, classes=174).parameters()
    assert len(shapes) == 51
    assert sum(math.prod(size) for size in shapes.values()) == 49_514_670
    assert shapes["pooler.cross_attention_block.xattn.kv.weight"] == (2048, 1024)
    assert shapes["pooler.query_tokens"] == (1, 1, 1024)
    assert shapes["linear.bias"] == (174,)
    assert not any("xattn.proj" in key for key in shapes)


def test_initial_weights_follow_upstream() -> None:
    shape = HeadShape(preset=PRESETS["vjepa2-d4"].with_heads(4), dim=256, classes=400)
    made = initialise(shape, [0, 1, 0])
    assert all(torch.equal(value[0], value[2]) for value in made.values())
    assert not torch.equal(made["linear.weight"][0], made["linear.weight"][1])
    for i, name in enumerate(["blocks.0", "blocks.1", "blocks.2", "cross_attention_block"], start=1):
        expected = 0.02 / math.sqrt(2 * min(i, 3))
        assert float(made[f"pooler.{name}.mlp.fc2.weight"].std()) == pytest.approx(expected, rel=0.01)
        assert float(made[f"pooler.{name}.mlp.fc1.weight"].std()) == pytest.approx(0.02, rel=0.01)
        assert not made[f"pooler.{name}.mlp.fc2.bias"].any()
        assert (made[f"pooler.{name}.norm1.weight"] == 1).all()
    bound = 1 / math.sqrt(256)
    for key in ("linear.weight", "linear.bias"):
        assert 0.95 * bound < float(made[key].abs().max()) <= bound
    one = initialise(HeadShape(preset=PRESETS["levjepa"].with_heads(4), dim=256, classes=4), [0])
    fc2 = one["pooler.cross_attention_block.mlp.fc2.weight"]
    assert float(fc2.std()) == pytest.approx(0.02 / math.sqrt(2), rel=0.01)


@pytest.mark.parametrize("name", PRESETS)
def test_a_sample_of_padding_alone_is_finite_and_padding_is_never_read(name: str) -> None:
    parameters, maps = stacked(drawn_heads(name)), drawn_maps(name)
    mask = torch.ones(4, len(TIME), dtype=torch.bool)
    mask[0] = False
    mask[1, 5:] = False
    shape = shape_of(name)
    logits = forward(shape, parameters, maps, mask, TIME)
    assert torch.isfinite(logits).all()
    torch.autograd.backward(logits.sum())
    assert all(torch.isfinite(value.grad).all() for value in parameters.values() if value.grad is not None)
    torch.testing.assert_close(logits[:, 2:], forward(shape, parameters, [m[2:] for m in maps], None, TIME))

    flipped = [tokens.clone() for tokens in maps]
    for tokens in flipped:
        tokens[0] = float("nan")
        tokens[1, 5:] = -tokens[1, 5:]
    assert torch.equal(forward(shape, parameters, flipped, mask, TIME), logits)
    flipped[0][1, 2] *= -1
    changed = (forward(shape, parameters, flipped, mask, TIME) - logits).abs().amax(dim=(0, 2))
    assert changed[1] > 1e-6
    assert not changed[[0, 2, 3]].any()


@pytest.mark.parametrize("name", ["levjepa", "vjepa2-d4"])
def test_frame_order_shows_only_with_a_temporal_position(name: str) -> None:
    maps, order = drawn_maps(name), torch.tensor([0, 5, 6, 1, 2, 3, 4])
    for time, seen in ((0, False), (3, True)):
        parameters = stacked(drawn_heads(name, time=time))
        logits = forward(shape_of(name, time), parameters, maps, None, TIME)
        other = forward(shape_of(name, time), parameters, [m[:, order] for m in maps], None, TIME)
        moved = float((logits - other).detach().abs().max())
        assert moved > 1e-3 if seen else moved < 1e-12  # float64: another order of the same sum


def test_dropout_is_a_function_of_its_generator_and_off_without_one() -> None:
    shape, maps = shape_of("videoglue"), drawn_maps("videoglue")
    parameters = stacked(drawn_heads("videoglue"))

    def drawn(seed: int) -> Tensor:
        return forward(shape, parameters, maps, None, TIME, torch.Generator().manual_seed(seed))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    mean = torch.stack([drawn(seed).detach() for seed in range(300)]).mean(0)
    plain_logits = forward(shape, parameters, maps, None, TIME)
    torch.testing.assert_close(mean, plain_logits, rtol=0, atol=0.4 * float(plain_logits.detach().std()))


def test_attention_heads_must_divide_the_width() -> None:
    with pytest.raises(UsageError, match=r"16 attention heads, which do not divide its width 20.*--heads"):
        HeadShape(preset=PRESETS["levjepa"], dim=20, classes=2)


@pytest.mark.parametrize("name", ["vjepa2-d1", "vjepa2-d4"])
def test_a_query_and_a_classifier_a_task_is_the_plain_form_of_it(name: str) -> None:
    heads = []
    for one in drawn_heads(name):
        one.pooler.query_tokens = torch.nn.Parameter(torch.randn(1, 2, DIM).double())
        heads.append(one)
    tasks = {"verb": 5, "noun": 7}
    classifiers = [{task: torch.nn.Linear(DIM, classes).double() for task, classes in tasks.items()} for _ in heads]
    shape = HeadShape(preset=PRESETS[name].with_heads(HEADS), dim=DIM, tasks=tuple(tasks.items()))
    states = []
    for head, own in zip(heads, classifiers, strict=True):
        state = {key: value for key, value in head.state_dict().items() if not key.startswith("linear")}
        for task, linear in own.items():
            state |= {f"{task}_classifier.{key}": value for key, value in linear.state_dict().items()}
        states.append(state)
    assert {key: tuple(value.shape) for key, value in states[0].items()} == shape.parameters()
    ours = {key: torch.stack([state[key] for state in states]).clone().requires_grad_() for key in states[0]}
    maps = drawn_maps(name)
    weights = [torch.randn(len(heads), 4, classes).double() for classes in tasks.values()]
    logits = forward_tasks(shape, ours, maps, None, TIME)
    total = torch.zeros((), dtype=torch.float64)
    for g, (head, own) in enumerate(zip(heads, classifiers, strict=True)):
        for place, linear in enumerate(own.values()):
            # a plain head reads with its first query; the other tasks' queries are turned to the front
            queries = head.pooler.query_tokens
            order = [place, 1 - place]
            theirs = linear(_read(head, queries[:, order], maps))
            torch.testing.assert_close(logits[place][g], theirs, rtol=0, atol=1e-10)
            total = total + (theirs * weights[place][g]).sum()
    torch.autograd.backward(total)
    torch.autograd.backward([(one * weight).sum() for one, weight in zip(logits, weights, strict=True)])
    for key in ("pooler.query_tokens", "pooler.cross_attention_block.xattn.kv.weight"):
        wanted = torch.stack([dict(head.named_parameters())[key].grad for head in heads])  # type: ignore[misc]
        torch.testing.assert_close(ours[key].grad, wanted, rtol=0, atol=1e-8)


def _read(head: Head, queries: Tensor, maps: list[Tensor]) -> Tensor:
    """(B, dim) what the first of `queries` reads."""
    tokens = maps[0]
    for block in head.pooler.blocks:
        tokens = block(tokens, None)
    query = queries[:, :1].expand(len(tokens), -1, -1)
    read: Tensor = head.pooler.cross_attention_block(query, tokens, None, None)
    return read[:, 0]


def test_released_ek100_probe_has_its_55_tensors_and_parameter_count() -> None:
    tasks = (("verb", 97), ("noun", 289), ("action", 3568))
    shapes = HeadShape(preset=PRESETS["vjepa2-d4"], dim=1024, tasks=tasks).parameters()
    assert len(shapes) == 55
    assert sum(math.prod(size) for size in shapes.values()) == 53_391_218
    assert shapes["pooler.query_tokens"] == (1, 3, 1024)
    assert shapes["action_classifier.weight"] == (3568, 1024)
