"""Parity measures on hand-made tokens, and that a graph which computes something else is over budget."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.export import graph, parity
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.onnx_runtime import OnnxRuntime
from coldframe.export.parity import (
    compare,
    compare_prefix,
    cosine,
    measure_parity,
    over_budget,
    parity_clips,
    shared_steps,
)
from coldframe.export.rope import rope_angles
from coldframe.export.tokens import Tokens
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY

Floats = NDArray[np.float32]


def tokens(seed: int = 0) -> Tokens:
    stream = np.random.default_rng(seed)
    return Tokens(
        cls=stream.standard_normal((1, 8), dtype=np.float32),
        patch=stream.standard_normal((1, 3, 2, 2, 8), dtype=np.float32),
    )


def with_patch(base: Tokens, patch: Floats) -> Tokens:
    return Tokens(cls=base.cls, patch=patch)


def good_record() -> dict[str, Any]:
    return {
        "cls_cosine": 1.0,
        "patch_cosine_mean": 1.0,
        "patch_cosine_worst": 1.0,
        "relative_max_abs": 0.0,
        "attention": "block_causal",
        "prefix": {"earlier_frames": 2, "max_abs": 0.0, "last_frame": 1.0, "cls": 1.0},
        "layers": {},
    }


def test_cosine_of_hand_worked_vectors() -> None:
    a = np.array([[3, 4], [1, 0], [1, 0], [0, 0]], np.float32)
    b = np.array([[4, 3], [0, 2], [-5, 0], [1, 0]], np.float32)
    np.testing.assert_allclose(cosine(a, b), [24 / 25, 0, -1, np.nan])


def test_one_wrong_token_shows_in_the_worst_but_not_in_cls() -> None:
    base = tokens()
    patch = base.patch.copy()
    patch[0, 1, 0, 1] *= -1
    measured = compare(base, with_patch(base, patch))
    assert measured["patch_cosine_worst"] == pytest.approx(-1)
    assert measured["patch_cosine_mean"] == pytest.approx(10 / 12)
    assert measured["cls_cosine"] == pytest.approx(1)
    assert measured["max_abs"] == pytest.approx(2 * np.abs(base.patch[0, 1, 0, 1]).max())


def test_wrong_scale_has_a_perfect_cosine_and_misses_the_budget() -> None:
    base = tokens()
    measured = compare(base, Tokens(cls=base.cls * 2, patch=base.patch * 2))
    assert measured["patch_cosine_worst"] == pytest.approx(1)
    assert over_budget(good_record() | measured, "fp32") == ["relative_max_abs is 1, allowed is at most 0.0001"]


def test_prefix_measures_see_their_own_frames() -> None:
    base = tokens()
    patch = base.patch.copy()
    patch[0, 2] += 0.5
    assert compare_prefix(base, with_patch(base, patch), 2) == {
        "earlier_frames": 2,
        "max_abs": 0.0,
        "last_frame": pytest.approx(0.5),
        "cls": 0.0,
    }
    patch[0, 0, 1, 1, 3] += 0.25
    assert compare_prefix(base, with_patch(base, patch), 2)["max_abs"] == pytest.approx(0.25)
    assert compare_prefix(base, with_patch(base, patch), 0)["max_abs"] == 0.0


def test_budget_of_a_perfect_record_is_kept() -> None:
    assert over_budget(good_record(), "fp32") == []


@pytest.mark.parametrize("value", [float("nan"), 0.99998])
@pytest.mark.parametrize("name", ["cls_cosine", "patch_cosine_mean", "patch_cosine_worst"])
def test_low_or_unknown_cosine_misses_the_budget(name: str, value: float) -> None:
    assert len(over_budget(good_record() | {name: value}, "fp32")) == 1


@pytest.mark.parametrize(
    ("prefix", "match"),
    [
        ({"max_abs": 2e-5}, "change of earlier frames"),
        ({"max_abs": float("nan")}, "change of earlier frames"),
        ({"last_frame": 0.0}, "change of the last frame"),
        ({"cls": 0.0}, "change of cls"),
    ],
)
def test_lost_or_dead_attention_misses_the_budget(prefix: dict[str, float], match: str) -> None:
    record = good_record()
    record["prefix"] |= prefix
    (miss,) = over_budget(record, "fp32")
    assert miss.startswith(match)


def test_full_attention_must_show_in_earlier_frames() -> None:
    record = good_record() | {"attention": "full"}
    assert over_budget(record, "fp32") == ["change of earlier frames is 0, allowed is at least 0.0001"]
    record["prefix"]["max_abs"] = 0.3
    assert over_budget(record, "fp32") == []
    assert len(over_budget(record | {"attention": "block_causal"}, "fp32")) == 1
    record["prefix"] |= {"earlier_frames": 0, "max_abs": 0.0}  # a clip of one step has no earlier ones
    assert over_budget(record, "fp32") == []


def test_every_layer_has_the_budget_of_the_output() -> None:
    good = {"patch_cosine_mean": 1.0, "patch_cosine_worst": 1.0, "relative_max_abs": 0.0}
    assert over_budget(good_record() | {"layers": {"3": good}}, "fp32") == []
    for name, value in (("patch_cosine_worst", 0.9), ("patch_cosine_mean", float("nan")), ("relative_max_abs", 1.0)):
        (miss,) = over_budget(good_record() | {"layers": {"3": good, "4": good | {name: value}}}, "fp32")
        assert miss.startswith(f"layer 4 {name} is")


def test_encoder_without_cls_has_no_cls_measures() -> None:
    base = tokens()
    bare = Tokens(patch=base.patch)
    measured = compare(bare, bare)
    assert measured["cls_cosine"] is None
    prefix = good_record()["prefix"] | {"cls": None}
    assert over_budget(good_record() | measured | {"prefix": prefix}, "fp32") == []


def test_clips_are_fixed_and_differ_where_they_should() -> None:
    first, again = parity_clips(TINY), parity_clips(TINY)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    half = shared_steps(TINY)
    assert half == TINY.num_frames // 2
    assert np.array_equal(first["moving"][:, :half], first["noise"][:, :half])
    for frame in range(half, TINY.num_frames):
        assert (first["moving"][:, frame] != first["noise"][:, frame]).mean() > 0.9
    assert len({frame.tobytes() for frame in first["moving"][0]}) == TINY.num_frames


def test_steps_of_two_frames_are_shared_whole() -> None:
    """V-JEPA 2 reads frames in pairs: a pair of which one frame is shared would be no shared step."""
    tubes = replace(TINY.geometry(), frames=6, times=3)
    clips = parity_clips(tubes)
    assert shared_steps(tubes) == 1
    same = [bool((clips["moving"][:, frame] == clips["noise"][:, frame]).all()) for frame in range(6)]
    assert same == [True, True, False, False, False, False]


def test_tiny_graph_is_within_budget(tiny_model: LeVJEPA, tiny_onnx: OnnxRuntime) -> None:
    record = measure_parity(TorchRuntime(tiny_model), tiny_onnx, TINY)
    assert over_budget(record, "fp32") == []
    assert record["prefix"]["last_frame"] > 0.01


def test_worst_clip_makes_the_record(tiny_onnx: OnnxRuntime) -> None:
    noise = parity_clips(TINY)["noise"]

    def off_on_noise(clips: Any) -> Tokens:
        given = tiny_onnx(clips)
        return Tokens(cls=-given.cls, patch=given.patch) if np.array_equal(clips, noise) else given

    record = measure_parity(tiny_onnx, off_on_noise, TINY)
    assert record["cls_cosine"] == pytest.approx(-1)
    assert record["clips"]["moving"]["cls_cosine"] == pytest.approx(1)

    def nan_on_noise(clips: Any) -> Tokens:
        given = tiny_onnx(clips)
        return Tokens(cls=given.cls * np.float32(np.nan), patch=given.patch) if np.array_equal(clips, noise) else given

    assert any(
        "cls_cosine is nan" in miss for miss in over_budget(measure_parity(tiny_onnx, nan_on_noise, TINY), "fp32")
    )


def interleaved(head_dim: int, *, frames: int, rows: int, cols: int) -> NDArray[np.float64]:
    """The usual rotary layout, each frequency twice in a row: what a reader of papers would write."""
    angles = rope_angles(head_dim, frames=frames, rows=rows, cols=cols)
    width = 2 * (head_dim // 3 // 2)
    for axis in range(3):
        group = angles[:, axis * width : axis * width + width // 2].copy()
        angles[:, axis * width : (axis + 1) * width] = np.repeat(group, 2, axis=1)
    return angles


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("rope_angles", interleaved, "cosine"),
        ("IMAGENET_MEAN", (0.5, 0.5, 0.5), "cosine"),
        ("LAYER_NORM_EPS", 1e-2, "cosine|max_abs"),
    ],
)
def test_graph_that_computes_something_else_is_over_budget(
    tiny_model: LeVJEPA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, match: str
) -> None:
    monkeypatch.setattr(graph, name, value)
    graph.write_graph(tiny_model, tmp_path / "g.onnx", metadata={})
    record = measure_parity(TorchRuntime(tiny_model), OnnxRuntime(tmp_path / "g.onnx", TINY, threads=1), TINY)
    misses = over_budget(record, "fp32")
    assert misses
    assert any(word in misses[0] for word in match.split("|"))


def test_variant_names_runtime_and_precision() -> None:
    assert parity.variant("onnxruntime", "fp32") == "onnxruntime/fp32"
