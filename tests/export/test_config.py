"""Reading `config.json`: what is implemented is read, everything else is refused by name."""

from typing import Any

import pytest

from coldframe.errors import UsageError
from coldframe.export.config import SIZES, LeVJEPAConfig

RELEASED: dict[str, Any] = {
    "model_type": "levjepa",
    "img_size": 224,
    "patch_size": 16,
    "num_frames": 16,
    "tubelet_size": 1,
    "in_chans": 3,
    "embed_dim": 1024,
    "depth": 24,
    "num_heads": 16,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "attn_mode": "block_causal",
    "token_drop_rate": 0.0,
}


def test_released_config_is_the_large_size_and_comes_back_equal() -> None:
    config = LeVJEPAConfig.from_dict(RELEASED)
    assert config == SIZES["levjepa-large"]
    assert config.to_dict() == RELEASED
    assert (config.grid, config.head_dim, config.mlp_dim, config.name) == (14, 64, 4096, "levjepa-large")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_mode", "full"),
        ("tubelet_size", 2),
        ("in_chans", 1),
        ("qkv_bias", False),
        ("qkv_bias", 1),
        ("model_type", "vjepa2"),
        ("img_size", [224, 224]),
        ("img_size", 225),
        ("depth", 0),
        ("depth", "24"),
        ("num_frames", True),
        ("num_heads", 7),
        ("mlp_ratio", "4"),
        ("mlp_ratio", float("nan")),
        ("mlp_ratio", 4.0001),
        ("token_drop_rate", 1.0),
    ],
)
def test_value_that_is_not_implemented_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"config {'embed_dim' if key == 'num_heads' else key}"):
        LeVJEPAConfig.from_dict({**RELEASED, key: value})


@pytest.mark.parametrize("heads", [256, 1024])
def test_heads_too_narrow_to_rotate_are_refused(heads: int) -> None:
    with pytest.raises(UsageError, match="rotary positions need an even number"):
        LeVJEPAConfig(embed_dim=1024, depth=1, num_heads=heads)


@pytest.mark.parametrize("key", sorted(RELEASED.keys() - {"token_drop_rate"}))
def test_missing_field_is_refused_by_name(key: str) -> None:
    with pytest.raises(UsageError, match=f"lacks {key}"):
        LeVJEPAConfig.from_dict({name: value for name, value in RELEASED.items() if name != key})


def test_keys_that_change_no_number_are_allowed() -> None:
    extra = {
        "architectures": ["X"],
        "auto_map": {"AutoModel": "x.Y"},
        "torch_dtype": "float32",
        "hidden_size": 1024,
    }
    assert LeVJEPAConfig.from_dict({**RELEASED, **extra}) == SIZES["levjepa-large"]


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("hidden_size", 768, "hidden_size is 768.*must be 1024"),
        ("layer_norm_eps", 1e-5, "must be 1e-06"),
        ("use_rope", False, "must be True"),
        ("drop_path", 0.1, "unknown key 'drop_path'"),
    ],
)
def test_key_that_may_change_numbers_is_refused(key: str, value: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        LeVJEPAConfig.from_dict({**RELEASED, key: value})


def test_shape_that_is_no_named_size_has_its_numbers_in_the_name() -> None:
    assert LeVJEPAConfig(embed_dim=96, depth=3, num_heads=3).name == "levjepa-96x3x3p16"
    assert LeVJEPAConfig(embed_dim=192, depth=6, num_heads=3, img_size=256, num_frames=8).name == "levjepa-nano"
    assert LeVJEPAConfig(embed_dim=192, depth=6, num_heads=3, mlp_ratio=2).name == "levjepa-192x6x3p16"
