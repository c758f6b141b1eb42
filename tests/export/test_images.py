"""Image encoders of transformers and timm: their tokens are the library's own, and nothing of a folder is assumed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from coldframe.errors import UsageError
from coldframe.export.families import load_encoder, read_encoder_config, save_encoder
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.image_folders import (
    PREPROCESSOR,
    clip_pixels,
    frames_of,
    hugging_face_folder,
    timm_folder,
)

Expected = tuple[torch.Tensor | None, torch.Tensor]


def library_tokens(kind: str, model: Any, frames: torch.Tensor) -> Expected:
    """One vector a frame and the patches, by what each library documents of its output."""
    if kind.startswith("clip"):
        tower = getattr(model, "vision_model", model)
        out = tower(pixel_values=frames, interpolate_pos_encoding=True)
        return out.pooler_output, tower.post_layernorm(out.last_hidden_state)[:, 1:]
    if kind.startswith("siglip"):
        tower = getattr(model, "vision_model", model)
        out = tower(pixel_values=frames, interpolate_pos_encoding=True)
        return out.pooler_output, out.last_hidden_state
    out = model(pixel_values=frames)
    registers = 0 if kind.startswith("dinov2") and "registers" not in kind else 4
    return out.pooler_output, out.last_hidden_state[:, 1 + registers :]


def close(found: NDArray[np.float32], wanted: torch.Tensor) -> None:
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted.numpy(), atol=1e-5)


KINDS = (
    "clip",
    "clip_vision_model",
    "siglip",
    "siglip_vision_model",
    "dinov2",
    "dinov2-swiglu",
    "dinov2_with_registers",
    "dinov3_vit",
)


@pytest.mark.parametrize("size", [(32, 32), (48, 64)], ids=["released", "wide"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_librarys(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    model = hugging_face_folder(kind, tmp_path)
    vector = "pooled" if kind.startswith("siglip") else None
    encoder = load_encoder(tmp_path, frame_vector=vector)  # type: ignore[arg-type]
    geometry = encoder.config.geometry(frames=3, image_size=size)
    clips = clip_pixels(2, 3, *size)
    tokens = TorchRuntime(encoder, geometry=geometry, threads=1)(clips)
    wanted_vector, wanted_patches = library_tokens(kind, model, frames_of(clips))
    assert tokens.patch.shape == (2, 3, size[0] // 16, size[1] // 16, 48)
    assert wanted_vector is not None
    close(tokens.frame_cls, wanted_vector)
    close(tokens.patch, wanted_patches)


def test_siglip_gives_no_vector_unless_its_pooling_head_is_named(tmp_path: Path) -> None:
    hugging_face_folder("siglip", tmp_path)
    encoder = load_encoder(tmp_path)
    assert encoder.config.geometry().outputs == ("patch",)
    with pytest.raises(
        UsageError, match=r"frame vector is 'cls', which siglip_vision_model does not have; allowed are n"
    ):
        load_encoder(tmp_path, frame_vector="cls")


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        ("clip", {"logit_scale": 1, "text_model.*": 20, "text_projection.*": 1, "visual_projection.*": 1}),
        ("siglip", {"logit_bias": 1, "logit_scale": 1, "text_model.*": 22}),
        ("dinov2", {}),
    ],
)
def test_what_is_left_out_of_a_checkpoint_is_named(kind: str, left_out: dict[str, int], tmp_path: Path) -> None:
    hugging_face_folder(kind, tmp_path)
    assert load_encoder(tmp_path).config.left_out == left_out


def edited(source: Path, target: Path, change: Any) -> Path:
    """A copy of a folder whose tensors went through `change`."""
    shutil.copytree(source, target)
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("encoder.layer.2.norm1.weight", "1 unexpected"),
        ("visual.proj", "1 unexpected"),
    ],
)
def test_further_tensors_are_refused(name: str, match: str, tmp_path: Path) -> None:
    hugging_face_folder("dinov2", tmp_path / "source")
    with pytest.raises(UsageError, match=match):
        load_encoder(edited(tmp_path / "source", tmp_path / "more", lambda t: t.update({name: torch.zeros(48)})))


def test_missing_or_misshapen_tensors_are_refused(tmp_path: Path) -> None:
    hugging_face_folder("clip", tmp_path / "source")
    gone = "vision_model.post_layernorm.bias"
    with pytest.raises(UsageError, match=r"1 missing \(post_layernorm.bias\).*not loaded in part as CLIPVisionModel"):
        load_encoder(edited(tmp_path / "source", tmp_path / "gone", lambda tensors: tensors.pop(gone)))
    with pytest.raises(UsageError, match=r"post_layernorm.bias is \(3,\), wanted \(48,\)"):
        load_encoder(edited(tmp_path / "source", tmp_path / "odd", lambda t: t.update({gone: torch.zeros(3)})))


def test_older_clip_checkpoints_hold_position_numbers_too(tmp_path: Path) -> None:
    hugging_face_folder("clip", tmp_path / "source")
    name = "vision_model.embeddings.position_ids"
    old = edited(tmp_path / "source", tmp_path / "old", lambda t: t.update({name: torch.arange(5)[None]}))
    assert load_encoder(old).config.left_out["embeddings.position_ids"] == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 50),
        ("hidden_size", "big"),
        ("num_attention_heads", 5),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 0),
        ("patch_size", -16),
        ("hidden_act", "swish5"),
        ("num_channels", 4),
        ("layer_norm_eps", "small"),
    ],
)
def test_wrong_configurations_are_refused_in_one_line(key: str, value: Any, tmp_path: Path) -> None:
    hugging_face_folder("dinov2", tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, key: value}))
    with pytest.raises(UsageError) as refused:
        load_encoder(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"image_mean": None}, "does not state size, image_mean and image_std"),
        ({"image_std": [0.2, 0.0, 0.2]}, r"pixel_std is \[0.2, 0.0, 0.2\]; allowed are three finite numbers above 0"),
        ({"rescale_factor": 1}, "rescale_factor 1; allowed is 1/255"),
        ({"do_normalize": False}, "do_normalize False"),
        ({"crop_size": {"height": 33, "width": 32}}, "image height is 33 pixels"),
    ],
)
def test_pixels_are_those_of_the_release_or_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    hugging_face_folder("dinov2", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSOR, **change}))
    with pytest.raises(UsageError, match=match):
        load_encoder(tmp_path)


def test_pixels_are_not_guessed(tmp_path: Path) -> None:
    hugging_face_folder("dinov2", tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(UsageError, match=r"no preprocessor_config.json, which states the mean"):
        load_encoder(tmp_path)


def test_released_resize_is_recorded_and_other_normalisation_is_another_name(tmp_path: Path) -> None:
    hugging_face_folder("dinov2", tmp_path)
    first = load_encoder(tmp_path).config
    assert first.released_pixels == "short side to 36 (bicubic), centre crop 32 x 32"
    squash = {"size": {"height": 32, "width": 32}, "do_center_crop": None, "resample": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSOR, **squash}))
    second = load_encoder(tmp_path).config
    assert second.released_pixels == "squashed to 32 x 32 (bilinear)"
    assert first.name == second.name
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSOR, "image_mean": [0.5, 0.5, 0.5]}))
    assert load_encoder(tmp_path).config.name != first.name


def test_a_saved_encoder_is_the_same(tmp_path: Path) -> None:
    hugging_face_folder("dinov3_vit", tmp_path / "source")
    first = load_encoder(tmp_path / "source")
    save_encoder(first, tmp_path / "saved")
    again = load_encoder(tmp_path / "saved")
    assert again.config == first.config == read_encoder_config(first.config.to_dict())
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


def small_vit(folder: Path, **more: Any) -> Any:
    return timm_folder("vit_tiny_patch16_224", folder, img_size=32, embed_dim=48, depth=2, num_heads=3, **more)


@pytest.mark.parametrize("more", [{}, {"reg_tokens": 4}, {"class_token": False, "global_pool": "avg"}], ids=str)
def test_tokens_of_timms_vits_are_the_librarys(more: dict[str, Any], tmp_path: Path) -> None:
    model = small_vit(tmp_path, **more)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["pretrained_cfg"] |= {"input_size": [3, 32, 32], "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    clips = clip_pixels(2, 3)
    given = model.forward_features(frames_of(clips))
    prefix = model.num_prefix_tokens
    encoder = load_encoder(tmp_path)
    tokens = TorchRuntime(encoder, geometry=encoder.config.geometry(frames=3), threads=1)(clips)
    close(tokens.patch, given[:, prefix:])
    assert tokens.has_frame_cls == (prefix > 0)
    if prefix:
        close(tokens.frame_cls, given[:, 0])
    else:
        pooled = load_encoder(tmp_path, frame_vector="pooled")
        tokens = TorchRuntime(pooled, geometry=encoder.config.geometry(frames=3), threads=1)(clips)
        close(tokens.frame_cls, model.forward_head(given, pre_logits=True))
    with pytest.raises(UsageError, match="takes 32x32 only, as released"):
        encoder.config.geometry(image_size=(64, 64))


def test_map_of_timms_resnet_is_the_librarys_in_row_order(tmp_path: Path) -> None:
    model = timm_folder("test_resnet", tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["pretrained_cfg"] |= {"input_size": [3, 64, 96], "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    clips = clip_pixels(1, 2, 64, 96)
    encoder = load_encoder(tmp_path, frame_vector="pooled")
    tokens = TorchRuntime(encoder, geometry=encoder.config.geometry(frames=2), threads=1)(clips)
    given = model.forward_features(frames_of(clips))
    assert tokens.patch.shape == (1, 2, 2, 3, 96)
    close(tokens.patch, given.permute(0, 2, 3, 1))
    close(tokens.frame_cls, given.mean((2, 3)))
    assert load_encoder(tmp_path).config.geometry().has_frame_cls is False


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"architecture": "hf-hub:someone/model"}, "architecture 'hf-hub:someone/model', which timm"),
        ({"architecture": "no_such_model"}, "which timm"),
        ({"model_args": {"checkpoint_path": "x.pth"}}, "model_args checkpoint_path; allowed are"),
        ({"model_args": {"embed_dim": 49}}, "does not make timm's|do not fit"),
        ({"num_classes": 7}, "num_classes 7 and another one"),
        ({"pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.5] * 3}}, "mean and std as expected"),
        ({"pretrained_cfg": {"input_size": [1, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}}, "3 colours"),
    ],
)
def test_timm_folders_that_are_not_plain_are_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    small_vit(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(UsageError, match=match) as refused:
        load_encoder(tmp_path)
    assert "\n" not in str(refused.value)


def test_timm_architectures_without_a_grid_in_row_order_are_refused(tmp_path: Path) -> None:
    timm_folder("swin_tiny_patch4_window7_224", tmp_path, embed_dim=24, depths=(1, 1), num_heads=(1, 1))
    values = json.loads((tmp_path / "config.json").read_text())
    del values["model_args"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UsageError, match="no grid of patches"):
        load_encoder(tmp_path)


def test_other_encoders_have_no_frame_vector_to_choose() -> None:
    with pytest.raises(UsageError, match=r"--frame-vector chooses among.*levjepa-nano is none"):
        load_encoder("levjepa-nano", random_init=0, frame_vector="pooled")
