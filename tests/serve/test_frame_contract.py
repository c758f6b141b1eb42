"""The runtimes' contract for an encoder with one vector a frame, and its way from export to a probe."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from coldframe.errors import UsageError
from coldframe.export import Bundle, export_bundle
from coldframe.export.parity import BUDGETS, compare
from coldframe.export.tokens import Tokens
from coldframe.probe_cli import main as probe_command
from coldframe.probes.features import read_features
from coldframe.probes.linear import linear_probe
from coldframe.probes.loader import TokenLoader
from coldframe.probes.saved import load_probe
from coldframe.probes.selection import select_rows
from coldframe.probes.split import split_by_group
from coldframe.probes.token_view import TokenView
from coldframe.progress import progress_bar
from coldframe.serve import unit
from coldframe.serve.canary import check_canaries
from coldframe.serve.cli import plan_command
from coldframe.serve.extract import extract, make_recipe, token_geometry
from coldframe.serve.frame_cache import FrameCache
from coldframe.serve.inputs import collect_inputs
from coldframe.serve.runtime import Runtime, open_runtime
from coldframe.store import Store, open_store, verify_store
from coldframe.store.convert import convert
from tests import barcode
from tests.export.image_folders import clip_pixels, hugging_face_folder
from tests.probes.plain_heads import Head
from tests.serve.test_other_encoders import clips_of

FRAMES = 4
VARIANTS = [
    ("torch", "fp32"),
    ("onnxruntime", "fp32"),
    ("onnxruntime", "fp16"),
    ("openvino", "fp32"),
    ("openvino", "bf16"),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("frames")
    hugging_face_folder("dinov2_with_registers", folder / "source")
    return export_bundle(folder / "source", folder / "bundle", frames=FRAMES, precisions=tuple(BUDGETS))


@pytest.fixture(scope="module", params=VARIANTS, ids="/".join)
def runtime(request: pytest.FixtureRequest, bundle: Bundle) -> Runtime:
    backend, precision = request.param
    return open_runtime(bundle, backend, precision, threads=1)


def part(tokens: Tokens, index: int) -> Tokens:
    return Tokens(patch=tokens.patch[index : index + 1], frame_cls=tokens.frame_cls[index : index + 1])


def test_every_variant_is_within_budget_and_one_that_does_not_run_has_no_record(bundle: Bundle) -> None:
    assert set(bundle.parity) == {"/".join(one) for one in VARIANTS} - {"torch/fp32"}
    assert all(record["cls_cosine"] >= 0.9995 for record in bundle.parity.values())
    tokens = open_runtime(bundle, threads=1)(clip_pixels(1, FRAMES))
    with pytest.raises(UsageError, match="one vector a frame and none a clip"):
        _ = tokens.cls


def test_tokens_are_the_references(runtime: Runtime, bundle: Bundle) -> None:
    clips, budget = clip_pixels(3, FRAMES, seed=5), BUDGETS[runtime.precision]
    found = compare(open_runtime(bundle, "torch", threads=1)(clips), runtime(clips))
    assert found["cls_cosine"] >= budget.cls_cosine
    assert found["patch_cosine_worst"] >= budget.patch_cosine_worst


@pytest.mark.parametrize("count", [1, 2, 5])
def test_batch_mates_do_not_matter(runtime: Runtime, count: int) -> None:
    clips = clip_pixels(5, FRAMES)
    alone = [runtime(clips[index : index + 1]) for index in range(5)]
    for start in range(0, 5, count):
        given = runtime(clips[start : start + count])
        for index, one in enumerate(alone[start : start + count]):
            measures = compare(one, part(given, index))
            assert min(measures["cls_cosine"], measures["patch_cosine_worst"]) >= (
                0.99999 if runtime.precision == "fp32" else 0.999
            )
    assert np.abs(alone[0].frame_cls - alone[1].frame_cls).max() > 0.1  # the clips do differ


def test_a_frame_changes_its_own_tokens_alone(runtime: Runtime) -> None:
    clips = clip_pixels(1, FRAMES)
    other = clips.copy()
    other[:, 1] = clip_pixels(1, FRAMES, seed=9)[:, 1]
    before, after = runtime(clips), runtime(other)
    for one, two in ((before.patch, after.patch), (before.frame_cls, after.frame_cls)):
        change = np.abs(one - two).reshape(FRAMES, -1).max(axis=1)
        assert change[1] > 0.01
        assert change[[0, 2, 3]].max() <= BUDGETS[runtime.precision].prefix_max_abs


def test_arrays_are_fresh_and_layout_in_memory_does_not_matter(runtime: Runtime) -> None:
    clips = clip_pixels(2, FRAMES)
    first = runtime(clips)
    kept = first.frame_cls.copy()
    turned = np.ascontiguousarray(clips.transpose(0, 1, 4, 3, 2)).transpose(0, 1, 4, 3, 2)
    assert np.array_equal(runtime(turned).frame_cls, first.frame_cls)
    runtime(clip_pixels(2, FRAMES, seed=1))
    assert np.array_equal(first.frame_cls, kept)
    assert first.frame_cls.dtype == np.float32
    assert first.frame_cls.flags.c_contiguous


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight short videos of two classes and a manifest of them; the last clip of each is padded.

    Only bars 3 to 8 are in the square crop: 14 lets the two real frames of video 0's padded clip, 30 and 32, differ.
    """
    folder = tmp_path_factory.mktemp("videos")
    lines = ["path,label,source"]
    for number in range(8):
        barcode.write_video(folder / f"{number}.mp4", 20, first=14 + 100 * number)
        lines.append(f"{number}.mp4,{'ab'[number % 2]},{number}")
    (folder / "all.csv").write_text("\n".join(lines) + "\n")
    return folder


