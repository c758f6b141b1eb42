"""Attentive heads: G of one shape, stacked. Parameter names and shapes are those of released V-JEPA 2 probes.

    pooler.blocks.<i>            self-attention over all tokens (depth 4 has three)
    pooler.cross_attention_block norm1, xattn, norm2, mlp; xattn has no output projection in V-JEPA 2
    pooler.query_tokens          (1, queries, dim); one query a classifier
    linear                       the classifier; for several tasks `<task>_classifier` each, as in the EK100 probe

MLAP chains one cross-attention block a layer (`pooler.rounds.<j>`). Upstream facebookresearch/vjepa2@c2963a4,
src/models/attentive_pooler.py: LayerNorm 1e-5, the query is not normalised, no norm after the pooler, erf GELU.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from coldframe.probes.kept_memory import KeptMemory
from coldframe.probes.late_gradients import LateGradients, Matrix
from coldframe.probes.pooler import Attention, pool
from coldframe.probes.presets import Preset
from coldframe.probes.token_read import Tokens

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
        classes: outputs of a head with one classifier.
        time: time steps that get a learned position; 0 for none.
        tasks: name and classes of several tasks, each with a query and a classifier of its own, in place of `classes`.
    """

    preset: Preset
    dim: int
    classes: int = 0
    time: int = 0
    tasks: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        self.preset.width(self.dim)

    @property
    def classifiers(self) -> dict[str, int]:
        """Classes of every classifier by its released name, in the order of the queries."""
        return {f"{task}_classifier": classes for task, classes in self.tasks} or {"linear": self.classes}

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
        shapes: dict[str, tuple[int, ...]] = {QUERY: (1, len(self.classifiers), dim)}
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
        for name, classes in self.classifiers.items():
            shapes |= _linear(name, dim, classes)
        return shapes

    def matrices(self) -> list[str]:
        """Names of the matrices, which are nearly all of a head's numbers."""
        return [name for name, size in self.parameters().items() if name.endswith("weight") and len(size) == 2]


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
    if name.split(".")[0] in shape.classifiers and shape.preset.init == "vjepa2":
        return torch.empty(size).uniform_(-1, 1, generator=rng) / math.sqrt(shape.dim)
    if name.endswith("bias"):
        return torch.zeros(size)
    if shape.preset.init == "glorot" and len(size) == 2 and name != POSITION:
        return torch.empty(size).uniform_(-1, 1, generator=rng) * math.sqrt(6 / sum(size))
    return torch.empty(size).normal_(std=_STD, generator=rng)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Heads:
    """G heads as they run.

    Attributes:
        shape, parameters: of them.
        late: collects gradients of matrices that are in it; None leaves all to autograd.
        memory: of what is computed from tokens.
    """

    shape: HeadShape
    parameters: Parameters
    late: LateGradients | None
    memory: KeptMemory

    def matrix(self, name: str) -> Matrix:
        return Matrix.of(name, self.parameters[name], self.late)

    def linear(self, name: str, values: Tensor) -> Tensor:
        """Linear layer `name` of each head on (G, n, in) -> (G, n, out)."""
        return self.matrix(f"{name}.weight").apply(values) + self.parameters[f"{name}.bias"][:, None]

    def norm(self, name: str, values: Tensor) -> Tensor:
        """LayerNorm `name` of each head on (G, n, dim)."""
        core = functional.layer_norm(values, values.shape[-1:], eps=self.shape.preset.epsilon)
        return core * self.parameters[f"{name}.weight"][:, None] + self.parameters[f"{name}.bias"][:, None]

    def mlp(self, name: str, values: Tensor) -> Tensor:
        """MLP of block `name` on (G, n, dim), its norm included."""
        hidden = self.linear(f"{name}.mlp.fc1", self.norm(f"{name}.norm2", values))
        return self.linear(f"{name}.mlp.fc2", functional.gelu(hidden))

    def tokens(self, values: Tensor, mask: Tensor | None, time: Tensor, epsilon: float | None) -> Tokens:
        """(B, L, dim) tokens to read; None for `epsilon` if they are normalised."""
        dtype, steps = self.parameters[QUERY].dtype, self.shape.time
        return Tokens(
            values=values, mask=mask, time=time, epsilon=epsilon, steps=steps, dtype=dtype, memory=self.memory
        )

    def one(self, g: int) -> "_Heads":
        """Head `g` alone."""
        own = {name: value[g : g + 1] for name, value in self.parameters.items()}
        return _Heads(shape=self.shape, parameters=own, late=None, memory=self.memory)


