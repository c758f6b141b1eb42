"""The PyTorch reference: counts, layout, the attention rule, and one block against numpy in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.export.config import SIZES, LeVJEPAConfig
from coldframe.export.levjepa import LeVJEPA, block_causal_mask
from tests.export.conftest import TINY, lively_model
from tests.export.test_rope import rotate_one

Array = NDArray[np.float64]


def pixels(batch: int = 1, seed: int = 0, config: LeVJEPAConfig = TINY) -> torch.Tensor:
    shape = (batch, 3, config.num_frames, config.img_size, config.img_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def encode(model: LeVJEPA, values: torch.Tensor) -> torch.Tensor:
    hidden: torch.Tensor = model(pixel_values=values).last_hidden_state
    return hidden


# --- counts ------------------------------------------------------------------------------------


def test_large_has_the_published_tensors_and_parameters() -> None:
    with torch.device("meta"):
        state = LeVJEPA(SIZES["levjepa-large"]).state_dict()
    assert len(state) == 293
    assert sum(tensor.numel() for tensor in state.values()) == 303_099_904
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes["encoder.cls_token"] == (1, 1, 1024)
    assert shapes["encoder.patch_embed.proj.weight"] == (1024, 3, 1, 16, 16)
    assert shapes["encoder.patch_embed.proj.bias"] == (1024,)
    assert shapes["encoder.norm.weight"] == shapes["encoder.norm.bias"] == (1024,)
    block = {name.removeprefix("encoder.blocks.23."): shape for name, shape in shapes.items() if ".23." in name}
    assert block == {
        "norm1.weight": (1024,),
        "norm1.bias": (1024,),
        "norm2.weight": (1024,),
        "norm2.bias": (1024,),
        "attn.qkv.weight": (3072, 1024),
        "attn.qkv.bias": (3072,),
        "attn.proj.weight": (1024, 1024),
        "attn.proj.bias": (1024,),
        "mlp.fc1.weight": (4096, 1024),
        "mlp.fc1.bias": (4096,),
        "mlp.fc2.weight": (1024, 4096),
        "mlp.fc2.bias": (1024,),
    }


@pytest.mark.parametrize(
    ("size", "dim", "depth", "heads"),
    [
        ("levjepa-nano", 192, 6, 3),
        ("levjepa-tiny", 192, 12, 3),
        ("levjepa-small", 384, 12, 6),
        ("levjepa-base", 768, 12, 12),
        ("levjepa-large", 1024, 24, 16),
    ],
)
def test_sizes_have_their_shape_and_the_parameters_that_follow(size: str, dim: int, depth: int, heads: int) -> None:
    config = SIZES[size]
    assert (config.embed_dim, config.depth, config.num_heads, config.name) == (dim, depth, heads, size)
    with torch.device("meta"):
        model = LeVJEPA(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters
    assert len(model.state_dict()) == 12 * depth + 5


# --- numbers -----------------------------------------------------------------------------------


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    out: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * weight + bias
    return out


def numpy_attention(x: Array, state: dict[str, Array], prefix: str, config: LeVJEPAConfig) -> Array:
    """Attention of one clip `(n, D)`, token by token and key by key."""
    dim, depth = config.embed_dim, config.head_dim
    spatial = config.grid**2
    packed = x @ state[f"{prefix}.qkv.weight"].T + state[f"{prefix}.qkv.bias"]
    parts = [packed[:, i * dim : (i + 1) * dim].reshape(len(x), config.num_heads, depth) for i in range(3)]
    out = np.zeros((len(x), config.num_heads, depth))
    for head in range(config.num_heads):
        query, key = parts[0][:, head].copy(), parts[1][:, head].copy()
        for token in range(1, len(x)):
            t, rest = divmod(token - 1, spatial)
            position = (t, rest // config.grid, rest % config.grid)
            query[token] = rotate_one(list(query[token]), position)
            key[token] = rotate_one(list(key[token]), position)
        for token in range(len(x)):
            frame = (token - 1) // spatial
            seen = range(len(x)) if token == 0 else range(1, 1 + (frame + 1) * spatial)
            scores = np.array([query[token] @ key[k] for k in seen]) / math.sqrt(depth)
            shares = np.exp(scores - scores.max())
            out[token, head] = (shares / shares.sum()) @ np.array([parts[2][k, head] for k in seen])
    return out.reshape(len(x), dim) @ state[f"{prefix}.proj.weight"].T + state[f"{prefix}.proj.bias"]


def numpy_encoder(model: LeVJEPA, clip: Array) -> Array:
    """The whole encoder on one clip `(3, T, H, W)`, in float64 and without PyTorch's layers."""
    config = model.config
    state = {name.removeprefix("encoder."): tensor.double().numpy() for name, tensor in model.state_dict().items()}
    side = config.patch_size
    rows: list[Any] = [state["cls_token"][0, 0]]
    for t in range(config.num_frames):
        for y in range(config.grid):
            for x in range(config.grid):
                patch = clip[:, t, y * side : (y + 1) * side, x * side : (x + 1) * side]
                weight = state["patch_embed.proj.weight"][:, :, 0]
                rows.append((weight * patch).sum((1, 2, 3)) + state["patch_embed.proj.bias"])
    tokens = np.stack(rows)
    erf = np.vectorize(math.erf)
    for index in range(config.depth):
        at = f"blocks.{index}"
        normed = layer_norm(tokens, state[f"{at}.norm1.weight"], state[f"{at}.norm1.bias"])
        tokens = tokens + numpy_attention(normed, state, f"{at}.attn", config)
        normed = layer_norm(tokens, state[f"{at}.norm2.weight"], state[f"{at}.norm2.bias"])
        hidden = normed @ state[f"{at}.mlp.fc1.weight"].T + state[f"{at}.mlp.fc1.bias"]
        hidden = hidden * 0.5 * (1 + erf(hidden / math.sqrt(2)))
        tokens = tokens + hidden @ state[f"{at}.mlp.fc2.weight"].T + state[f"{at}.mlp.fc2.bias"]
    return layer_norm(tokens, state["norm.weight"], state["norm.bias"])


