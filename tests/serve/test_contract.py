"""One contract for every runtime in every precision it offers: uint8 clips in, tokens out, nothing else matters.

Compared with the float32 reference within the budget of the precision (`parity.BUDGETS`); with itself exactly, or
within the rounding of one sum where batches are cut differently.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.errors import BundleError, UsageError
from coldframe.export import Bundle, LeVJEPAConfig, export_bundle, save_reference
from coldframe.export.checkpoint import load_state
from coldframe.export.parity import BUDGETS, compare
from coldframe.export.tokens import Tokens
from coldframe.export.variants import BACKENDS, OFFERS
from coldframe.serve.cli import extract_command
from coldframe.serve.runtime import Runtime, open_runtime
from coldframe.store import open_store
from tests import barcode
from tests.export.conftest import lively_model, random_clips

CONFIG = LeVJEPAConfig(img_size=32, num_frames=16, embed_dim=48, depth=2, num_heads=3)
VARIANTS = [(backend, precision) for backend in BACKENDS for precision in OFFERS[backend]]
# a batch cut differently adds the same products in another order
CUT = {"fp32": 1e-5, "fp16": 0.02, "bf16": 0.05}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A model whose every parameter is random, with attention as sharp as a trained one's rather than the tests' worst."""
    root = tmp_path_factory.mktemp("contract")
    state = lively_model(CONFIG).state_dict()
    milder = {name: tensor * 0.4 if name.endswith("qkv.weight") else tensor for name, tensor in state.items()}
    save_reference(load_state(CONFIG, milder), root / "source")
    return export_bundle(root / "source", root / "bundle", precisions=tuple(BUDGETS))


@pytest.fixture(scope="module", params=VARIANTS, ids="/".join)
def runtime(request: pytest.FixtureRequest, bundle: Bundle) -> Runtime:
    backend, precision = request.param
    return open_runtime(bundle, backend, precision, threads=1)


@pytest.fixture(scope="module")
def reference(bundle: Bundle) -> Runtime:
    return open_runtime(bundle, "torch", threads=1)


def difference(a: Tokens, b: Tokens) -> float:
    return float(max(np.abs(a.cls - b.cls).max(), np.abs(a.patch - b.patch).max()))


def test_every_offered_variant_was_measured_and_met(bundle: Bundle) -> None:
    assert set(bundle.parity) == {"/".join(one) for one in VARIANTS} - {"torch/fp32"}
    assert bundle.precisions == tuple(BUDGETS)


def test_tokens_are_the_references(runtime: Runtime, reference: Runtime) -> None:
    clips = random_clips(CONFIG, 2, seed=5)
    found, budget = compare(reference(clips), runtime(clips)), BUDGETS[runtime.precision]
    assert found["cls_cosine"] >= budget.cls_cosine
    assert found["patch_cosine_worst"] >= budget.patch_cosine_worst
    narrow = runtime.precision != "fp32"
    assert (found["relative_max_abs"] > 1e-5) == narrow, "the precision asked for is the one computed"


def test_runtime_says_what_computes(runtime: Runtime) -> None:
    facts = runtime.provenance()
    assert facts.keys() == {"runtime", "provider", "threads", "cpu"}
    assert facts["runtime"].split()[0] == runtime.backend
    assert (runtime.threads, facts["threads"]) == (1, "1")


def test_arrays_are_fresh_float32(runtime: Runtime) -> None:
    first = runtime(random_clips(CONFIG, 2))
    kept = first.cls.copy(), first.patch.copy()
    second = runtime(random_clips(CONFIG, 2, seed=1))
    assert np.array_equal(first.cls, kept[0])
    assert np.array_equal(first.patch, kept[1])
    for array in (first.cls, first.patch):
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in (second.cls, second.patch))
    assert not np.shares_memory(first.cls, first.patch)


def test_large_outputs_are_not_overwritten_by_later_batches(runtime: Runtime) -> None:
    """Past 2 MB allocators hand out and reuse whole pages, where an alias would show."""
    clips = random_clips(CONFIG, 48)
    first = runtime(clips)
    assert first.patch.nbytes > 500_000
    kept = first.patch.copy()
    for seed in range(3):
        runtime(random_clips(CONFIG, 48, seed=seed))
    assert np.array_equal(first.patch, kept)


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_batch_mates_do_not_matter(runtime: Runtime, count: int) -> None:
    clips = random_clips(CONFIG, 7)
    alone = [runtime(clips[index : index + 1]) for index in range(7)]
    for start in range(0, 7, count):
        part = runtime(clips[start : start + count])
        for index, one in enumerate(alone[start : start + count]):
            mine = Tokens(cls=part.cls[index : index + 1], patch=part.patch[index : index + 1])
            assert difference(mine, one) <= CUT[runtime.precision]
            assert compare(one, mine)["patch_cosine_worst"] >= (0.99999 if runtime.precision == "fp32" else 0.999)
    assert np.abs(alone[0].cls - alone[1].cls).max() > 0.1  # the clips do differ


def test_last_frame_changes_itself_and_cls_alone(runtime: Runtime) -> None:
    clips = random_clips(CONFIG, 1)
    other = clips.copy()
    other[:, -1] = random_clips(CONFIG, 1, seed=9)[:, -1]
    a, b = runtime(clips), runtime(other)
    change = np.abs(a.patch - b.patch)
    assert change[:, :-1].max() <= BUDGETS[runtime.precision].prefix_max_abs
    assert change[:, -1].max(-1).min() > 0.01
    assert np.abs(a.cls - b.cls).max() > 0.01