def forward(
    shape: HeadShape,
    parameters: Parameters,
    maps: Sequence[Tensor],
    mask: Tensor | None,
    time: Tensor,
    rng: torch.Generator | None = None,
    late: LateGradients | None = None,
    memory: KeptMemory | None = None,
) -> tuple[Tensor, ...]:
    """(G, B, classes) logits of every classifier.

    Args:
        shape: of every head.
        parameters: stacked; they say in which dtype and on which device to compute.
        maps: one (B, L, dim) a round, from early to late layers; of the parameters' dtype or half of it.
        mask: (B, L) True for tokens that exist; None if all do.
        time: (L,) time step of each token, -1 for [CLS].
        rng: on the tokens' device; draws dropout masks. None switches dropout off.
        late: collects the gradients of the matrices that it holds; not with self-attention blocks.
        memory: to use again from one piece to the next.
    """
    preset = shape.preset
    heads = _Heads(shape=shape, parameters=parameters, late=late, memory=memory or KeptMemory())
    query = parameters[QUERY].transpose(1, 2)  # (G, Q, 1, dim)
    if mask is not None and bool(mask.all()):
        mask = None
    for name, tokens in zip(shape.cross_blocks, maps, strict=True):
        if shape.self_blocks:
            query = _through_self_blocks(heads, name, query, tokens, mask, time)
        else:
            query = _cross(heads, name, query, heads.tokens(tokens, mask, time, preset.epsilon))
    if rng is not None and preset.dropout:
        keep = torch.rand(query.shape, generator=rng, device=query.device, dtype=query.dtype) >= preset.dropout
        query = query * keep / (1 - preset.dropout)
    return tuple(heads.linear(name, query[:, place]) for place, name in enumerate(shape.classifiers))


def _through_self_blocks(
    heads: _Heads, name: str, query: Tensor, tokens: Tensor, mask: Tensor | None, time: Tensor
) -> Tensor:
    """(G, Q, B, dim): each probe changes the tokens before its query reads them, so they cannot be shared."""
    tokens = tokens.to(query.dtype)
    if mask is not None:
        tokens = tokens.masked_fill(~mask[..., None], 0.0)
    answers = []
    for g in range(len(query)):
        own = heads.one(g)
        changed = tokens
        for block in heads.shape.self_blocks:
            changed = _self_block(own, block, changed, mask)
        core = functional.layer_norm(changed, changed.shape[-1:], eps=heads.shape.preset.epsilon)
        answers.append(_cross(own, name, query[g : g + 1], heads.tokens(core, mask, time, None)))
    return torch.cat(answers)


def _cross(heads: _Heads, name: str, query: Tensor, tokens: Tokens) -> Tensor:
    """(G, Q, B, dim) query after cross-attention and MLP."""
    preset, parameters = heads.shape.preset, heads.parameters
    attention = Attention(
        norm_weight=parameters[f"{name}.norm1.weight"],
        norm_bias=parameters[f"{name}.norm1.bias"],
        q_weight=heads.matrix(f"{name}.xattn.q.weight"),
        q_bias=parameters[f"{name}.xattn.q.bias"],
        kv_weight=heads.matrix(f"{name}.xattn.kv.weight"),
        kv_bias=parameters[f"{name}.xattn.kv.bias"],
        heads=preset.heads,
        position=parameters.get(POSITION),
    )
    read = pool(attention, query, tokens)
    queries, samples = read.shape[1:3]
    read = read.flatten(1, 2)
    if preset.out_projection:
        read = heads.linear(f"{name}.xattn.proj", read)
    if preset.query_residual:
        read = read + query.expand(-1, -1, samples, -1).flatten(1, 2)
    if preset.mlp:
        read = read + heads.mlp(name, read)
    return torch.unflatten(read, 1, (queries, samples))


def _self_block(heads: _Heads, name: str, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """(B, L, dim) tokens after pre-norm self-attention and MLP of the one head in `heads`."""
    batch, length, dim = tokens.shape
    flat = tokens.reshape(1, -1, dim)
    qkv = heads.linear(f"{name}.attn.qkv", heads.norm(f"{name}.norm1", flat))
    q, k, v = qkv.view(batch, length, 3, heads.shape.preset.heads, -1).permute(2, 0, 3, 1, 4)  # (B, H, L, d)
    keep = None
    if mask is not None:  # a sample without tokens attends to its zeros, because no weights at all would be NaN
        keep = (mask | ~mask.any(dim=1, keepdim=True))[:, None, None]
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).reshape(1, -1, dim)
    changed = flat + heads.linear(f"{name}.attn.proj", attended)
    return (changed + heads.mlp(name, changed)).view(batch, length, dim)
