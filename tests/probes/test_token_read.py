"""Reading tokens in blocks on several cores is softmax attention, both ways, and the same every time."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from coldframe.probes.kept_memory import KeptMemory
from coldframe.probes.token_read import Tokens, read_tokens

SAMPLES, LENGTH, DIM, QUERIES = 12, 700, 160, 5  # enough elements for threads of their own


@pytest.fixture(autouse=True)
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def plainly(reads: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    core = functional.layer_norm(values.double().masked_fill(~mask[..., None], 0.0), (DIM,), eps=1e-5)
    logits = (reads @ core.mT).masked_fill(~mask[:, None], -torch.inf)
    return torch.softmax(logits, dim=-1) @ core


@pytest.mark.parametrize("block_elements", [1, LENGTH * DIM * 5, 1 << 30])
@pytest.mark.parametrize("own_queries", [False, True])
def test_it_is_softmax_attention_both_ways(
    monkeypatch: pytest.MonkeyPatch, block_elements: int, own_queries: bool
) -> None:
    monkeypatch.setattr("coldframe.probes.token_read._BLOCK_ELEMENTS", block_elements)
    monkeypatch.setattr("coldframe.probes.token_read._MOST_SUMS", 5)
    values = torch.randn(SAMPLES, LENGTH, DIM).half()
    mask = torch.rand(SAMPLES, LENGTH) < 0.8
    weight = torch.randn(SAMPLES, QUERIES, DIM, dtype=torch.float64)
    reads = torch.randn(SAMPLES if own_queries else 1, QUERIES, DIM, dtype=torch.float64) * 0.2
    ours, theirs = (reads.clone().requires_grad_() for _ in range(2))
    expected = plainly(theirs, values, mask)
    torch.autograd.backward((expected * weight).sum())
    memory = KeptMemory()
    for _ in range(2):  # the second in memory that is full of the first
        ours.grad = None
        tokens = Tokens(
            values=values, mask=mask, time=torch.zeros(LENGTH), epsilon=1e-5, dtype=torch.float64, memory=memory
        )
        found = read_tokens(ours, tokens)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        torch.autograd.backward((found * weight).sum())
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-9)
        with torch.no_grad():
            torch.testing.assert_close(read_tokens(ours, tokens), expected, rtol=0, atol=1e-10)


def test_threads_do_not_decide_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldframe.probes.token_read._BLOCK_ELEMENTS", 1)
    values, weight = torch.randn(SAMPLES, LENGTH, DIM).half(), torch.randn(SAMPLES, QUERIES, DIM)
    reads = torch.randn(1, QUERIES, DIM)
    gradients = []
    for _ in range(8):
        own = reads.clone().requires_grad_()
        tokens = Tokens(values=values, mask=None, time=torch.zeros(LENGTH), epsilon=1e-5)
        torch.autograd.backward((read_tokens(own, tokens) * weight).sum())
        gradients.append(own.grad)
    assert all(torch.equal(gradients[0], other) for other in gradients[1:] if other is not None)  # type: ignore[arg-type]
