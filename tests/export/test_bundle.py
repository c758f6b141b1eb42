"""Bundles: made whole or not at all, and every alteration is seen."""

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from coldframe.errors import BundleError, InputNotFound, UsageError
from coldframe.export import graph
from coldframe.export.bundle import Bundle, export_bundle, open_bundle, verify_bundle
from coldframe.export.bundle_files import BUNDLE_FILE, _record_sha256
from coldframe.export.checkpoint import load_reference, save_reference, weights_sha256
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, random_clips

FILES = ["config.json", "encoder.fp32.onnx", "encoder.fp32.onnx.data", "model.safetensors", "parity.json"]


@pytest.fixture(scope="module")
def source(tiny_model: LeVJEPA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "released"
    save_reference(tiny_model, folder)
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    return folder


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export_bundle(source, tmp_path_factory.mktemp("made") / "deep" / "bundle")


@pytest.fixture
def copy(made: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.path, tmp_path / "copy"))


def edit_record(folder: Path, change: Callable[[dict[str, Any]], object], *, resign: bool = True) -> None:
    record = json.loads((folder / BUNDLE_FILE).read_text())
    change(record)
    if resign:
        record["record_sha256"] = _record_sha256(record)
    (folder / BUNDLE_FILE).write_text(json.dumps(record))


def test_bundle_says_what_it_is(made: Bundle, tiny_model: LeVJEPA) -> None:
    assert (made.name, made.untrained, made.random_init) == ("levjepa-48x2x3p16", False, None)
    assert made.weights_sha256 == weights_sha256(tiny_model)
    assert made.config == TINY
    assert (made.dim, made.frames, made.rows, made.cols, made.image_size) == (48, 4, 2, 2, 32)
    assert (made.attention, made.precisions) == ("block_causal", ("fp32",))
    assert (made.licence, made.non_commercial) == ("cc-by-nc-4.0", True)
    assert made.parity["onnxruntime/fp32"]["patch_cosine_worst"] >= 0.99999
    assert sorted(made.files) == FILES
    assert sorted(path.name for path in made.path.iterdir()) == sorted([*FILES, BUNDLE_FILE])
    assert [path.name for path in made.path.parent.iterdir()] == ["bundle"]
    assert open_bundle(made.path) == made
    verify_bundle(made)


def test_files_are_readable_by_whom_the_umask_allows(made: Bundle, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    plain = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.path.iterdir()} == {plain}


def test_bundle_works_without_coldframe(made: Bundle, tiny_model: LeVJEPA) -> None:
    session = onnxruntime.InferenceSession(str(made.path / "encoder.fp32.onnx"), providers=["CPUExecutionProvider"])
    clips = random_clips(TINY, 2)
    cls, patch = session.run(["cls", "patch"], {"clips": clips})
    expected = TorchRuntime(tiny_model)(clips)
    np.testing.assert_allclose(cls, expected.cls, atol=1e-4)
    np.testing.assert_allclose(patch, expected.patch, atol=1e-4)
    assert session.get_modelmeta().custom_metadata_map["weights_sha256"] == made.weights_sha256


def test_nano_from_random_weights_end_to_end(tmp_path: Path) -> None:
    stages: list[str] = []
    bundle = export_bundle("levjepa-nano", tmp_path / "nano", random_init=3, say=stages.append)
    assert (bundle.name, bundle.untrained, bundle.random_init) == ("levjepa-nano", True, 3)
    assert (bundle.licence, bundle.non_commercial) == ("none needed (random weights)", False)
    assert (bundle.frames, bundle.rows, bundle.cols, bundle.dim) == (16, 14, 14, 192)
    assert bundle.parity["onnxruntime/fp32"]["prefix"]["max_abs"] <= 1e-5
    assert [stage.split()[0] for stage in stages] == ["loading", "writing", "measuring", "measuring", "hashing"]
    assert load_reference(bundle.path).random_init == 3


def test_same_export_again_is_left_as_it_is(made: Bundle, source: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.path.iterdir()}
    assert export_bundle(source, made.path) == made
    assert {path: path.stat().st_mtime_ns for path in made.path.iterdir()} == before


