"""The ONNX graph against the reference, and the properties that it must have on its own.

Compared: [CLS] and all patch tokens, fp32, atol 1e-4 (the same sums in another order). Not compared: other
providers, which have their own arithmetic.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from coldframe.errors import BundleError
from coldframe.export.checkpoint import load_reference, load_state
from coldframe.export.config import SIZES, LeVJEPAConfig
from coldframe.export.graph import write_graph
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.onnx_runtime import OnnxRuntime
from coldframe.export.tokens import Tokens
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, lively_model, random_clips


def largest_difference(a: Tokens, b: Tokens) -> float:
    return float(max(np.abs(a.cls - b.cls).max(), np.abs(a.patch - b.patch).max()))


def test_graph_equals_the_reference(tiny_model: LeVJEPA, tiny_onnx: OnnxRuntime) -> None:
    clips = random_clips(TINY, 3)
    assert largest_difference(TorchRuntime(tiny_model)(clips), tiny_onnx(clips)) <= 1e-4


@pytest.mark.parametrize(
    "config",
    [
        LeVJEPAConfig(img_size=24, patch_size=8, num_frames=3, embed_dim=64, depth=1, num_heads=1),
        LeVJEPAConfig(img_size=16, num_frames=1, embed_dim=40, depth=3, num_heads=4, mlp_ratio=1.5),
        LeVJEPAConfig(img_size=32, num_frames=2, embed_dim=52, depth=1, num_heads=2),
    ],
    ids=lambda config: config.name,
)
def test_graph_equals_the_reference_in_other_shapes(config: LeVJEPAConfig, tmp_path: Path) -> None:
    model = lively_model(config, seed=3)
    write_graph(model, tmp_path / "g.onnx", metadata={})
    clips = random_clips(config, 2)
    assert largest_difference(TorchRuntime(model)(clips), OnnxRuntime(tmp_path / "g.onnx", config)(clips)) <= 1e-4


def test_nano_equals_the_reference(tmp_path: Path) -> None:
    model = load_reference("levjepa-nano", random_init=1)
    write_graph(model, tmp_path / "g.onnx", metadata={})
    clips = random_clips(model.config, 1)
    tokens = OnnxRuntime(tmp_path / "g.onnx", model.config)(clips)
    assert tokens.patch.shape == (1, 16, 14, 14, 192)
    assert largest_difference(TorchRuntime(model)(clips), tokens) <= 1e-4


def test_every_parameter_reaches_the_graph(tiny_model: LeVJEPA, tmp_path: Path) -> None:
    """Change one parameter at a time in the reference: the graph must follow each."""
    clips = random_clips(TINY, 1)
    before = TorchRuntime(tiny_model)(clips)
    for name, tensor in tiny_model.state_dict().items():
        changed = tensor + 0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
        model = load_state(TINY, dict(tiny_model.state_dict()) | {name: changed})
        write_graph(model, tmp_path / "g.onnx", metadata={})
        reference, tokens = (
            TorchRuntime(model)(clips),
            OnnxRuntime(tmp_path / "g.onnx", TINY, threads=1)(clips),
        )
        assert largest_difference(reference, before) > 1e-3, name
        assert largest_difference(reference, tokens) <= 1e-4, name


# --- attention rule ----------------------------------------------------------------------------


def test_last_frame_changes_itself_and_cls_alone(tiny_onnx: OnnxRuntime) -> None:
    clips = random_clips(TINY, 1)
    other = clips.copy()
    other[:, -1] = random_clips(TINY, 1, seed=9)[:, -1]
    a, b = tiny_onnx(clips), tiny_onnx(other)
    change = np.abs(a.patch - b.patch)
    assert change[:, :-1].max() <= 1e-5
    assert change[:, -1].max(-1).min() > 0.01
    assert np.abs(a.cls - b.cls).max() > 0.01


def test_first_frame_changes_every_token(tiny_onnx: OnnxRuntime) -> None:
    clips = random_clips(TINY, 1)
    other = clips.copy()
    other[:, 0] = random_clips(TINY, 1, seed=9)[:, 0]
    a, b = tiny_onnx(clips), tiny_onnx(other)
    assert np.abs(a.patch - b.patch).max(-1).min() > 1e-3
    assert np.abs(a.cls - b.cls).max() > 1e-3


def test_cls_embedding_reaches_no_patch(tiny_model: LeVJEPA, tiny_onnx: OnnxRuntime, tmp_path: Path) -> None:
    state = dict(tiny_model.state_dict())
    model = load_state(TINY, state | {"encoder.cls_token": -state["encoder.cls_token"]})
    write_graph(model, tmp_path / "g.onnx", metadata={})
    clips = random_clips(TINY, 1)
    a, b = tiny_onnx(clips), OnnxRuntime(tmp_path / "g.onnx", TINY, threads=1)(clips)
    assert np.abs(a.cls - b.cls).max() > 0.1
    assert np.array_equal(a.patch, b.patch)


# --- batch -------------------------------------------------------------------------------------


def in_batches(runtime: OnnxRuntime, clips: NDArray[np.uint8], count: int) -> Tokens:
    parts = [runtime(clips[start : start + count]) for start in range(0, len(clips), count)]
    return Tokens(
        cls=np.concatenate([part.cls for part in parts]), patch=np.concatenate([part.patch for part in parts])
    )


@pytest.mark.parametrize("count", [4, 7])
def test_batch_mates_do_not_matter(tiny_onnx: OnnxRuntime, count: int) -> None:
    clips = random_clips(TINY, 7)
    alone = in_batches(tiny_onnx, clips, 1)
    assert largest_difference(in_batches(tiny_onnx, clips, count), alone) <= 1e-5
    turned = in_batches(tiny_onnx, clips[::-1], count)
    assert largest_difference(Tokens(cls=turned.cls[::-1], patch=turned.patch[::-1]), alone) <= 1e-5
    assert np.abs(alone.cls[0] - alone.cls[1]).max() > 0.01  # the clips do differ


# --- pixels ------------------------------------------------------------------------------------


def test_solid_colour_is_normalised_once_and_in_rgb_order(tiny_model: LeVJEPA, tiny_onnx: OnnxRuntime) -> None:
    """(200, 40, 60) is (1.307, -1.335, -0.759) after ImageNet normalisation; no other pixels will do."""
    clips = np.empty((1, TINY.num_frames, 32, 32, 3), np.uint8)
    clips[...] = (200, 40, 60)

    def encode(red: float, green: float, blue: float) -> NDArray[np.float32]:
        values = torch.tensor([red, green, blue]).view(1, 3, 1, 1, 1).expand(1, 3, TINY.num_frames, 32, 32)
        cls: NDArray[np.float32] = tiny_model(pixel_values=values).pooler_output.numpy()
        return cls

    for runtime in (tiny_onnx, TorchRuntime(tiny_model)):
        cls = runtime(clips).cls
        np.testing.assert_allclose(cls, encode(1.307, -1.335, -0.759), atol=5e-3)
        assert np.abs(cls - encode(-2.104, -2.033, -1.800)).max() > 0.05  # rescaled twice
        assert np.abs(cls - encode(-1.090, -1.335, 1.681)).max() > 0.05  # read as BGR
        assert np.abs(runtime(clips[..., ::-1]).cls - cls).max() > 0.05


def test_one_lit_patch_lights_its_token(tmp_path: Path) -> None:
    """With blocks that add nothing, a token depends on its own patch alone, so its place shows."""
    config = LeVJEPAConfig(img_size=48, num_frames=4, embed_dim=48, depth=1, num_heads=3)
    state = dict(lively_model(config).state_dict())
    for name in ("attn.proj", "mlp.fc2"):
        for kind in ("weight", "bias"):
            key = f"encoder.blocks.0.{name}.{kind}"
            state[key] = torch.zeros_like(state[key])
    write_graph(load_state(config, state), tmp_path / "g.onnx", metadata={})
    runtime = OnnxRuntime(tmp_path / "g.onnx", config)
    dark = np.zeros((2, 4, 48, 48, 3), np.uint8)
    for t, y, x in ((0, 0, 0), (2, 1, 0), (3, 0, 2)):
        lit = dark.copy()
        lit[1, t, y * 16 : (y + 1) * 16, x * 16 : (x + 1) * 16] = 200
        changed = np.abs(runtime(lit).patch - runtime(dark).patch).max(-1) > 1e-6
        assert np.argwhere(changed).tolist() == [[1, t, y, x]]


# --- form --------------------------------------------------------------------------------------


def test_graph_has_the_promised_form(tiny_graph: Path) -> None:
    model = onnx.load(str(tiny_graph), load_external_data=False)
    onnx.shape_inference.infer_shapes_path(str(tiny_graph), str(tiny_graph) + ".inferred", strict_mode=True)
    assert model.opset_import[0].version >= 20
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("LayerNormalization") == 2 * TINY.depth + 1
    assert all(
        attribute.f == pytest.approx(1e-6)
        for node in model.graph.node
        if node.op_type == "LayerNormalization"
        for attribute in node.attribute
        if attribute.name == "epsilon"
    )
    assert ops.count("Softmax") == TINY.depth * (TINY.num_frames + 1)
    assert {node.domain for node in model.graph.node} == {""}
    clips = model.graph.input[0].type.tensor_type
    assert clips.elem_type == onnx.TensorProto.UINT8
    assert clips.shape.dim[0].dim_param == "batch"
    assert {entry.key: entry.value for entry in model.metadata_props} == {"weights_sha256": "0" * 64}


def test_every_weight_lies_in_the_data_file_once(tiny_graph: Path) -> None:
    model = onnx.load(str(tiny_graph), load_external_data=False)
    floats = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    assert all(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in floats)
    used = sum(4 * int(np.prod(tensor.dims)) for tensor in floats)
    tables = 4 * (2 * (TINY.num_frames * TINY.grid**2 + 1) * TINY.head_dim + 2 * 3 * TINY.patch_size**2)
    assert used == 4 * TINY.parameters + tables
    assert Path(f"{tiny_graph}.data").stat().st_size < used + 4096 * len(floats)


def test_two_models_give_two_graphs(tiny_model: LeVJEPA, tmp_path: Path) -> None:
    for digest in ("a", "b"):
        write_graph(tiny_model, tmp_path / f"{digest}.onnx", metadata={"weights_sha256": digest})
    assert (tmp_path / "a.onnx").read_bytes() != (tmp_path / "b.onnx").read_bytes()


def test_graph_of_another_shape_is_refused(tiny_graph: Path) -> None:
    with pytest.raises(BundleError, match="the configuration says"):
        OnnxRuntime(tiny_graph, SIZES["levjepa-nano"])


def test_graph_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match="cannot be loaded by ONNX Runtime"):
        OnnxRuntime(tmp_path / "g.onnx", TINY)
