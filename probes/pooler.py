"""Folded attention pooling: a query reads tokens without projecting them.

A single query's keys and values never need the tokens' projections. With core(x) the LayerNorm of a token without its
affine part (gamma, beta), W_k, W_v a head's projections and q its query,

    logits  = core(X) u             u = gamma * (W_k^T q) / sqrt(d)
    output  = W_v (gamma * m + beta) + b_v          m = softmax(logits)^T core(X)

because what b_k and beta add to the logits is equal for all tokens and cancels in the softmax, and because the weights
sum to 1. For G stacked probes with H heads each, all u are one matrix (G * H, dim), and each token is read once for
all of them. Same numbers as the plain form, 60 times fewer multiply-adds at dim 768 and 12 heads.

Every tensor of parameters leads with the axis G. A learned position of a token's time step is one more column a step
in the same products: the token has a 1 in the column of its step, the query what it reads of that step's position.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coldframe.probes.core_threads import spread, workers
from coldframe.probes.kept_memory import KeptMemory
from coldframe.probes.late_gradients import Matrix
from coldframe.probes.token_read import Tokens, read_tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention:
    """Parameters of G stacked cross-attentions over tokens of width dim.

    Attributes:
        norm_weight, norm_bias: (G, dim) of the tokens' LayerNorm.
        q_weight, q_bias: (G, width, dim), (G, width).
        kv_weight, kv_bias: (G, 2 * width, dim), (G, 2 * width); keys, then values.
        heads: H, which divides width.
        position: (G, steps, dim) added to the normalised tokens of each time step, or None.
    """

    norm_weight: Tensor
    norm_bias: Tensor
    q_weight: Matrix
    q_bias: Tensor
    kv_weight: Matrix
    kv_bias: Tensor
    heads: int
    position: Tensor | None = None

    @property
    def width(self) -> int:
        return self.q_bias.shape[1]


def pool(attention: Attention, query: Tensor, tokens: Tokens) -> Tensor:
    """(G, Q, B, width) what each query reads, before any output projection.

    A sample without any token reads zero.

    Args:
        query: (G, Q, 1, dim), or (G, Q, B, dim) where it depends on the sample; not normalised.
        tokens: of B samples.
    """
    probes, queries, _, dim = query.shape
    heads, samples = attention.heads, len(tokens.values)
    folded = _fold(attention, query)  # (G, H, Q, 1 or B, dim), without gamma
    columns = [folded * attention.norm_weight[:, None, None, None]]
    if attention.position is not None:
        columns.append(folded @ attention.position[:, None, None].mT)
    reads = torch.cat(columns, dim=-1).permute(3, 0, 1, 2, 4).flatten(1, 3)  # (1 or B, G * H * Q, dim + steps)
    means = read_tokens(reads, tokens)
    means = means.view(samples, probes, heads * queries, -1)
    total = tokens.weight_sum
    normed = _affine(means[..., :dim], attention.norm_weight, attention.norm_bias, total, tokens.memory)
    if attention.position is not None:
        normed = normed + means[..., dim:] @ attention.position
    normed = torch.unflatten(normed, 2, (heads, queries)).permute(1, 2, 3, 0, 4)  # (G, H, Q, B, dim)
    values = attention.kv_weight.split("values", slice(attention.width, None), heads)
    bias = torch.unflatten(attention.kv_bias[:, attention.width :], 1, (heads, 1, 1, -1))  # (G, H, 1, 1, d)
    read = torch.unflatten(values.apply(normed.flatten(2, 3)), 2, (queries, samples)) + total[:, None] * bias
    return read.permute(0, 2, 3, 1, 4).flatten(3)


def _affine(means: Tensor, gamma: Tensor, beta: Tensor, total: Tensor, memory: KeptMemory) -> Tensor:
    """(B, G, n, dim) means times gamma (G, dim) plus total (B,) times beta (G, dim)."""
    made: Tensor = _Affine.apply(means, gamma, beta, total, memory)  # type: ignore[no-untyped-call]
    return made


class _Affine(torch.autograd.Function):
    """In memory that is used again: the means of a piece are 1 MB a clip and 20 probes of width 1,024."""

    @staticmethod
    def forward(ctx: Any, means: Tensor, gamma: Tensor, beta: Tensor, total: Tensor, memory: KeptMemory) -> Tensor:
        ctx.save_for_backward(means, gamma, total)
        ctx.memory = memory
        shift = total[:, None, None, None] * beta[:, None]
        return torch.addcmul(shift, means, gamma[:, None], out=memory.tensor(means.shape, means))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        means, gamma, total = ctx.saved_tensors
        of_means = ctx.memory.tensor(means.shape, means)
        of_gamma, of_beta = torch.empty_like(gamma), torch.empty_like(gamma)

        def back(_thread: int, g: int) -> None:
            upon, into = gradient[:, g], of_means[:, g]
            # summed over one axis after the other, because over both at once takes 20 times as long
            of_gamma[g] = torch.mul(upon, means[:, g], out=into).sum(dim=1).sum(dim=0)
            of_beta[g] = total @ upon.sum(dim=1)
            torch.mul(upon, gamma[g], out=into)

        spread(back, len(gamma), workers(gamma.device, len(gamma), means.numel()))
        return of_means, of_gamma, of_beta, None, None


def _fold(attention: Attention, query: Tensor) -> Tensor:
    """(G, H, Q, 1 or B, dim) W_k^T (W_q query + b_q) / sqrt(d) of each head."""
    q = attention.q_weight.apply(query.flatten(1, 2)) + attention.q_bias[:, None]
    q = torch.unflatten(q, 2, (attention.heads, -1)).transpose(1, 2)  # (G, H, Q * (1 or B), d)
    keys = attention.kv_weight.split("keys", slice(attention.width), attention.heads)  # (G, H, d, dim)
    folded = keys.apply_transposed(q * q.shape[-1] ** -0.5)
    return torch.unflatten(folded, 2, query.shape[1:3])
