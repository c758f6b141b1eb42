"""One attention a frame gives what the literal masked attention gives, in every arithmetic."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from coldframe.errors import UsageError
from coldframe.export import frame_attention, rope
from coldframe.export.frame_attention import TORCH_DTYPES, PerFrameEncoder
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.parity import cosine
from coldframe.export.tokens import Tokens
from coldframe.export.torch_runtime import TorchRuntime, normalise
from tests.export.conftest import TINY, lively_model, random_clips


def encode(encoder: PerFrameEncoder, count: int = 2, seed: int = 0) -> Tokens:
    with torch.inference_mode():
        cls, patch = encoder(torch.from_numpy(random_clips(encoder.config, count, seed)))
    assert cls.dtype == patch.dtype == torch.float32
    return Tokens(cls=cls.numpy(), patch=patch.numpy())


@pytest.mark.parametrize("frames", [1, 4, 7])
def test_float32_equals_the_masked_reference(frames: int) -> None:
    """3e-5, because the reference's own convolution is up to 1.7e-5 away from the same model in float64."""
    model = lively_model(replace(TINY, num_frames=frames))
    found, wanted = encode(PerFrameEncoder(model)), TorchRuntime(model)(random_clips(model.config, 2))
    np.testing.assert_allclose(found.cls, wanted.cls, atol=3e-5, rtol=0)
    np.testing.assert_allclose(found.patch, wanted.patch, atol=3e-5, rtol=0)


def test_embedding_equals_the_reference_convolution(tiny_model: LeVJEPA) -> None:
    clips = torch.from_numpy(random_clips(TINY, 2))
    exact = copy.deepcopy(tiny_model.encoder.patch_embed).double()(normalise(clips).double())
    embedded = PerFrameEncoder(tiny_model).embed(clips)
    torch.testing.assert_close(embedded[:, :-1].double(), exact, atol=1e-5, rtol=0)
    torch.testing.assert_close(embedded[:, -1], tiny_model.encoder.cls_token.expand(2, -1, -1)[:, 0])


@pytest.mark.parametrize(("precision", "worst"), [("bf16", 0.995), ("fp16", 0.9999)])
def test_half_types_stay_near_the_reference(tiny_model: LeVJEPA, precision: str, worst: float) -> None:
    found = encode(PerFrameEncoder(tiny_model, dtype=TORCH_DTYPES[precision]))
    wanted = TorchRuntime(tiny_model)(random_clips(TINY, 2))
    assert cosine(found.patch, wanted.patch).min() >= worst
    assert cosine(found.cls, wanted.cls).min() >= worst
    assert not np.array_equal(found.patch, wanted.patch)  # it did compute in another type


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_norms_positions_and_sums_stay_float32(
    tiny_model: LeVJEPA, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[torch.dtype]] = {"layer_norm": set(), "linear": set(), "scaled_dot_product_attention": set()}
    for name, dtypes in seen.items():
        plain = getattr(torch.nn.functional, name)

        def spy(*args: torch.Tensor, plain: object = plain, dtypes: set[torch.dtype] = dtypes) -> object:
            dtypes |= {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
            assert callable(plain)
            return plain(*args)

        monkeypatch.setattr(torch.nn.functional, name, spy)
    rotated: set[torch.dtype] = set()
    turn = rope.rotate

    def turn_spy(*args: torch.Tensor) -> torch.Tensor:
        out = turn(*args)
        rotated.add(out.dtype)
        return out

    monkeypatch.setattr(frame_attention, "rotate", turn_spy)
    dtype = TORCH_DTYPES[precision]
    encode(PerFrameEncoder(tiny_model, dtype=dtype))
    assert seen == {
        "layer_norm": {torch.float32},
        "linear": {dtype},
        "scaled_dot_product_attention": {dtype},
    }
    assert rotated == {torch.float32}


def test_large_residuals_do_not_overflow_half_precision() -> None:
    """300 ** 2 is inf in float16: the square inside a norm must not be taken there (field case 30)."""
    model = lively_model(TINY)
    model.encoder.cls_token.add_(torch.tensor([300.0, -300.0]).repeat(TINY.embed_dim // 2))
    found = encode(PerFrameEncoder(model, dtype=torch.float16))
    wanted = TorchRuntime(model)(random_clips(TINY, 2))
    assert cosine(found.cls, wanted.cls).min() > 0.9999


def test_no_mask_is_ever_passed(tiny_model: LeVJEPA, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[int] = []
    plain = frame_attention.attend

    def spy(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        keys.append(key.shape[2])
        return plain(query, key, value)

    monkeypatch.setattr(frame_attention, "attend", spy)
    encode(PerFrameEncoder(tiny_model), count=1)
    assert keys == [4, 8, 12, 16, 17] * TINY.depth  # frame t reads t + 1 frames, [CLS] all and itself


def test_weights_beyond_half_precision_are_refused() -> None:
    model = lively_model(TINY)
    dict(model.named_parameters())["encoder.blocks.1.mlp.fc2.weight"][3, 3] = 70_000.0
    with pytest.raises(UsageError, match=r"a weight reaches 70000, past the largest number of torch.float16. Use bf16"):
        PerFrameEncoder(model, dtype=torch.float16)
    PerFrameEncoder(model, dtype=torch.bfloat16)
