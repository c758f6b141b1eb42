"""Token read: softmax attention of folded queries over tokens that are keys and values at once, forward and backward.

Each pass goes over the tokens a block of samples at a time, in memory that is used again, on every core.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coldframe.probes.core_threads import spread, workers
from coldframe.probes.kept_memory import KeptMemory

_BLOCK_ELEMENTS = 4 << 20  # of tokens or weights that are worked on at once, so that they stay in a cache
_PADDING = 16  # numbers behind each token, without which rows of 4 KB fall on one another in a cache
_MOST_SUMS = 32  # parts of a sum over samples: enough for threads to end at once, and few enough to add up


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
        memory: where what is computed from them lies.
    """

    values: Tensor
    mask: Tensor | None
    time: Tensor
    epsilon: float | None
    steps: int = 0
    dtype: torch.dtype = torch.float32
    memory: KeptMemory = field(default_factory=KeptMemory)

    @property
    def weight_sum(self) -> Tensor:
        """(B,) 1, or 0 for samples without any token."""
        if self.mask is None:
            return self.values.new_ones(len(self.values), dtype=self.dtype)
        return self.mask.any(dim=1).to(self.dtype)

    def core(self, block: slice, room: Tensor, moments: Tensor, *, known: bool) -> Tensor:
        """(b, L, dim + steps) of a block of samples.

        Args:
            block: which samples.
            room: (b or more, L, dim + steps) where they are made.
            moments: (2, B, L, 1) mean and inverse standard deviation of tokens.
            known: whether those of the block are there; else they are written.
        """
        core = room[: block.stop - block.start]
        dim = self.values.shape[-1]
        own = core[..., :dim]
        own.copy_(self.values[block])
        if self.mask is not None:
            own.masked_fill_(~self.mask[block, :, None], 0.0)
        if self.epsilon is not None:
            mean, scale = moments[0, block], moments[1, block]
            if not known:
                torch.mean(own, dim=-1, keepdim=True, out=mean)
            own.sub_(mean)
            if not known:
                torch.linalg.vector_norm(own, dim=-1, keepdim=True, out=scale)
                scale.square_().div_(dim).add_(self.epsilon).rsqrt_()
            own.mul_(scale)
        if self.steps:
            core[..., dim:] = self.time[:, None] == torch.arange(self.steps, device=self.time.device)
        return core


def read_tokens(reads: Tensor, tokens: Tokens) -> Tensor:
    """(B, Q, C) means of tokens (B, L, C) under the softmax of `reads` (1 or B, Q, C) times tokens."""
    means: Tensor = _Read.apply(reads, tokens.values, tokens)  # type: ignore[no-untyped-call]
    return means


def _blocks(samples: int, elements: int) -> list[slice]:
    """Spans of samples with at most `_BLOCK_ELEMENTS` elements, and at least one sample."""
    size = max(1, _BLOCK_ELEMENTS // elements)
    return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]


class _Read(torch.autograd.Function):
    """Autograd's own form makes half a dozen copies of the weights, which are as many numbers as a third of the tokens;
    here they are changed in place, a block of samples at a time.
    """

    @staticmethod
    def forward(ctx: Any, reads: Tensor, values: Tensor, tokens: Tokens) -> Tensor:
        """As `read_tokens`; `values` are those of `tokens`, here for autograd's sake."""
        (samples, length, _), (_, queries, width) = values.shape, reads.shape
        blocks = _blocks(samples, length * max(queries, width))
        threads, rows = workers(values.device, len(blocks), values.numel()), blocks[0].stop
        kept = any(ctx.needs_input_grad)
        make = tokens.memory.tensor
        means, moments = make((samples, queries, width), reads), reads.new_empty(2, samples, length, 1)
        cores = [make((rows, length, width + _PADDING), reads)[..., :width] for _ in range(threads)]
        weights = [make((samples, queries, length), reads)] if kept else []
        rooms = [] if kept else [make((rows, queries, length), reads) for _ in range(threads)]

        def read(thread: int, number: int) -> None:
            block = blocks[number]
            core = tokens.core(block, cores[thread], moments, known=False)
            logits = weights[0][block] if kept else rooms[thread][: len(core)]
            torch.bmm(_of(reads, block), core.mT, out=logits)
            if tokens.mask is not None:
                logits.masked_fill_(~tokens.mask[block, None], torch.finfo(logits.dtype).min)
            torch.softmax(logits, dim=-1, out=logits)
            if tokens.mask is not None:  # where all are masked, a softmax gives equal weights
                logits.mul_(tokens.mask[block, None])
            torch.bmm(logits, core, out=means[block])

        spread(read, len(blocks), threads)
        if kept:
            ctx.save_for_backward(reads, values, means, moments, *weights)
            ctx.tokens = tokens
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        reads, values, means, moments, weights = ctx.saved_tensors
        tokens: Tokens = ctx.tokens
        (samples, length, dim), (_, queries, width) = values.shape, reads.shape
        blocks = _blocks(samples, length * max(queries, width))
        parts = [blocks[start::_MOST_SUMS] for start in range(min(_MOST_SUMS, len(blocks)))]
        threads, rows = workers(values.device, len(parts), values.numel()), blocks[0].stop
        make = tokens.memory.tensor
        cores = [make((rows, length, width + _PADDING), reads)[..., :width] for _ in range(threads)]
        rooms = [make((rows, queries, length), reads) for _ in range(threads)]
        upons = [make((2, rows, queries, width), reads) for _ in range(threads)]
        shared = len(reads) == 1
        of_reads = make((len(parts), queries, width), reads).zero_() if shared else torch.empty_like(reads)
        of_values = torch.empty_like(values) if ctx.needs_input_grad[1] else None

        def back(thread: int, number: int) -> None:
            for block in parts[number]:
                core = tokens.core(block, cores[thread], moments, known=True)
                upon, product = upons[thread][:, : len(core)]
                upon.copy_(gradient[block])
                # sum over tokens of weight times the weight's gradient, without making the latter first
                inner = torch.mul(upon, means[block], out=product).sum(dim=-1, keepdim=True)  # (b, Q, 1)
                logits = torch.bmm(upon, core.mT, out=rooms[thread][: len(core)])
                logits.sub_(inner).mul_(weights[block])
                if shared:
                    for one, own in zip(logits, core, strict=True):
                        of_reads[number].addmm_(one, own)
                else:
                    torch.bmm(logits, core, out=of_reads[block])
                if of_values is not None:  # values that are normalised already, the core's first columns
                    of_core = torch.bmm(logits.mT, _of(reads, block)).baddbmm_(weights[block].mT, upon)
                    of_values[block] = of_core[..., :dim]

        spread(back, len(parts), threads)
        return of_reads.sum(dim=0, keepdim=True) if shared else of_reads, of_values, None


def _of(reads: Tensor, block: slice) -> Tensor:
    """The queries of a block of samples."""
    return reads.expand(block.stop - block.start, -1, -1) if len(reads) == 1 else reads[block]
