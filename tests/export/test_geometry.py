"""Other sizes, frame counts and layers of LeVJEPA, and that positions come from the actual grid."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from coldframe.errors import UsageError
from coldframe.export.bundle import Bundle, export_bundle
from coldframe.export.checkpoint import save_reference
from coldframe.export.geometry import Geometry, export_name, parse_image_size, parse_layers
from coldframe.export.graph import write_graph
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.onnx_runtime import OnnxRuntime
from coldframe.export.tokens import Tokens
from coldframe.export.torch_runtime import TorchRuntime, normalise
from coldframe.serve.runtime import BACKENDS, open_runtime
from tests.export.conftest import TINY

Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
SIZES = [(1, (32, 32)), (2, (48, 48)), (3, (32, 64)), (8, (80, 16)), (64, (16, 16))]


def clips_of(geometry: Geometry, count: int = 2) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    shape = (count, geometry.frames, geometry.height, geometry.width, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def furthest(a: Tokens, b: Tokens) -> float:
    pairs = [(a.cls, b.cls), (a.patch, b.patch), *((a.layers[i], b.layers[i]) for i in a.layers)]
    assert a.layers.keys() == b.layers.keys()
    return float(max(np.abs(x - y).max() for x, y in pairs))


@pytest.mark.parametrize(("frames", "size"), SIZES)
def test_graph_equals_the_reference_at_other_sizes(
    tiny_model: LeVJEPA, tmp_path: Path, frames: int, size: tuple[int, int]
) -> None:
    geometry = TINY.geometry(frames=frames, image_size=size, layers=(0,))
    write_graph(tiny_model, tmp_path / "g.onnx", geometry=geometry, metadata={})
    tokens = OnnxRuntime(tmp_path / "g.onnx", geometry, threads=1)(clips_of(geometry))
    assert tokens.patch.shape == (2, frames, size[0] // 16, size[1] // 16, 48)
    assert furthest(TorchRuntime(tiny_model, geometry=geometry)(clips_of(geometry)), tokens) <= 1e-4


def attention_by_hand(model: LeVJEPA, hidden: Doubles, grid: tuple[int, int, int]) -> Doubles:
    """Block 0's attention for every token, one query at a time, from the published formulas in plain loops."""
    weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    times, rows, cols = grid
    where = [None] + [(t, y, x) for t in range(times) for y in range(rows) for x in range(cols)]
    dim, heads = 48, 3
    qkv = hidden @ weights["encoder.blocks.0.attn.qkv.weight"].T + weights["encoder.blocks.0.attn.qkv.bias"]
    q, k, v = (qkv[:, i * dim : (i + 1) * dim].reshape(-1, heads, 16) for i in range(3))

    def turned(vector: list[float], position: tuple[int, int, int] | None) -> list[float]:
        out = list(vector)
        for axis in range(3):
            if position is None:
                break
            for i in range(2):  # groups of 4 dims: 2 * floor(floor(16 / 3) / 2)
                even, odd = 4 * axis + 2 * i, 4 * axis + 2 * i + 1
                angles = [position[axis] * 10000 ** (-((m % 2) / 2)) for m in (2 * i, 2 * i + 1)]
                out[even] = vector[even] * math.cos(angles[0]) - vector[odd] * math.sin(angles[0])
                out[odd] = vector[odd] * math.cos(angles[1]) + vector[even] * math.sin(angles[1])
        return out

    def frame(index: int) -> int:
        place = where[index]
        return times if place is None else place[0]

    read = np.zeros((len(where), heads, 16))
    for head in range(heads):
        turned_q = np.array([turned(list(q[n, head]), where[n]) for n in range(len(where))])
        turned_k = np.array([turned(list(k[n, head]), where[n]) for n in range(len(where))])
        for n in range(len(where)):
            seen = [m for m in range(len(where)) if frame(m) <= frame(n)]
            scores = turned_k[seen] @ turned_q[n] / 4
            shares = np.exp(scores - scores.max())
            read[n, head] = shares / shares.sum() @ v[seen, head]
    proj = weights["encoder.blocks.0.attn.proj.weight"], weights["encoder.blocks.0.attn.proj.bias"]
    mixed: Doubles = read.reshape(len(where), dim) @ proj[0].T + proj[1]
    return mixed


