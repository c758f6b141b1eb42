"""Attentive heads: G of one shape, stacked. Parameter names and shapes are those of released V-JEPA 2 probes.

    pooler.blocks.<i>            self-attention over all tokens (depth 4 has three)
    pooler.cross_attention_block norm1, xattn, norm2, mlp; xattn has no output projection in V-JEPA 2
    pooler.query_tokens          (1, 1, dim)
    linear                       the classifier

MLAP chains one cross-attention block a layer (`pooler.rounds.<j>`). Upstream facebookresearch/vjepa2@c2963a4,
src/models/attentive_pooler.py: LayerNorm 1e-5, the query is not normalised, no norm after the pooler, erf GELU.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from coldframe.probes.pooler import Attention, Tokens, normalise, pool
from coldframe.probes.presets import Preset

Parameters = Mapping[str, Tensor]  # name -> (G, *shape)

QUERY = "pooler.query_tokens"
POSITION = "pooler.temporal_position"
MLP_RATIO = 4
_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """What decides the parameters of a head.

    Attributes:
        preset: the architecture.
        dim: width of the tokens.
        classes: outputs.
        time: time steps that get a learned position; 0 for none.
    """

    preset: Preset
    dim: int
    classes: int
    time: int = 0

    def __post_init__(self) -> None:
        self.preset.width(self.dim)

    @property
    def cross_blocks(self) -> tuple[str, ...]:
        if self.preset.rounds == 1:
            return ("pooler.cross_attention_block",)
        return tuple(f"pooler.rounds.{j}" for j in range(self.preset.rounds))

    @property
    def self_blocks(self) -> tuple[str, ...]:
        return tuple(f"pooler.blocks.{i}" for i in range(self.preset.self_blocks))

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter of one head, by its released name."""
        dim, width = self.dim, self.preset.width(self.dim)
        shapes: dict[str, tuple[int, ...]] = {QUERY: (1, 1, dim)}
        if self.time:
            shapes[POSITION] = (self.time, dim)
        for name in self.cross_blocks:
            shapes |= _norm(f"{name}.norm1", dim)
            shapes |= _linear(f"{name}.xattn.q", dim, width) | _linear(f"{name}.xattn.kv", dim, 2 * width)
            if self.preset.out_projection:
                shapes |= _linear(f"{name}.xattn.proj", width, dim)
            if self.preset.mlp:
                shapes |= _norm(f"{name}.norm2", dim) | _mlp(name, dim)
        for name in self.self_blocks:
            shapes |= _norm(f"{name}.norm1", dim) | _norm(f"{name}.norm2", dim) | _mlp(name, dim)
            shapes |= _linear(f"{name}.attn.qkv", dim, 3 * dim) | _linear(f"{name}.attn.proj", dim, dim)
        return shapes | _linear("linear", dim, self.classes)


def _linear(name: str, fan_in: int, fan_out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (fan_out, fan_in), f"{name}.bias": (fan_out,)}


def _norm(name: str, dim: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}


def _mlp(name: str, dim: int) -> dict[str, tuple[int, ...]]:
    return _linear(f"{name}.mlp.fc1", dim, MLP_RATIO * dim) | _linear(f"{name}.mlp.fc2", MLP_RATIO * dim, dim)


def initialise(shape: HeadShape, seeds: Sequence[int]) -> dict[str, Tensor]:
    """Fresh parameters, float32 on the CPU, one head a seed; equal seeds give equal heads.

    V-JEPA 2: query and Linear weights from a normal with sd 0.02, biases 0; the last Linear of block i (from 1) over
    sqrt(2 i), that of the cross-attention block over sqrt(2 max(1, self blocks)); the classifier has PyTorch's default.
    """
    heads = [_initialise_one(shape, torch.Generator().manual_seed(seed)) for seed in seeds]
    return {name: torch.stack([head[name] for head in heads]) for name in heads[0]}


def _initialise_one(shape: HeadShape, rng: torch.Generator) -> dict[str, Tensor]:
    made = {name: _draw(shape, name, size, rng) for name, size in shape.parameters().items()}
    if shape.preset.init == "vjepa2":
        for i, name in enumerate(shape.self_blocks, start=1):
            made[f"{name}.attn.proj.weight"] /= math.sqrt(2 * i)
            made[f"{name}.mlp.fc2.weight"] /= math.sqrt(2 * i)
        for name in shape.cross_blocks:
            made[f"{name}.mlp.fc2.weight"] /= math.sqrt(2 * max(1, len(shape.self_blocks)))
    return made


def _draw(shape: HeadShape, name: str, size: tuple[int, ...], rng: torch.Generator) -> Tensor:
    if ".norm" in name:
        return torch.ones(size) if name.endswith("weight") else torch.zeros(size)
    if name.startswith("linear") and shape.preset.init == "vjepa2":
        return torch.empty(size).uniform_(-1, 1, generator=rng) / math.sqrt(shape.dim)
    if name.endswith("bias"):
        return torch.zeros(size)
    if shape.preset.init == "glorot" and len(size) == 2 and name != POSITION:
        return torch.empty(size).uniform_(-1, 1, generator=rng) * math.sqrt(6 / sum(size))
    return torch.empty(size).normal_(std=_STD, generator=rng)