def test_layout_in_memory_does_not_matter(runtime: Runtime) -> None:
    clips = random_clips(CONFIG, 4)
    expected = runtime(clips)
    turned = np.ascontiguousarray(clips.transpose(0, 1, 4, 3, 2)).transpose(0, 1, 4, 3, 2)
    assert not turned.flags.c_contiguous
    frozen = clips.copy()
    frozen.setflags(write=False)
    assert difference(runtime(turned), expected) == 0
    assert difference(runtime(frozen), expected) == 0
    assert difference(runtime(clips[::2]), runtime(clips[[0, 2]])) == 0


def test_threads_may_share_a_runtime(runtime: Runtime) -> None:
    batches = [random_clips(CONFIG, 1 + index % 3, seed=index) for index in range(12)]
    expected = [runtime(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for alone, together in zip(expected, pool.map(runtime, batches), strict=True):
            assert difference(alone, together) == 0


@pytest.mark.parametrize(
    ("clips", "match"),
    [
        (np.zeros((1, 16, 32, 32, 3), np.float32), "clips is float32; wanted is a uint8 array"),
        ([[0]], "clips is a list"),
        (np.zeros((16, 32, 32, 3), np.uint8), "five axes"),
        (np.zeros((1, 16, 3, 32, 32), np.uint8), "H is 3, not 32, the colour axis is 32, not 3"),
        (np.zeros((1, 3, 16, 32, 32), np.uint8), "T is 3, not 16"),
        (np.zeros((1, 17, 32, 32, 3), np.uint8), "T is 17, not 16"),
        (np.zeros((1, 16, 48, 32, 3), np.uint8), "H is 48, not 32"),
        (np.zeros((1, 16, 32, 32, 4), np.uint8), "the colour axis is 4, not 3"),
        (np.zeros((0, 16, 32, 32, 3), np.uint8), "clips is empty"),
    ],
)
def test_other_input_is_refused_by_name(runtime: Runtime, clips: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        runtime(clips)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_other_thread_counts_are_refused(bundle: Bundle, runtime: Runtime, threads: Any) -> None:
    with pytest.raises(UsageError, match="threads is"):
        open_runtime(bundle, runtime.backend, runtime.precision, threads=threads)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "precision", "match"),
    [
        ("torch", "fp16", r"torch does not compute in fp16 on a CPU; it offers fp32, bf16. fp16 is offered by onnxrun"),
        ("onnxruntime", "bf16", r"onnxruntime does not compute in bf16.*bf16 is offered by torch, openvino"),
        ("openvino", "fp16", r"openvino does not compute in fp16.*it offers fp32, bf16"),
        ("openvino", "int8", r"precision is 'int8'; allowed are fp32, fp16, bf16"),
    ],
)
def test_precision_that_a_runtime_lacks_is_refused(bundle: Bundle, backend: Any, precision: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        open_runtime(bundle, backend, precision)


@pytest.mark.parametrize("variant", sorted({"/".join(one) for one in VARIANTS} - {"torch/fp32"}))
def test_variant_over_its_budget_is_refused(bundle: Bundle, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bundle.parity, variant, {**bundle.parity[variant], "patch_cosine_worst": 0.99})
    backend, precision = variant.split("/")
    with pytest.raises(BundleError, match=rf"{variant} misses its parity budget: patch_cosine_worst is 0.99"):
        open_runtime(bundle, backend, precision)  # type: ignore[arg-type]


def test_process_starts_no_more_threads_than_it_has_cores(bundle: Bundle, runtime: Runtime) -> None:
    """With its affinity on one core (`taskset -c 0`), whatever the machine has."""
    code = f"""
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import numpy
from coldframe.serve.runtime import open_runtime
runtime = open_runtime({str(bundle.path)!r}, {runtime.backend!r}, {runtime.precision!r})
for count in (2, 1, 2):
    runtime(numpy.zeros((count, 16, 32, 32, 3), numpy.uint8))
print(runtime.threads, len(os.listdir("/proc/self/task")))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    threads, tasks = map(int, run.stdout.split())
    assert threads == 1
    assert tasks <= 1 + 2


def test_extraction_in_bf16_is_its_own_recipe(bundle: Bundle, tmp_path: Path) -> None:
    """Runtimes may be mixed inside a precision, precisions may not."""
    barcode.write_video(tmp_path / "v.mp4", 120)
    arguments = [str(tmp_path / "v.mp4"), "--encoder", str(bundle.path), "--tokens", "full", "--json"]

    def run(store: str, backend: str, precision: str) -> Any:
        more = ["--store", str(tmp_path / store), "--backend", backend, "--precision", precision]
        return CliRunner().invoke(extract_command, [*arguments, *more])

    assert json.loads(run("narrow.zarr", "openvino", "bf16").stdout)["ok"] == 2
    assert json.loads(run("wide.zarr", "openvino", "fp32").stdout)["ok"] == 2
    resumed = json.loads(run("narrow.zarr", "torch", "bf16").stdout)
    assert (resumed["ok"], resumed["resumed_rows"]) == (2, 2)
    mixed = run("narrow.zarr", "openvino", "fp32")
    assert "precision: 'bf16' here" in str(mixed.exception) or "precision: 'fp32' here" in str(mixed.exception)
    narrow, wide = (open_store(tmp_path / name) for name in ("narrow.zarr", "wide.zarr"))
    assert (narrow.recipe.precision, wide.recipe.precision) == ("bf16", "fp32")
    apart = np.abs(narrow.patch([0, 1]) - wide.patch([0, 1])).max()
    assert 1e-3 < apart < 0.2
    refused = run("other.zarr", "onnxruntime", "bf16")
    assert isinstance(refused.exception, UsageError)
    assert not (tmp_path / "other.zarr").exists()
