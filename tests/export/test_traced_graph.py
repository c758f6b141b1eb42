"""Traced graphs of image encoders compute what the library does, in one batch, and carry nothing of the exporter."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from coldframe.errors import UsageError
from coldframe.export.families import load_encoder, write_encoder_graph
from coldframe.export.image_encoder import ImageEncoder
from coldframe.export.onnx_runtime import OnnxRuntime
from coldframe.export.parity import cosine
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.image_folders import clip_pixels, hugging_face_folder, timm_folder

FRAMES = 2


def encoder_of(kind: str, folder: Path) -> ImageEncoder:
    if kind in ("test_vit", "test_resnet"):
        timm_folder(kind, folder)
        settings = json.loads((folder / "config.json").read_text())
        settings["pretrained_cfg"]["input_size"] = [3, 64, 64] if kind == "test_resnet" else [3, 160, 160]
        (folder / "config.json").write_text(json.dumps(settings))
    else:
        hugging_face_folder(kind, folder)
    vector: Any = "pooled" if kind in ("siglip", "test_resnet") else None
    encoder = load_encoder(folder, frame_vector=vector)
    assert isinstance(encoder, ImageEncoder)
    return encoder


def written(encoder: ImageEncoder, folder: Path, geometry: Any, precision: str = "fp32") -> Path:
    path = folder / f"encoder.{precision}.onnx"
    write_encoder_graph(encoder, path, geometry=geometry, metadata={"weights_sha256": "ab"}, precision=precision)
    return path


CASES = [
    ("clip", (48, 64)),
    ("siglip", None),
    ("dinov2_with_registers", (48, 64)),
    ("dinov3_vit", (48, 64)),
    ("test_vit", None),
    ("test_resnet", None),
]


@pytest.mark.parametrize(("kind", "size"), CASES, ids=[case[0] for case in CASES])
def test_graph_is_the_library(kind: str, size: tuple[int, int] | None, tmp_path: Path) -> None:
    encoder = encoder_of(kind, tmp_path / "source")
    geometry = encoder.config.geometry(frames=FRAMES, image_size=size)
    graph = written(encoder, tmp_path, geometry)
    runtime = OnnxRuntime(graph, geometry, threads=1)
    clips = clip_pixels(3, FRAMES, geometry.height, geometry.width)
    found, wanted = runtime(clips), TorchRuntime(encoder, geometry=geometry, threads=1)(clips)
    np.testing.assert_allclose(found.patch, wanted.patch, atol=5e-5)
    np.testing.assert_allclose(found.frame_cls, wanted.frame_cls, atol=5e-5)
    onnx.checker.check_model(str(graph))
    text = graph.read_bytes()
    assert not any(part in text for part in (b"site-packages", b".py", b"pkg.torch"))
    assert {prop.key: prop.value for prop in onnx.load(str(graph)).metadata_props} == {"weights_sha256": "ab"}


@pytest.mark.parametrize(
    ("precision", "kind"), [("fp16", onnx.TensorProto.FLOAT16), ("bf16", onnx.TensorProto.BFLOAT16)]
)
def test_narrow_graph_has_narrow_products_and_wide_sums(precision: str, kind: int, tmp_path: Path) -> None:
    encoder = encoder_of("dinov2", tmp_path / "source")
    geometry = encoder.config.geometry(frames=FRAMES)
    path = written(encoder, tmp_path, geometry, precision)
    model = onnx.shape_inference.infer_shapes(onnx.load(str(path)), strict_mode=True)
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.output)}
    types |= {weight.name: weight.data_type for weight in model.graph.initializer}
    for node in model.graph.node:
        wanted = kind if node.op_type in ("MatMul", "Gemm", "Conv") else onnx.TensorProto.FLOAT
        if node.op_type in ("MatMul", "Gemm", "Conv", "LayerNormalization", "Softmax", "Gelu"):
            assert {types[name] for name in node.input if name} == {wanted}, node.name
    large = [weight for weight in model.graph.initializer if int(np.prod(weight.dims)) >= 48 * 48]
    assert {weight.data_type for weight in large} == {kind}
    if precision == "fp16":  # the other has no product on a CPU
        clips = clip_pixels(2, FRAMES)
        found = OnnxRuntime(path, geometry, precision=precision, threads=1)(clips)
        truth = TorchRuntime(encoder, geometry=geometry, threads=1)(clips)
        assert 0.999 < cosine(found.patch, truth.patch).min() < 1 - 1e-10


def test_weights_past_float16_are_refused(tmp_path: Path) -> None:
    encoder = encoder_of("dinov2", tmp_path / "source")
    with torch.no_grad():
        encoder.module.encoder.layer[0].mlp.fc1.weight[0, 0] = 1e6  # type: ignore[union-attr,index]
    with pytest.raises(
        UsageError, match=r"reaches 1e\+06, past the largest number of float16.*Export the encoder in bf16"
    ):
        written(encoder, tmp_path, encoder.config.geometry(frames=FRAMES), "fp16")