def forward(
    shape: HeadShape,
    parameters: Parameters,
    maps: Sequence[Tensor],
    mask: Tensor | None,
    time: Tensor,
    rng: torch.Generator | None = None,
) -> Tensor:
    """(G, B, classes) logits.

    Args:
        shape: of every head.
        parameters: stacked; of the same dtype and device as the tokens.
        maps: one (B, L, dim) a round, from early to late layers.
        mask: (B, L) True for tokens that exist; None if all do.
        time: (L,) time step of each token, -1 for [CLS].
        rng: on the tokens' device; draws dropout masks. None switches dropout off.
    """
    preset = shape.preset
    query = parameters[QUERY].flatten(1, 2)  # (G, 1, dim)
    for name, tokens in zip(shape.cross_blocks, maps, strict=True):
        if shape.self_blocks:
            query = _through_self_blocks(shape, parameters, name, query, tokens, mask, time)
        else:
            query = _cross(shape, parameters, name, query, normalise(tokens, mask, time, preset.epsilon))
    if rng is not None and preset.dropout:
        keep = torch.rand(query.shape, generator=rng, device=query.device, dtype=query.dtype) >= preset.dropout
        query = query * keep / (1 - preset.dropout)
    return _apply(parameters, "linear", query)


def _through_self_blocks(
    shape: HeadShape,
    parameters: Parameters,
    name: str,
    query: Tensor,
    tokens: Tensor,
    mask: Tensor | None,
    time: Tensor,
) -> Tensor:
    """(G, B, dim): each probe changes the tokens before its query reads them, so they cannot be shared."""
    if mask is not None:
        tokens = tokens.masked_fill(~mask[..., None], 0.0)
    answers = []
    for g in range(len(query)):
        own = {key: value[g : g + 1] for key, value in parameters.items()}
        changed = tokens
        for block in shape.self_blocks:
            changed = _self_block(shape, own, block, changed, mask)
        answers.append(_cross(shape, own, name, query[g : g + 1], normalise(changed, mask, time, shape.preset.epsilon)))
    return torch.cat(answers)


def _cross(shape: HeadShape, parameters: Parameters, name: str, query: Tensor, tokens: Tokens) -> Tensor:
    """(G, B, dim) query after cross-attention and MLP."""
    preset = shape.preset
    attention = Attention(
        norm_weight=parameters[f"{name}.norm1.weight"],
        norm_bias=parameters[f"{name}.norm1.bias"],
        q_weight=parameters[f"{name}.xattn.q.weight"],
        q_bias=parameters[f"{name}.xattn.q.bias"],
        kv_weight=parameters[f"{name}.xattn.kv.weight"],
        kv_bias=parameters[f"{name}.xattn.kv.bias"],
        heads=preset.heads,
        position=parameters.get(POSITION),
    )
    read = pool(attention, query, tokens)
    if preset.out_projection:
        read = _apply(parameters, f"{name}.xattn.proj", read)
    query = query + read if preset.query_residual else read
    return query + _mlp_of(shape, parameters, name, query) if preset.mlp else query


def _self_block(shape: HeadShape, parameters: Parameters, name: str, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """(B, L, dim) tokens after pre-norm self-attention and MLP of the one head in `parameters`."""
    batch, length, dim = tokens.shape
    normed = _layer_norm(shape, parameters, f"{name}.norm1", tokens.reshape(1, -1, dim))
    qkv = _apply(parameters, f"{name}.attn.qkv", normed).view(batch, length, 3, shape.preset.heads, -1)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, L, d)
    keep = None
    if mask is not None:  # a sample without tokens attends to its zeros, because no weights at all would be NaN
        keep = (mask | ~mask.any(dim=1, keepdim=True))[:, None, None]
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).reshape(1, -1, dim)
    changed = tokens.reshape(1, -1, dim) + _apply(parameters, f"{name}.attn.proj", attended)
    return (changed + _mlp_of(shape, parameters, name, changed)).view(batch, length, dim)


def _mlp_of(shape: HeadShape, parameters: Parameters, name: str, values: Tensor) -> Tensor:
    hidden = _apply(parameters, f"{name}.mlp.fc1", _layer_norm(shape, parameters, f"{name}.norm2", values))
    return _apply(parameters, f"{name}.mlp.fc2", functional.gelu(hidden))


def _layer_norm(shape: HeadShape, parameters: Parameters, name: str, values: Tensor) -> Tensor:
    """LayerNorm of (G, n, dim), or of (1, n, dim) shared by one head."""
    core = functional.layer_norm(values, values.shape[-1:], eps=shape.preset.epsilon)
    return core * parameters[f"{name}.weight"][:, None] + parameters[f"{name}.bias"][:, None]


def _apply(parameters: Parameters, name: str, values: Tensor) -> Tensor:
    """Linear layer `name` of each head on (G, n, in) -> (G, n, out)."""
    return torch.baddbmm(parameters[f"{name}.bias"][:, None], values, parameters[f"{name}.weight"].mT)