def test_same_export_over_a_damaged_bundle_is_refused(copy: Path, source: Path) -> None:
    flip_byte(copy / "encoder.fp32.onnx.data")
    with pytest.raises(BundleError, match="was altered"):
        export_bundle(source, copy)


def test_other_bundle_in_the_way_is_refused(made: Bundle, tmp_path: Path, source: Path) -> None:
    with pytest.raises(UsageError, match=r"another bundle already.*differs in.*weights_sha256"):
        export_bundle("levjepa-nano", made.path, random_init=0)
    (tmp_path / "in_the_way").mkdir()
    with pytest.raises(UsageError, match="exists and is no bundle"):
        export_bundle(source, tmp_path / "in_the_way")
    assert list((tmp_path / "in_the_way").iterdir()) == []


def test_bundle_exported_again_keeps_what_is_known(made: Bundle, tmp_path: Path) -> None:
    again = export_bundle(made.path, tmp_path / "again")
    assert (again.licence, again.non_commercial) == ("cc-by-nc-4.0", True)
    assert again.weights_sha256 == made.weights_sha256


def test_graph_over_budget_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "IMAGENET_STD", (0.25, 0.25, 0.25))
    with pytest.raises(BundleError, match=r"misses its parity budget.*cosine is 0\.\d+, allowed is at least 0.99999"):
        export_bundle(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(graph, "write_graph", full)
    with pytest.raises(BundleError, match=r"could not be written.*No space left"):
        export_bundle(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_is_seen(copy: Path, name: str) -> None:
    flip_byte(copy / name)
    with pytest.raises(BundleError, match=f"{name} was altered"):
        verify_bundle(open_bundle(copy))


@pytest.mark.parametrize("name", FILES)
def test_short_or_missing_file_is_seen_on_opening(copy: Path, name: str) -> None:
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[:-1])
    with pytest.raises(BundleError, match=f"{name} has {len(whole) - 1} bytes"):
        open_bundle(copy)
    (copy / name).unlink()
    with pytest.raises(BundleError, match=f"incomplete: {name} is missing"):
        open_bundle(copy)


def test_file_changed_after_opening_is_seen(copy: Path) -> None:
    bundle = open_bundle(copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(BundleError, match=r"model.safetensors is missing"):
        verify_bundle(bundle)


def test_edited_record_is_seen(copy: Path) -> None:
    edit_record(copy, lambda record: record.update(non_commercial=False), resign=False)
    with pytest.raises(BundleError, match="does not match its own digest"):
        open_bundle(copy)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda record: record.update(format=2), "bundle format 2; this Coldframe reads 1"),
        (lambda record: record.pop("format"), "bundle format None"),
        (lambda record: record.pop("licence"), "not as format 1 says: 'licence'"),
        (lambda record: record["config"].update(attn_mode="full"), "attn_mode is 'full'"),
        (lambda record: record["config"].update(depth=3), "describe different encoders"),
        (lambda record: record["files"].pop("parity.json"), "lists .*wanted are"),
        (lambda record: record["files"].update({"../x": {"bytes": 0, "sha256": ""}}), "lists .*wanted are"),
        (lambda record: record.update(precisions=["fp32", "int8"]), "wanted are .*encoder.int8.onnx"),
    ],
)
def test_record_that_is_not_of_the_format_is_refused(
    copy: Path, change: Callable[[dict[str, Any]], object], match: str
) -> None:
    edit_record(copy, change)
    with pytest.raises(BundleError, match=match):
        open_bundle(copy)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_record_that_is_no_json_object_is_refused(copy: Path, text: str) -> None:
    (copy / BUNDLE_FILE).write_text(text)
    with pytest.raises(BundleError, match="no JSON"):
        open_bundle(copy)


def test_path_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match=r"does not exist.*coldframe export"):
        open_bundle(tmp_path / "absent")
    with pytest.raises(UsageError, match="coldframe export SOURCE"):
        open_bundle(tmp_path)