def extracted(paths: list[str], bundle: Bundle, target: Path, **options: object) -> Store:
    recipe = make_recipe(bundle, dtype="float32", fps=15, **options)  # type: ignore[arg-type]
    done = extract(collect_inputs(paths).videos, bundle, str(target), recipe, progress=progress_bar)
    assert (done.failed, done.rows) == (0, done.ok)
    assert verify_store(target).passed
    return open_store(target)


@pytest.mark.parametrize("tier", ["cls", "frame_cls", "cls+mean", "full", "mean"])
def test_store_holds_one_vector_a_frame_and_their_mean_over_real_frames(
    tier: str, bundle: Bundle, videos: Path, tmp_path: Path
) -> None:
    video = videos / "0.mp4"
    store = extracted([str(video)], bundle, tmp_path / "s", tokens=tier)
    assert (store.recipe.clip_cls, store.recipe.attention) == ("frame_mean", "per_frame")
    expected = open_runtime(bundle, "torch")(clips_of(store, video))
    real = store.column("n_real")
    assert real.tolist() == [4, 4, 2]  # 10 frames at 15 a second
    if tier == "mean":
        with pytest.raises(UsageError, match=r"keeps no \[CLS\]"):
            store.cls()
    else:
        assert np.abs(expected.frame_cls[2, 0] - expected.frame_cls[2, 1]).max() > 0.1  # so that padding would show
        means = [vectors[:count].mean(0) for vectors, count in zip(expected.frame_cls, real, strict=True)]
        np.testing.assert_allclose(store.cls(), np.stack(means), atol=1e-4)
    if tier in ("cls", "mean"):
        with pytest.raises(UsageError, match="keeps no vector a frame"):
            store.frame_cls()
    else:
        np.testing.assert_allclose(store.frame_cls(), expected.frame_cls, atol=1e-4)
        assert not any(canary.problem for canary in check_canaries(store, bundle, 3))
    assert store.geometry.keeps_patches == (tier not in ("cls", "frame_cls"))


