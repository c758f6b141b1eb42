"""V-JEPA 2 against `transformers`, its two checkpoint layouts, its graphs, and what it has no [CLS] for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from coldframe.errors import BundleError, UsageError
from coldframe.export import vjepa2_graph
from coldframe.export.bundle import Bundle, export_bundle, open_bundle
from coldframe.export.checkpoint import weights_sha256
from coldframe.export.families import load_encoder
from coldframe.export.predictor import OnnxPredictor, TorchPredictor, anticipation_ids
from coldframe.export.torch_runtime import TorchRuntime, normalise
from coldframe.export.vjepa2 import VJEPA2
from coldframe.export.vjepa2_checkpoint import load_meta, random_vjepa2, to_hugging_face
from coldframe.export.vjepa2_config import VJEPA2_SIZES, VJEPA2Config
from coldframe.serve.runtime import open_runtime
from tests.export.hugging_face import small_vjepa2

GRID = (4, 3, 3)
STEP, CLIP = 9, 36


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vjepa2") / "released"


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return small_vjepa2(folder)


@pytest.fixture(scope="module")
def ours(theirs: Any, folder: Path) -> VJEPA2:
    model = load_encoder(folder)
    assert isinstance(model, VJEPA2)
    return model


@pytest.fixture(scope="module")
def bundle(ours: VJEPA2, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export_bundle(folder, tmp_path_factory.mktemp("made") / "bundle", layers=(0, 1))


def clips(count: int = 2, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 48, 48, 3), dtype=np.uint8)


# --- against transformers ----------------------------------------------------------------------


def test_encoder_and_every_layer_equal_transformers(theirs: Any, ours: VJEPA2) -> None:
    pixels = normalise(torch.from_numpy(clips()))
    outputs: list[torch.Tensor] = []
    hooks = [layer.register_forward_hook(lambda *a: outputs.append(a[2][0])) for layer in theirs.encoder.layer]
    expected = theirs(pixels.permute(0, 2, 1, 3, 4), skip_predictor=True).last_hidden_state
    for hook in hooks:
        hook.remove()
    found = ours.tokens(pixels, layers=(0, 1))
    assert found.cls is None
    torch.testing.assert_close(found.patch.flatten(1, 3), expected, atol=1e-5, rtol=0)
    for layer, values in found.layers.items():
        torch.testing.assert_close(values.flatten(1, 3), theirs.encoder.layernorm(outputs[layer]), atol=1e-5, rtol=0)
    assert found.patch.shape == (2, *GRID, 48)


@pytest.mark.parametrize("first", [0, CLIP - STEP, CLIP, CLIP + 7 * STEP])
def test_predictor_equals_transformers_inside_and_beyond_the_clip(theirs: Any, ours: VJEPA2, first: int) -> None:
    patch = torch.randn(2, *GRID, 48, generator=torch.Generator().manual_seed(1))
    targets = torch.stack((torch.arange(first, first + STEP), torch.arange(first + STEP, first + 2 * STEP)))
    context = torch.arange(CLIP).expand(2, -1)
    expected = theirs.predictor(patch.flatten(1, 3), [context], [targets]).last_hidden_state
    torch.testing.assert_close(ours.predictor(patch, targets), expected, atol=1e-5, rtol=0)
    other = ours.predictor(patch, targets, mask_index=0)
    assert (other - expected).abs().max() > 1e-2  # token 1 is what transformers uses


def test_weights_survive_the_way_there_and_back(ours: VJEPA2, folder: Path, bundle: Bundle) -> None:
    released = load_file(folder / "model.safetensors")
    renamed = to_hugging_face(ours.state_dict())
    assert renamed.keys() == released.keys()
    assert all(torch.equal(renamed[name], released[name]) for name in released)
    assert load_file(bundle.path / "model.safetensors").keys() == released.keys()
    again = load_encoder(bundle.path)
    assert weights_sha256(again) == weights_sha256(ours) == bundle.weights_sha256


# --- bundle ------------------------------------------------------------------------------------


def test_bundle_has_no_cls_and_a_measured_predictor(bundle: Bundle, ours: VJEPA2) -> None:
    assert bundle.name == "vjepa2-48x3x3p16"
    assert (bundle.geometry.has_cls, bundle.geometry.times, bundle.frames) == (False, 4, 8)
    measured = bundle.parity["onnxruntime/fp32"]
    assert measured["cls_cosine"] is None
    assert measured["prefix"]["max_abs"] > 1e-3  # attention is full: the first step reads the last frame
    assert set(measured["layers"]) == {"0", "1"}
    assert bundle.parity["onnxruntime/fp32/predictor"]["patch_cosine_worst"] >= 0.99999
    assert {"predictor.fp32.onnx", "predictor.fp32.onnx.data"} < set(bundle.files)
    assert open_bundle(bundle.path) == bundle


def test_runtimes_agree_and_have_no_cls(bundle: Bundle) -> None:
    torch_tokens, tokens = (open_runtime(bundle, backend=name)(clips(3)) for name in ("torch", "onnxruntime"))
    for a, b in [(torch_tokens.patch, tokens.patch), *((torch_tokens.layers[i], tokens.layers[i]) for i in (0, 1))]:
        np.testing.assert_allclose(a, b, atol=1e-4)
    assert not tokens.has_cls
    with pytest.raises(UsageError, match=r"has no \[CLS\] token. Use the mean of its patch tokens"):
        _ = tokens.cls


def test_batch_mates_do_not_matter(bundle: Bundle) -> None:
    runtime, batch = open_runtime(bundle), clips(5)
    whole = runtime(batch).patch
    for start, stop in ((0, 1), (1, 3), (3, 5)):
        np.testing.assert_allclose(runtime(batch[start:stop]).patch, whole[start:stop], atol=1e-5)


def test_one_lit_patch_lights_its_own_token(ours: VJEPA2, tmp_path: Path) -> None:
    """With blocks that add nothing, a token depends on its own two frames of its own patch."""
    state = dict(ours.state_dict())
    for name in state:
        if name.startswith("encoder.blocks.") and (".attn.proj." in name or ".mlp.fc2." in name):
            state[name] = torch.zeros_like(state[name])
    model = load_blank(ours.config, state)
    geometry = ours.config.geometry(frames=6, image_size=(32, 48))
    vjepa2_graph.write_encoder(model, tmp_path / "g.onnx", geometry=geometry, metadata={})
    from coldframe.export.onnx_runtime import OnnxRuntime

    runtime = OnnxRuntime(tmp_path / "g.onnx", geometry, threads=1)
    dark = np.zeros((1, 6, 32, 48, 3), np.uint8)
    for frame, y, x in ((0, 0, 0), (3, 1, 2), (5, 0, 1)):
        lit = dark.copy()
        lit[0, frame, 16 * y : 16 * y + 16, 16 * x : 16 * x + 16] = 200
        changed = np.abs(runtime(lit).patch - runtime(dark).patch).max(-1) > 1e-6
        assert np.argwhere(changed).tolist() == [[0, frame // 2, y, x]]


def load_blank(config: VJEPA2Config, state: dict[str, torch.Tensor]) -> VJEPA2:
    model = VJEPA2(config)
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)


def test_every_parameter_reaches_a_graph(ours: VJEPA2, tmp_path: Path) -> None:
    """Change a parameter in the reference: its graph must follow. Mask tokens other than 1 are never read."""
    from coldframe.export.onnx_runtime import OnnxRuntime

    geometry, batch = ours.config.geometry(), clips(1)
    ids = np.arange(CLIP, CLIP + STEP)[None]
    before = TorchRuntime(ours)(batch).patch
    # all blocks are made alike: the first of each kind stands for them
    names = [name for name in ours.state_dict() if "blocks." not in name or "blocks.0." in name]
    for name in names:
        tensor = ours.state_dict()[name]
        noise = 0.2 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
        model = load_blank(ours.config, {**ours.state_dict(), name: tensor + noise})
        if name.startswith("encoder."):
            vjepa2_graph.write_encoder(model, tmp_path / "g.onnx", geometry=geometry, metadata={})
            expected, was = TorchRuntime(model)(batch).patch, before
            found = OnnxRuntime(tmp_path / "g.onnx", geometry, threads=1)(batch).patch
        else:
            vjepa2_graph.write_predictor(model, tmp_path / "g.onnx", geometry=geometry, metadata={})
            expected, was = TorchPredictor(model)(before, ids), TorchPredictor(ours)(before, ids)
            found = OnnxPredictor(tmp_path / "g.onnx", ours.config, geometry, threads=1)(before, ids)
        # a shift of all keys shifts all scores of a query alike, so the key's bias matters only by rotation
        assert np.abs(expected - was).max() > 1e-4, name
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=name)


def test_predictor_graph_takes_other_batches_and_refuses_other_ids(bundle: Bundle, ours: VJEPA2) -> None:
    predictor = OnnxPredictor(bundle.path / "predictor.fp32.onnx", ours.config, bundle.geometry)
    patch = open_runtime(bundle)(clips(3)).patch
    ids = anticipation_ids(np.array([0.0, 0.5, 1.0]), bundle.geometry)
    np.testing.assert_allclose(predictor(patch, ids), TorchPredictor(ours)(patch, ids), atol=1e-4)
    assert predictor.positions == CLIP + 8 * STEP
    for wrong in (ids + 4 * STEP, ids - CLIP - STEP):
        with pytest.raises(UsageError, match="knows the positions 0 to 107"):
            predictor(patch, wrong)
    with pytest.raises(UsageError, match="target_ids is float64"):
        predictor(patch, ids.astype(np.float64))
    with pytest.raises(UsageError, match="patch is float32 of shape"):
        predictor(patch[:, :3], ids)


def test_predictor_over_budget_is_not_exported(
    folder: Path, ours: VJEPA2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vjepa2_graph, "MASK_INDEX", 0)
    with pytest.raises(BundleError, match="the predictor misses its parity budget"):
        export_bundle(folder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- ids ---------------------------------------------------------------------------------------


def test_ids_of_the_released_anticipation_model() -> None:
    """ViT-L, 256 px, 32 frames: 4,096 context ids; 1 s at 8 nominal fps is 4 steps of 256; all times in one batch."""
    geometry = VJEPA2_SIZES["vjepa2-large"].geometry(frames=32)
    ids = anticipation_ids(np.array([0.25, 0.49, 0.5, 1.0, 1.75]), geometry)
    assert ids.shape == (5, 256)
    assert ids[:, 0].tolist() == [4096 + 256 * step for step in (1, 1, 2, 4, 7)]
    assert ids.max() == 6143
    with pytest.raises(UsageError, match="seconds from 0"):
        anticipation_ids(np.array([-1.0]), geometry)


# --- Meta's layout -----------------------------------------------------------------------------


def meta_file(path: Path, model: VJEPA2, other: VJEPA2) -> Path:
    """As Meta saves: two encoders and a predictor below `module.backbone.`, mask tokens one by one."""
    content: dict[str, Any] = {"epoch": 3, "encoder": {}, "target_encoder": {}, "predictor": {}}
    for part, source in (("encoder", model), ("target_encoder", other)):
        for name, tensor in source.encoder.state_dict().items():
            content[part][f"module.backbone.{name}"] = tensor.clone()
    for name, tensor in model.predictor.state_dict().items():
        if name == "mask_tokens":
            content["predictor"] |= {
                f"module.backbone.mask_tokens.{i}": token.clone() for i, token in enumerate(tensor)
            }
        else:
            content["predictor"][f"module.backbone.{name}"] = tensor.clone()
    torch.save(content, path)
    return path


# published widths, two blocks each, so that heads can be told
META = VJEPA2Config(
    hidden_size=1024, num_hidden_layers=1, num_attention_heads=16, pred_hidden_size=96, pred_num_hidden_layers=1,
    pred_num_attention_heads=3,
)  # fmt: skip


def test_meta_file_needs_a_choice_and_gives_what_was_chosen(tmp_path: Path) -> None:
    one, two = random_vjepa2(META, 1), random_vjepa2(META, 2)
    path = meta_file(tmp_path / "vitl.pt", one, two)
    with pytest.raises(UsageError, match=r"holds two encoders.*--weights target_encoder"):
        load_encoder(path)
    chosen, target = load_meta(path, "encoder"), load_meta(path, "target_encoder")
    assert chosen.config == META
    assert torch.equal(chosen.encoder.norm.weight, one.encoder.norm.weight)
    for found, source in ((chosen, one), (target, two)):
        assert all(torch.equal(v, source.state_dict()[k]) for k, v in found.state_dict().items() if "encoder." in k[:8])
        assert torch.equal(found.predictor.mask_tokens, one.predictor.mask_tokens)
    assert weights_sha256(chosen) == weights_sha256(one) != weights_sha256(target)


def test_meta_file_with_code_or_without_a_part_is_refused(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (print, ("run",))

    torch.save({"encoder": Harmful()}, tmp_path / "bad.pt")
    with pytest.raises(UsageError, match="cannot be read as a checkpoint without running code"):
        load_encoder(tmp_path / "bad.pt", weights="encoder")
    torch.save({"encoder": {}}, tmp_path / "half.pt")
    with pytest.raises(UsageError, match="has no 'predictor'"):
        load_encoder(tmp_path / "half.pt", weights="encoder")
    with pytest.raises(UsageError, match=r"--weights chooses inside Meta's \.pt file"):
        load_encoder("levjepa-nano", random_init=0, weights="encoder")


# --- refusals ----------------------------------------------------------------------------------


def test_state_dict_that_does_not_fit_is_refused(theirs: Any, folder: Path, tmp_path: Path) -> None:
    state = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    name = "encoder.layer.1.attention.key.weight"
    cases = [
        ({key: value for key, value in state.items() if key != name}, f"1 missing \\({name}\\)"),
        ({f"vjepa2.{key}": value for key, value in state.items()}, "looks like VJEPA2ForVideoClassification"),
        ({key: value for key, value in state.items() if key.startswith("encoder.")}, "the encoder alone"),
        ({**state, name: state[name][:-1]}, f"{name} is \\(47, 48\\), wanted \\(48, 48\\)"),
    ]
    for wrong, match in cases:
        save_file(wrong, tmp_path / "model.safetensors")
        with pytest.raises(UsageError, match=match):
            load_encoder(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("hidden_act", "silu", "hidden_act is 'silu'; only 'gelu'"),
        ("layer_norm_eps", 1e-5, "layer_norm_eps is 1e-05"),
        ("use_SiLU", True, "use_SiLU is True"),
        ("image_size", 224, "'image_size'.*contradicts"),
        ("modality_embedding", True, "'modality_embedding'.*unknown"),
        ("num_attention_heads", 5, "5 heads in 48 dims"),
        ("hidden_size", 48.0, "hidden_size is 48.0"),
    ],
)
def test_configuration_that_changes_the_numbers_is_refused(
    theirs: Any, folder: Path, key: str, value: Any, match: str
) -> None:
    values = json.loads((folder / "config.json").read_text())
    assert VJEPA2Config.from_dict(values).crop_size == 48
    with pytest.raises(UsageError, match=match):
        VJEPA2Config.from_dict(values | {key: value})


def test_published_sizes_have_the_published_parameters() -> None:
    """ViT-L: encoder 303,885,312 and predictor 22,086,016 parameters."""
    assert VJEPA2_SIZES["vjepa2-large"].parameters == 303_885_312 + 22_086_016
    assert VJEPA2_SIZES["vjepa2-giant"].encoder.mlp_dim == 6144
    nano = random_vjepa2(VJEPA2_SIZES["vjepa2-nano"], 0)
    assert sum(p.numel() for p in nano.parameters()) == nano.config.parameters


def test_size_name_needs_random_init() -> None:
    with pytest.raises(UsageError, match=r"vjepa2-nano is a size.*--random-init SEED"):
        load_encoder("vjepa2-nano")
    with pytest.raises(UsageError, match="frames is 5; allowed is 2 to 64 in steps of 2"):
        VJEPA2_SIZES["vjepa2-nano"].geometry(frames=5)