def test_positions_come_from_the_actual_grid(tiny_model: LeVJEPA) -> None:
    """A grid of 3 x 2 x 5 in a model of 4 x 2 x 2, against loops that know no grid but the one given."""
    grid, seen = (3, 2, 5), []
    (attention,) = (module for name, module in tiny_model.named_modules() if name == "encoder.blocks.0.attn")
    hook = attention.register_forward_hook(lambda _, given, out: seen.append((given[0][0], out[0])))
    tiny_model.tokens(normalise(torch.from_numpy(clips_of(TINY.geometry(frames=3, image_size=(32, 80)), 1))))
    hook.remove()
    hidden, found = (values.double().numpy() for values in seen[0])
    np.testing.assert_allclose(found, attention_by_hand(tiny_model, hidden, grid), atol=1e-4)
    assert np.abs(found - attention_by_hand(tiny_model, hidden, (3, 5, 2))).max() > 0.05


def test_layers_are_the_blocks_outputs_through_the_final_norm(tiny_model: LeVJEPA) -> None:
    """Block outputs are tapped by a hook and normed by hand; the last one must be `patch`."""
    geometry = TINY.geometry(layers=(0,))
    tapped: list[torch.Tensor] = []
    hooks = [block.register_forward_hook(lambda *a: tapped.append(a[2])) for block in tiny_model.encoder.blocks]
    tokens = TorchRuntime(tiny_model, geometry=geometry)(clips_of(geometry))
    for hook in hooks:
        hook.remove()
    norm = tiny_model.encoder.norm
    for given, found in ((tapped[0], tokens.layers[0]), (tapped[1], tokens.patch)):
        values = given[:, 1:].double()
        values = (values - values.mean(-1, keepdim=True)) / (values.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        expected = values * norm.weight + norm.bias
        np.testing.assert_allclose(found, expected.reshape(found.shape).numpy(), atol=1e-4)
    assert np.abs(tokens.layers[0] - tokens.patch).max() > 0.1


@pytest.fixture(scope="module")
def wide(tiny_model: LeVJEPA, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("wide")
    save_reference(tiny_model, folder / "source")
    return export_bundle(folder / "source", folder / "bundle", frames=3, image_size=(32, 64), layers=(0,))


def test_bundle_of_another_size_says_so(wide: Bundle) -> None:
    assert wide.name == "levjepa-48x2x3p16-t3-32x64"
    assert (wide.frames, wide.rows, wide.cols, wide.image_size) == (3, 2, 4, (32, 64))
    assert wide.config == TINY  # the released shape stays what it is
    measured = wide.parity["onnxruntime/fp32"]
    assert measured["layers"]["0"]["patch_cosine_worst"] >= 0.99999
    for backend in BACKENDS:
        tokens = open_runtime(wide, backend=backend)(clips_of(wide.geometry))
        assert repr(tokens) == "Tokens(cls=(2, 48), patch=(2, 3, 2, 4, 48), layers=[0], float32)"


def test_picture_mode_has_one_frame(tiny_model: LeVJEPA, tmp_path: Path) -> None:
    save_reference(tiny_model, tmp_path / "source")
    bundle = export_bundle(tmp_path / "source", tmp_path / "bundle", frames=1)
    assert (bundle.name, bundle.frames) == ("levjepa-48x2x3p16-t1", 1)
    assert open_runtime(bundle)(clips_of(bundle.geometry)).patch.shape == (2, 1, 2, 2, 48)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"frames": 0}, "frames is 0; allowed is 1 to 64"),
        ({"frames": 65}, "frames is 65; allowed is 1 to 64"),
        ({"image_size": (32, 40)}, "image width is 40 pixels; allowed is a multiple of the patch size 16"),
        ({"image_size": (0, 32)}, "image height is 0"),
        ({"layers": (2,)}, "layer 2 does not exist: blocks are counted from 0 to 1"),
        ({"layers": (1,)}, "layer 1 is the last block, whose output is `patch` already"),
    ],
)
def test_sizes_that_cannot_be_are_refused(arguments: dict[str, tuple[int, int]], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        TINY.geometry(**arguments)  # type: ignore[arg-type]


def test_sizes_and_layers_are_read_from_text() -> None:
    assert parse_image_size("224") == (224, 224)
    assert parse_image_size("256x192") == (256, 192)
    assert parse_layers("22,20, 21,20") == (20, 21, 22)
    for text in ("", "a", "1x2x3", "-5", "2.5"):
        with pytest.raises(UsageError, match="image size is"):
            parse_image_size(text)
    for text in ("", "last", "-1", "1,,2"):
        with pytest.raises(UsageError, match="layers is"):
            parse_layers(text)


def test_released_sizes_add_nothing_to_the_name() -> None:
    assert export_name("e", TINY.geometry(), TINY.geometry()) == "e"
    assert export_name("e", TINY.geometry(frames=8), TINY.geometry()) == "e-t8"
    assert export_name("e", TINY.geometry(image_size=(64, 64)), TINY.geometry()) == "e-64x64"
