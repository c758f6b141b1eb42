"""Frames pushed one by one give the tokens of the clip, exactly."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldframe.errors import UsageError
from coldframe.export import StreamEncoder
from coldframe.export.config import SIZES, LeVJEPAConfig
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, lively_model, random_clips

WIDE = LeVJEPAConfig(img_size=96, num_frames=16, embed_dim=96, depth=3, num_heads=4)


DOCUMENT = Path(__file__).parents[2] / "docs" / "streaming.md"


def prefix_model(model: LeVJEPA, frames: int) -> LeVJEPA:
    """The same weights for clips of `frames` frames."""
    shorter = LeVJEPA(replace(model.config, num_frames=frames))
    shorter.load_state_dict(model.state_dict())
    return shorter.eval().requires_grad_(False)


@pytest.mark.parametrize("config", [TINY, WIDE, replace(TINY, num_frames=1)], ids=["tiny", "wide", "image"])
def test_every_frame_equals_the_clip_that_ends_there(config: LeVJEPAConfig) -> None:
    model = lively_model(config, seed=3)
    (clip,) = random_clips(config, 1, seed=4)
    whole = TorchRuntime(model)(clip[None])
    stream = StreamEncoder(model)
    for t, frame in enumerate(clip):
        got = stream.push(frame)
        so_far = TorchRuntime(prefix_model(model, t + 1))(clip[None, : t + 1])
        assert got.frame == t
        np.testing.assert_allclose(got.patch, so_far.patch[0, t], atol=1e-5, rtol=0)
        np.testing.assert_allclose(got.patch, whole.patch[0, t], atol=1e-5, rtol=0)
        np.testing.assert_allclose(got.cls, so_far.cls[0], atol=1e-5, rtol=0)
    np.testing.assert_allclose(got.cls, whole.cls[0], atol=1e-5, rtol=0)
    assert stream.frames == config.num_frames


def test_cls_so_far_moves_with_every_frame(tiny_model: LeVJEPA) -> None:
    stream = StreamEncoder(tiny_model)
    cls = [stream.push(frame).cls for frame in random_clips(TINY, 1)[0]]
    assert all(np.abs(a - b).max() > 1e-2 for a, b in pairwise(cls))


def test_reset_forgets_everything(tiny_model: LeVJEPA) -> None:
    one, other = random_clips(TINY, 2)
    used, fresh = StreamEncoder(tiny_model), StreamEncoder(tiny_model)
    for frame in one:
        used.push(frame)
    used.reset()
    assert used.frames == 0
    for frame in other:
        after, clean = used.push(frame), fresh.push(frame)
        np.testing.assert_array_equal(after.patch, clean.patch)
        np.testing.assert_array_equal(after.cls, clean.cls)


def test_outputs_are_not_overwritten_by_later_frames(tiny_model: LeVJEPA) -> None:
    stream, frames = StreamEncoder(tiny_model), random_clips(TINY, 1)[0]
    first = stream.push(frames[0])
    patch, cls = first.patch.copy(), first.cls.copy()
    stream.push(frames[1])
    np.testing.assert_array_equal(first.patch, patch)
    np.testing.assert_array_equal(first.cls, cls)
    assert first.patch.base is None
    assert first.cls.base is None


def test_memory_does_not_grow(tiny_model: LeVJEPA) -> None:
    stream = StreamEncoder(tiny_model)
    before = (stream._keys.data_ptr(), stream._values.data_ptr(), stream._keys.numel())
    for frame in random_clips(TINY, 1)[0]:
        stream.push(frame)
    assert (stream._keys.data_ptr(), stream._values.data_ptr(), stream._keys.numel()) == before


def test_the_stated_cache_size_is_true() -> None:
    for name, megabytes in (("levjepa-large", 617), ("levjepa-nano", 29)):
        size = SIZES[name]
        assert round(2 * 4 * size.depth * (size.num_frames * size.grid**2 + 1) * size.embed_dim / 1e6) == megabytes


def test_strided_and_read_only_frames_are_read_right(tiny_model: LeVJEPA) -> None:
    frame = random_clips(TINY, 1)[0, 0]
    wanted = StreamEncoder(tiny_model).push(frame)
    mirrored = frame[:, ::-1]
    strided = np.ascontiguousarray(mirrored)[:, ::-1]
    strided.flags.writeable = False
    np.testing.assert_array_equal(StreamEncoder(tiny_model).push(strided).patch, wanted.patch)


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (np.zeros((32, 32, 3), np.float32), "the frame is float32; wanted is a uint8 array \\(32, 32, 3\\)"),
        (np.zeros((32, 16, 3), np.uint8), "shape \\(32, 16, 3\\)"),
        (np.zeros((3, 32, 32), np.uint8), "shape \\(3, 32, 32\\)"),
        (np.zeros((1, 32, 32, 3), np.uint8), "shape \\(1, 32, 32, 3\\)"),
        ([[0]], "the frame is a list"),
    ],
)
def test_a_wrong_frame_is_refused_and_changes_nothing(tiny_model: LeVJEPA, frame: Any, match: str) -> None:
    good = random_clips(TINY, 1)[0]
    stream, clean = StreamEncoder(tiny_model), StreamEncoder(tiny_model)
    stream.push(good[0])
    clean.push(good[0])
    with pytest.raises(UsageError, match=match):
        stream.push(frame)
    np.testing.assert_array_equal(stream.push(good[1]).cls, clean.push(good[1]).cls)


def test_a_full_clip_takes_no_more_frames(tiny_model: LeVJEPA) -> None:
    stream, frames = StreamEncoder(tiny_model), random_clips(TINY, 1)[0]
    for frame in frames:
        stream.push(frame)
    with pytest.raises(UsageError, match=r"clips have 4 frames \(0 to 3\).*reset\(\).*not supported"):
        stream.push(frames[0])
    assert stream.frames == 4
    with pytest.raises(UsageError, match="threads is 0"):
        StreamEncoder(tiny_model, threads=0)


def test_the_documented_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = DOCUMENT.read_text().split("```python\n")[1:]
    assert len(blocks) == 1
    exec(compile(blocks[0].split("```")[0], str(DOCUMENT), "exec"), {})
    printed = DOCUMENT.read_text().split("```text\n")[1].split("```")[0]
    assert capsys.readouterr().out == printed
