"""The attentive heads in their plain form: every token is projected to keys and values. One head at a time.

Module names are chosen so that `state_dict()` has the names of released V-JEPA 2 probes.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coldframe.probes.heads import HeadShape
from coldframe.probes.presets import PRESETS

EPSILON = 1e-5  # PyTorch's default, which upstream leaves in place
DIM, CLASSES, HEADS = 32, 5, 4
TIME = torch.tensor([-1, 0, 0, 1, 1, 2, 2])

PLAIN: dict[str, dict[str, Any]] = {
    "levjepa": {},
    "vjepa2-d1": {},
    "vjepa2-d4": {"depth": 4},
    "videoglue": {"width": 48, "out_projection": True, "residual": False, "mlp": False, "epsilon": 1e-6},
    "mlap4": {"rounds": 4, "width": 48, "out_projection": True, "epsilon": 1e-6},
}


class Mlp(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc2(nn.functional.gelu(self.fc1(x)))
        return result


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    """(B, n, width) from (B, n, width), (B, L, width) twice; written out so that masked weights are plain zeros."""
    q, k, v = (x.view(*x.shape[:2], heads, -1).transpose(1, 2) for x in (q, k, v))
    logits = q @ k.mT / q.shape[-1] ** 0.5
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    if mask is not None:
        weights = weights * mask[:, None, None]
    read: Tensor = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300) @ v
    return read.transpose(1, 2).flatten(2)


class CrossAttention(nn.Module):
    def __init__(self, dim: int, width: int, heads: int, out_projection: bool) -> None:
        super().__init__()
        self.q, self.kv, self.heads = nn.Linear(dim, width), nn.Linear(dim, 2 * width), heads
        if out_projection:
            self.proj = nn.Linear(width, dim)

    def forward(self, query: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        k, v = self.kv(tokens).chunk(2, dim=-1)
        read = attend(self.q(query), k, v, self.heads, mask)
        projected: Tensor = self.proj(read) if hasattr(self, "proj") else read
        return projected


class CrossBlock(nn.Module):
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        width: int | None = None,
        out_projection: bool = False,
        residual: bool = True,
        mlp: bool = True,
        epsilon: float = EPSILON,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=epsilon)
        self.xattn = CrossAttention(dim, width or dim, heads, out_projection)
        if mlp:
            self.norm2, self.mlp = nn.LayerNorm(dim, eps=epsilon), Mlp(dim)
        self.residual = residual

    def forward(self, query: Tensor, tokens: Tensor, mask: Tensor | None, position: Tensor | None) -> Tensor:
        normed = self.norm1(tokens)
        if position is not None:
            normed = normed + position
        read = self.xattn(query, normed, mask)
        query = query + read if self.residual else read
        return query + self.mlp(self.norm2(query)) if hasattr(self, "mlp") else query


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), heads

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        result: Tensor = self.proj(attend(q, k, v, self.heads, mask))
        return result


class SelfBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=EPSILON), nn.LayerNorm(dim, eps=EPSILON)
        self.attn, self.mlp = SelfAttention(dim, heads), Mlp(dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class Pooler(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int = 1, rounds: int = 0, time: int = 0, **cross: object) -> None:
        super().__init__()
        self.query_tokens = nn.Parameter(torch.randn(1, 1, dim))
        self.blocks = nn.ModuleList(SelfBlock(dim, heads) for _ in range(depth - 1))
        if rounds:
            self.rounds = nn.ModuleList(CrossBlock(dim, heads, **cross) for _ in range(rounds))  # type: ignore[arg-type]
        else:
            self.cross_attention_block = CrossBlock(dim, heads, **cross)  # type: ignore[arg-type]
        if time:
            self.temporal_position = nn.Parameter(torch.randn(time, dim))

    def forward(self, maps: list[Tensor], mask: Tensor | None, time: Tensor) -> Tensor:
        query = self.query_tokens.expand(len(maps[0]), -1, -1)
        position = None
        if hasattr(self, "temporal_position"):
            table = torch.cat([self.temporal_position, self.temporal_position.new_zeros(1, query.shape[-1])])
            position = table[time]
        blocks = self.rounds if hasattr(self, "rounds") else [self.cross_attention_block]
        for block, tokens in zip(blocks, maps, strict=True):
            for own in self.blocks:
                tokens = own(tokens, mask)
            query = block(query, tokens, mask, position)
        return query[:, 0]


class Head(nn.Module):
    """`Pooler` and a linear classifier."""

    def __init__(self, dim: int, classes: int, heads: int, **pooler: object) -> None:
        super().__init__()
        self.pooler = Pooler(dim, heads, **pooler)  # type: ignore[arg-type]
        self.linear = nn.Linear(dim, classes)

    def forward(self, maps: list[Tensor], mask: Tensor | None, time: Tensor) -> Tensor:
        result: Tensor = self.linear(self.pooler(maps, mask, time))
        return result


def shape_of(name: str, time: int = 0) -> HeadShape:
    preset = PRESETS[name].with_heads(HEADS)
    if preset.hidden:
        preset = replace(preset, hidden=48)
    return HeadShape(preset=preset, dim=DIM, classes=CLASSES, time=time)


def plain(name: str, time: int = 0) -> Head:
    return Head(DIM, CLASSES, HEADS, time=time, **PLAIN[name]).double()


def stacked(heads: list[Head]) -> dict[str, Tensor]:
    """Parameters of plain heads as stacked leaves; norms and biases are drawn too, so that none is 1 or 0."""
    states = [head.state_dict() for head in heads]
    return {name: torch.stack([s[name] for s in states]).clone().requires_grad_() for name in states[0]}


def drawn_heads(name: str, count: int = 3, time: int = 0) -> list[Head]:
    heads = [plain(name, time) for _ in range(count)]
    with torch.no_grad():
        for head in heads:
            for value in head.parameters():
                value.copy_(torch.randn_like(value) * 0.3)
    return heads


def drawn_maps(name: str, samples: int = 4) -> list[Tensor]:
    return [torch.randn(samples, len(TIME), DIM).double() * 3 + 1 for _ in range(PRESETS[name].rounds)]
