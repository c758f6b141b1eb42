"""Heads go into the released V-JEPA 2 layout and come back, and nothing that does not fit gets in."""

from pathlib import Path

import pytest
import torch

from coldframe.errors import InputNotFound, UsageError
from coldframe.probes.heads import HeadShape, initialise
from coldframe.probes.presets import PRESETS
from coldframe.probes.released import from_released, load_released, to_released
from tests.probes.plain_heads import Head

SHAPE = HeadShape(preset=PRESETS["vjepa2-d4"].with_heads(4), dim=16, classes=3)


def state() -> dict[str, torch.Tensor]:
    return {name: value[0] for name, value in initialise(SHAPE, [0]).items()}


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    torch.save({**to_released(state()), "epoch": 20, "batch_size": 4}, path)
    loaded = load_released(path, SHAPE)
    assert loaded.keys() == state().keys()
    assert all(torch.equal(loaded[name], value) for name, value in state().items())


def test_a_plain_head_of_upstreams_shape_loads_it_by_name() -> None:
    (saved,) = to_released(state())["classifiers"]
    assert all(name.startswith("module.") for name in saved)
    Head(16, 3, 4, depth=4).load_state_dict({name.removeprefix("module."): value for name, value in saved.items()})
    assert len(saved) == 51


def test_half_precision_is_read_as_float32_and_the_prefix_is_optional() -> None:
    loaded = from_released({"classifiers": [{name: value.half() for name, value in state().items()}]}, SHAPE)
    assert all(value.dtype == torch.float32 for value in loaded.values())


def test_what_does_not_fit_is_refused_by_name() -> None:
    for name, change, message in (
        ("linear.bias", None, r"1 tensors are missing \(linear.bias\) and 0 are unknown"),
        ("pooler.cross_attention_block.xattn.proj.weight", torch.zeros(16, 16), r"1 are unknown \(pooler.cross"),
        ("linear.weight", torch.zeros(4, 16), r"linear.weight has shape \(4, 16\); the head needs \(3, 16\)"),
    ):
        broken = state()
        if change is None:
            broken.pop(name)
        else:
            broken[name] = change
        with pytest.raises(UsageError, match=message):
            from_released({"classifiers": [broken]}, SHAPE)
    with pytest.raises(UsageError, match="has 1 heads under 'classifiers'; head 1"):
        from_released(to_released(state()), SHAPE, head=1)


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="no checkpoint"):
        load_released(tmp_path / "none.pt", SHAPE)
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(UsageError, match="is not a checkpoint of tensors"):
        load_released(tmp_path / "text.pt", SHAPE)


def test_the_three_classifiers_of_an_ek100_probe_round_trip(tmp_path: Path) -> None:
    shape = HeadShape(
        preset=PRESETS["vjepa2-d4"].with_heads(4), dim=16, tasks=(("verb", 3), ("noun", 4), ("action", 5))
    )
    state = {name: value[0] for name, value in initialise(shape, [0]).items()}
    torch.save(to_released(state), tmp_path / "latest.pt")
    loaded = load_released(tmp_path / "latest.pt", shape)
    assert len(loaded) == 55
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    with pytest.raises(UsageError, match=r"6 are unknown \(action_classifier"):
        from_released(to_released(state), HeadShape(preset=shape.preset, dim=16, classes=3))