def test_frames_that_clips_share_are_encoded_once(
    bundle: Bundle, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: list[FrameCache] = []

    class Seen(FrameCache):
        def __init__(self, runtime: Runtime) -> None:
            super().__init__(runtime)
            caches.append(self)

    monkeypatch.setattr(unit, "FrameCache", Seen)
    video = videos / "0.mp4"
    store = extracted([str(video)], bundle, tmp_path / "s", tokens="frame_cls", hop_frames=1)
    clips = clips_of(store, video)
    pictures = {frame.tobytes() for clip in clips for frame in clip}
    assert [cache.encoded for cache in caches] == [len(pictures)]
    assert len(pictures) < clips.shape[0] * clips.shape[1] / 2
    np.testing.assert_allclose(store.frame_cls(), open_runtime(bundle, "torch")(clips).frame_cls, atol=1e-4)


def test_probes_read_the_store(bundle: Bundle, videos: Path, tmp_path: Path) -> None:
    store = extracted([str(videos / "all.csv")], bundle, tmp_path / "s", tokens="frame_cls")
    report = linear_probe(store, label="label", seeds=(0,))
    assert (report.store.recipe.clip_cls, len(report.results)) == ("frame_mean", 1)
    rows = store.ok_rows()
    np.testing.assert_array_equal(read_features(store, rows, "cls"), store.cls())
    with pytest.raises(UsageError, match="features 'mean' need patch tokens; this store keeps 'frame_cls' only"):
        read_features(store, rows, "mean")
    (batch,) = TokenLoader(store=store, rows=rows, view=TokenView(), batch_rows=len(rows)).epoch()
    np.testing.assert_array_equal(batch.maps[0], store.frame_cls(batch.rows))
    assert batch.mask.sum(axis=1).tolist() == store.column("n_real")[batch.rows].tolist()
    done = convert(store, "webdataset", tmp_path / "out")
    assert done.rows == len(rows)


def test_an_attentive_head_reads_the_vector_of_each_real_frame(bundle: Bundle, videos: Path, tmp_path: Path) -> None:
    store = extracted([str(videos / "all.csv")], bundle, tmp_path / "s", tokens="frame_cls")
    assert store.column("n_real").min() < FRAMES
    fit = ["attentive", store.path, "--label", "label", "--preset", "vjepa2-d1", "--heads", "2", "--lr", "1e-2"]
    fit += [
        "--wd",
        "0.1",
        "--epochs",
        "3",
        "--batch",
        "4",
        "--temporal-position",
        "--save",
        tmp_path / "head",
        "--json",
    ]
    fitted = CliRunner().invoke(probe_command, [str(arg) for arg in fit])
    assert fitted.exit_code == 0, fitted.output
    data = json.loads(fitted.stdout)
    assert len(data["seeds"]) == 3
    assert "tokens: the tier 'frame_cls' instead of all tokens." in data["differences"]
    losses = np.array([head["train_loss"] for head in data["grid"]])
    assert (losses[:, -1] < losses[:, 0]).all()

    card, tensors = load_probe(tmp_path / "head")
    dim = store.geometry.dim
    plain = Head(dim, len(card.names), 2, time=FRAMES)
    plain.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in tensors.items()})
    rows = store.ok_rows()
    real = torch.arange(FRAMES) < torch.from_numpy(store.column("n_real")[rows].astype(np.int64))[:, None]
    with torch.no_grad():
        logits = plain([torch.from_numpy(store.frame_cls(rows))], real, torch.arange(FRAMES))
    wanted = logits.softmax(dim=-1).numpy()
    predicted = CliRunner().invoke(probe_command, ["predict", str(tmp_path / "head"), str(store.path)])
    assert predicted.exit_code == 0, predicted.output
    found = [list(json.loads(line)["probabilities"].values()) for line in predicted.stdout.splitlines()]
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    best = max(data["seeds"], key=lambda seed: seed["validation_balanced_accuracy"])
    chosen = select_rows(store, "label", ("source",))
    test = split_by_group(chosen.components, chosen.labels, seed=0).test
    right = wanted[test].argmax(axis=1) == chosen.labels.codes[test]
    assert best["top1"] == pytest.approx(right.mean())
    with_cls = ["--preset", "levjepa", "--epochs", "1", "--seeds", "1", "--heads", "2", "--lr", "1e-2", "--wd", "0"]
    said = CliRunner().invoke(probe_command, ["attentive", str(store.path), "--label", "label", *with_cls]).stdout
    assert "[CLS] of a clip is the mean of its frames' own vectors" in said


def test_plan_shows_the_tier_and_its_bytes(bundle: Bundle, videos: Path) -> None:
    shown = CliRunner().invoke(plan_command, [str(videos / "0.mp4"), "--encoder", str(bundle.path), "--fps", "15"])
    assert shown.exit_code == 0
    bytes_a_row = 2 * 48 * (1 + FRAMES)
    assert token_geometry(bundle, "frame_cls").row_bytes("float16") == bytes_a_row
    assert "frame_cls" in shown.stdout


def test_siglip_without_its_head_says_how_to_get_a_vector(videos: Path, tmp_path: Path) -> None:
    hugging_face_folder("siglip", tmp_path / "source")
    bundle = export_bundle(tmp_path / "source", tmp_path / "bundle", frames=2)
    with pytest.raises(UsageError, match=r"no \[CLS\] token.*Use 'mean'.*--frame-vector pooled"):
        token_geometry(bundle, "cls")
    assert token_geometry(bundle, "mean").has_cls is False
