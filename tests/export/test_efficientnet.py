"""EfficientNet-Lite0 with its real ImageNet weights: what it sees, its graph, and frames that are encoded once."""

from pathlib import Path

import av
import numpy as np
import pytest
import torch

from coldframe.errors import UsageError
from coldframe.export import efficientnet_graph
from coldframe.export.bundle import Bundle, export_bundle
from coldframe.export.checkpoint import weights_sha256
from coldframe.export.efficientnet import EfficientNetLite0, packaged_weights, same_padding
from coldframe.export.efficientnet_config import EfficientNetConfig
from coldframe.export.families import load_encoder
from coldframe.serve.frame_cache import FrameCache
from coldframe.serve.preprocess import resize_crop
from coldframe.serve.runtime import open_runtime

PENS = Path(__file__).parents[1] / "data" / "pens.mp4"
BALLPOINT = 418
Clips = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def model() -> EfficientNetLite0:
    loaded = load_encoder("efficientnet-lite0")
    assert isinstance(loaded, EfficientNetLite0)
    return loaded


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export_bundle(
        "efficientnet-lite0", tmp_path_factory.mktemp("made") / "bundle", frames=2, image_size=(96, 64)
    )


def noise(count: int, seed: int = 0) -> Clips:
    return np.random.default_rng(seed).integers(0, 256, (count, 2, 96, 64, 3), dtype=np.uint8)


def test_real_pens_are_pens(model: EfficientNetLite0, tmp_path: Path) -> None:
    """A phone's video of coloured pens, upright, must come out as ImageNet's ballpoint."""
    with av.open(str(PENS)) as container:
        frame = next(container.decode(video=0)).to_ndarray(format="rgb24")
    picture = resize_crop(np.ascontiguousarray(np.rot90(frame, -1)), 224)
    released = export_bundle("efficientnet-lite0", tmp_path / "bundle", frames=1)
    patch = open_runtime(released)(picture[None, None]).patch
    chances = model.classify(torch.from_numpy(patch))[0, 0].softmax(0)
    assert int(chances.argmax()) == BALLPOINT
    assert float(chances[BALLPOINT]) > 0.2


def test_architecture_has_the_published_parameters(model: EfficientNetLite0) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == EfficientNetConfig().parameters == 4_652_008


def test_padding_is_tensorflows() -> None:
    assert same_padding(224, 3, 2) == (0, 1)
    assert same_padding(112, 5, 2) == (1, 2)
    assert same_padding(7, 5, 1) == (2, 2)
    assert same_padding(15, 3, 2) == (1, 1)


def test_bundle_is_per_frame_without_cls_and_carries_the_licence(bundle: Bundle, model: EfficientNetLite0) -> None:
    assert (bundle.name, bundle.attention) == ("efficientnet-lite0-t2-96x64", "per_frame")
    assert (bundle.geometry.has_cls, bundle.rows, bundle.cols, bundle.dim) == (False, 3, 2, 1280)
    assert (bundle.licence, bundle.non_commercial) == ("Apache Software License 2.0", False)
    assert bundle.licence_text == packaged_weights()[1].text
    assert bundle.parity["onnxruntime/fp32"]["prefix"]["max_abs"] == 0
    assert weights_sha256(load_encoder(bundle.path)) == weights_sha256(model) == bundle.weights_sha256
    runtimes = [open_runtime(bundle, backend=name)(noise(3)).patch for name in ("torch", "onnxruntime")]
    np.testing.assert_allclose(runtimes[0], runtimes[1], atol=1e-4)


def test_graph_with_another_padding_is_over_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        efficientnet_graph, "same_padding", lambda size, kernel, stride: same_padding(size, kernel, stride)[::-1]
    )
    with pytest.raises(Exception, match="misses its parity budget"):
        export_bundle("efficientnet-lite0", tmp_path / "out", frames=1, image_size=(64, 64))


def test_frames_that_clips_share_are_encoded_once(bundle: Bundle) -> None:
    runtime = open_runtime(bundle)
    frames = noise(4).reshape(8, 96, 64, 3)
    overlapping = np.stack([frames[i : i + 2] for i in range(7)])
    cache = FrameCache(runtime)
    first, second = cache(overlapping[:3]), cache(overlapping[3:])
    np.testing.assert_allclose(np.concatenate((first.patch, second.patch)), runtime(overlapping).patch, atol=1e-5)
    assert cache.encoded == 8  # of 14 in the clips
    small = FrameCache(runtime, kept_frames=2)
    np.testing.assert_allclose(small(overlapping).patch, runtime(overlapping).patch, atol=1e-5)
    again = small(overlapping[:1])  # forgotten, and right all the same
    np.testing.assert_allclose(again.patch, first.patch[:1], atol=1e-5)
    assert small.encoded == 8 + 2


def test_layers_and_other_sizes_are_refused(model: EfficientNetLite0) -> None:
    with pytest.raises(UsageError, match="layers is \\(3,\\); blocks of efficientnet-lite0 have other widths"):
        model.config.geometry(layers=(3,))
    with pytest.raises(UsageError, match="multiple of the patch size 32"):
        model.config.geometry(image_size=(224, 100))