def test_encoder_equals_a_plain_numpy_one(tiny_model: LeVJEPA) -> None:
    values = pixels()
    expected = numpy_encoder(tiny_model, values[0].double().numpy())
    output = tiny_model(pixel_values=values)
    np.testing.assert_allclose(output.last_hidden_state[0], expected, atol=2e-5)
    np.testing.assert_allclose(output.pooler_output[0], expected[0], atol=2e-5)


def test_mask_lets_cls_read_all_and_be_read_by_none() -> None:
    mask = block_causal_mask(2, 2).int().tolist()
    assert mask == [[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1]]


# --- behaviour ---------------------------------------------------------------------------------


def per_frame(hidden: torch.Tensor) -> torch.Tensor:
    return hidden[0, 1:].reshape(TINY.num_frames, TINY.grid**2, TINY.embed_dim)


def test_last_frame_changes_itself_and_cls_alone(tiny_model: LeVJEPA) -> None:
    values = pixels()
    other = values.clone()
    other[:, :, -1] = pixels(seed=9)[:, :, -1]
    change = (encode(tiny_model, values) - encode(tiny_model, other)).abs()
    frames = per_frame(change)
    assert frames[:-1].max() <= 1e-5
    assert frames[-1].amax(-1).min() > 0.01
    assert change[0, 0].max() > 0.01


def test_first_frame_changes_every_token(tiny_model: LeVJEPA) -> None:
    values = pixels()
    other = values.clone()
    other[:, :, 0] = pixels(seed=9)[:, :, 0]
    change = (encode(tiny_model, values) - encode(tiny_model, other)).abs()
    assert change[0].amax(-1).min() > 1e-3


def test_cls_embedding_reaches_no_patch() -> None:
    model = lively_model(TINY)
    before = encode(model, pixels())
    model.encoder.cls_token.mul_(-1)
    change = (encode(model, pixels()) - before).abs()
    assert change[0, 0].max() > 0.1
    assert change[0, 1:].max() == 0


def test_token_t_y_x_answers_to_its_own_patch() -> None:
    """With no blocks a token depends on its patch alone, so its place in the sequence shows."""
    config = LeVJEPAConfig(img_size=48, num_frames=4, embed_dim=48, depth=1, num_heads=3)
    model = lively_model(config)
    model.encoder.blocks = torch.nn.ModuleList()
    dark = torch.zeros(1, 3, 4, 48, 48)
    for t, y, x in ((0, 0, 0), (2, 1, 0), (3, 0, 2)):
        lit = dark.clone()
        lit[:, :, t, y * 16 : (y + 1) * 16, x * 16 : (x + 1) * 16] = 1.0
        changed = (encode(model, lit) - encode(model, dark)).abs().amax(-1)[0, 1:].reshape(4, 3, 3) > 1e-6
        assert changed.nonzero().tolist() == [[t, y, x]]


@pytest.mark.parametrize("count", [1, 4, 7])
def test_batch_mates_do_not_matter(tiny_model: LeVJEPA, count: int) -> None:
    values = pixels(7)
    alone = torch.cat([encode(tiny_model, clip[None]) for clip in values])
    batched = torch.cat([encode(tiny_model, part) for part in torch.split(values, count)])
    assert (batched - alone).abs().max() <= 1e-5
    assert (encode(tiny_model, values.flip(0)).flip(0) - alone).abs().max() <= 1e-5


def test_other_lengths_and_sizes_extrapolate(tiny_model: LeVJEPA) -> None:
    short = encode(tiny_model, pixels()[:, :, :2])
    assert (short[:, 1:] - encode(tiny_model, pixels())[:, 1 : 1 + 8]).abs().max() <= 1e-5
    assert encode(tiny_model, torch.zeros(1, 3, 5, 16, 48)).shape == (1, 1 + 5 * 1 * 3, 48)


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((1, 4, 3, 32, 32), r"\(1, 4, 3, 32, 32\).*axis 1 must be the 3 colour channels, it has 4"),
        ((3, 4, 32, 32), "five axes"),
        ((1, 3, 4, 30, 32), "multiples of the patch size 16"),
        ((1, 3, 4, 32, 0), "multiples of the patch size 16"),
        ((1, 3, 0, 32, 32), "at least one clip and one frame"),
        ((0, 3, 4, 32, 32), "at least one clip and one frame"),
    ],
)
def test_other_layouts_are_refused_by_name(tiny_model: LeVJEPA, shape: tuple[int, ...], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        tiny_model(pixel_values=torch.zeros(shape))


def test_pixels_that_were_not_normalised_are_refused(tiny_model: LeVJEPA) -> None:
    with pytest.raises(UsageError, match=r"torch.uint8.*normalise first"):
        tiny_model(pixel_values=torch.zeros(1, 3, 4, 32, 32, dtype=torch.uint8))
