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
from torch.nn import functional

from coldframe.probes.late_gradients import Matrix

_BLOCK_ELEMENTS = 4 << 20  # of tokens or weights that are worked on at once, so that they stay in a cache


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """Tokens as heads read them: normalised without affine, then 1 in the column of their time step.

    They are normalised where they are read, forward and backward, because a copy of all would take longer to write
    and to read again than the norm takes.

    Attributes:
        values: (B, L, dim) as stored, in `dtype` or half of it.
        mask: (B, L) True for tokens that exist, or None if all do. Masked ones are zero, whatever they held.
        time: (L,) time step of each token, -1 for [CLS].
        epsilon: of the LayerNorm; None for values that are normalised already.
        steps: time steps with a learned position, one column each.
        dtype: to compute in.
    """

    values: Tensor
    mask: Tensor | None
    time: Tensor
    epsilon: float | None
    steps: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def weight_sum(self) -> Tensor:
        """(B,) 1, or 0 for samples without any token."""
        if self.mask is None:
            return self.values.new_ones(len(self.values), dtype=self.dtype)
        return self.mask.any(dim=1).to(self.dtype)

    def core(self, block: slice) -> Tensor:
        """(b, L, dim + steps) of a block of samples."""
        core = self.values[block].to(self.dtype)
        if self.mask is not None:
            core = core.masked_fill(~self.mask[block, :, None], 0.0)
        if self.epsilon is not None:
            core = functional.layer_norm(core, core.shape[-1:], eps=self.epsilon)
        if not self.steps:
            return core
        member = self.time[:, None] == torch.arange(self.steps, device=self.time.device)
        return torch.cat([core, member.to(core.dtype).expand(len(core), -1, -1)], dim=-1)


def _blocks(samples: int, elements: int) -> list[slice]:
    """Spans of samples with at most `_BLOCK_ELEMENTS` elements, and at least one sample."""
    size = max(1, _BLOCK_ELEMENTS // elements)
    return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]


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
    gamma, beta = (value[:, None, None, None] for value in (attention.norm_weight, attention.norm_bias))
    columns = [folded * gamma]
    if attention.position is not None:
        columns.append(folded @ attention.position[:, None, None].mT)
    reads = torch.cat(columns, dim=-1).permute(3, 0, 1, 2, 4).flatten(1, 3)  # (1 or B, G * H * Q, dim + steps)
    means: Tensor = _Read.apply(reads, tokens.values, tokens)  # type: ignore[no-untyped-call]
    means = means.view(samples, probes, heads, queries, -1).permute(1, 2, 3, 0, 4)  # (G, H, Q, B, dim + steps)
    total = tokens.weight_sum[:, None]
    normed = means[..., :dim] * gamma + total * beta
    if attention.position is not None:
        normed = normed + means[..., dim:] @ attention.position[:, None, None]
    values = attention.kv_weight.split("values", slice(attention.width, None), heads)
    bias = torch.unflatten(attention.kv_bias[:, attention.width :], 1, (heads, 1, 1, -1))  # (G, H, 1, 1, d)
    read = torch.unflatten(values.apply(normed.flatten(2, 3)), 2, (queries, samples)) + total * bias
    return read.permute(0, 2, 3, 1, 4).flatten(3)


def _fold(attention: Attention, query: Tensor) -> Tensor:
    """(G, H, Q, 1 or B, dim) W_k^T (W_q query + b_q) / sqrt(d) of each head."""
    q = attention.q_weight.apply(query.flatten(1, 2)) + attention.q_bias[:, None]
    q = torch.unflatten(q, 2, (attention.heads, -1)).transpose(1, 2)  # (G, H, Q * (1 or B), d)
    keys = attention.kv_weight.split("keys", slice(attention.width), attention.heads)  # (G, H, d, dim)
    folded = keys.apply_transposed(q * q.shape[-1] ** -0.5)
    return torch.unflatten(folded, 2, query.shape[1:3])


class _Read(torch.autograd.Function):
    """Softmax attention of shared or own queries over tokens that are keys and values at once.

    Autograd's own form makes half a dozen copies of the weights, which are as many numbers as a third of the tokens;
    here they are changed in place, a block of samples at a time.
    """

    @staticmethod
    def forward(ctx: Any, reads: Tensor, values: Tensor, tokens: Tokens) -> Tensor:
        """(B, Q, C) means of tokens (B, L, C) under the softmax of reads (1 or B, Q, C) times tokens.

        Args:
            ctx: PyTorch's.
            reads: the queries, folded.
            values: those of `tokens`, here for autograd's sake.
            tokens: what is read.
        """
        (samples, length, _), (_, queries, width) = values.shape, reads.shape
        weights, means = reads.new_empty(samples, queries, length), reads.new_empty(samples, queries, width)
        for block in _blocks(samples, length * max(queries, width)):
            logits, core = weights[block], tokens.core(block)
            torch.bmm(_of(reads, block), core.mT, out=logits)
            if tokens.mask is not None:
                logits.masked_fill_(~tokens.mask[block, None], torch.finfo(logits.dtype).min)
            torch.softmax(logits, dim=-1, out=logits)
            if tokens.mask is not None:  # where all are masked, a softmax gives equal weights
                logits.mul_(tokens.mask[block, None])
            torch.bmm(logits, core, out=means[block])
        ctx.save_for_backward(reads, values, weights, means)
        ctx.tokens = tokens
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        reads, values, weights, means = ctx.saved_tensors
        tokens: Tokens = ctx.tokens
        of_reads = torch.zeros_like(reads)
        of_values = torch.empty_like(values) if ctx.needs_input_grad[1] else None
        for block in _blocks(len(values), values.shape[1] * max(reads.shape[1:])):
            core, upon = tokens.core(block), gradient[block].contiguous()
            # sum over tokens of weight times the weight's gradient, without making the latter first
            inner = (upon * means[block]).sum(dim=-1, keepdim=True)  # (b, Q, 1)
            logits = torch.bmm(upon, core.mT).sub_(inner).mul_(weights[block])
            if len(reads) == 1:
                for one, own in zip(logits, core, strict=True):
                    of_reads[0].addmm_(one, own)
            else:
                torch.bmm(logits, core, out=of_reads[block])
            if of_values is not None:  # values that are normalised already, so that they are the core's first columns
                width = values.shape[-1]
                of_core = torch.bmm(logits.mT, _of(reads, block)).baddbmm_(weights[block].mT, upon)
                of_values[block] = of_core[..., :width]
        return of_reads, of_values, None


def _of(reads: Tensor, block: slice) -> Tensor:
    """The queries of a block of samples."""
    return reads.expand(block.stop - block.start, -1, -1) if len(reads) == 1 else reads[block]
