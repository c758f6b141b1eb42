"""The GPU check says so where there is no GPU; its pieces find what they are for, the CPU in the GPU's place."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from coldframe.bench import gpu_check, gpu_measures
from coldframe.bench.gpu_check import Part, exit_code, gpu_check_command, line_of, make_report, run_part, run_parts
from coldframe.bench.gpu_measures import check_batches, check_parity, clip_flops, random_clips, seconds_per_call
from coldframe.bench.gpu_variants import VARIANTS, GpuVariant, Workspace
from coldframe.errors import BundleError, MissingDependency
from coldframe.export.config import SIZES
from coldframe.export.cuda import Gpu
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.tokens import Tokens
from coldframe.export.torch_runtime import TorchRuntime
from tests.export.conftest import TINY, lively_model

FLOORS = {"fp32": 1e12, "bf16": 1e13, "fp16": 1e13}
H200 = Gpu(name="NVIDIA H200", compute_capability="9.0", driver="580.65", memory_bytes=1)


def test_without_a_gpu_it_says_so_and_exits_with_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coldframe.bench.gpu_check", "--out", str(tmp_path / "report"), "--quick"]
    # nothing visible, so that this holds on a machine with a GPU too
    run = subprocess.run(command, env={"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (2, "")
    assert "no GPU here" in run.stderr
    assert not (tmp_path / "report").exists()


def test_work_of_a_clip_is_the_published_figure() -> None:
    """Linear layers 1.895 TFLOP and block-causal attention about 0.51 TFLOP, plus the patch embedding."""
    assert clip_flops(SIZES["levjepa-large"]) == pytest.approx(2.41e12, rel=0.003)


@pytest.fixture(scope="module")
def model() -> LeVJEPA:
    return lively_model(TINY)


def test_parity_finds_a_right_and_a_wrong_runtime(model: LeVJEPA) -> None:
    reference = TorchRuntime(model)
    assert check_parity(reference, reference, TINY, "fp32")["wrong"] == ""
    assert "cls_cosine" in check_parity(TorchRuntime(lively_model(TINY, seed=9)), reference, TINY, "fp32")["wrong"]
    assert check_parity(reference, reference, TINY, "fp4")["wrong"] == "fp4 has no parity budget"


def test_rows_that_depend_on_their_batch_are_found(model: LeVJEPA) -> None:
    plain = TorchRuntime(model)
    found = check_batches(plain, TINY, "fp32")
    assert found["wrong"] == ""
    assert found["cosine"] > 0.99999

    def mixes(clips: Any) -> Tokens:
        tokens = plain(clips)
        return Tokens(cls=tokens.cls - tokens.cls.mean(axis=0) / 2, patch=tokens.patch)

    assert "a row changes with its batch" in check_batches(mixes, TINY, "fp32")["wrong"]

    def stale(clips: Any) -> Tokens:
        """A runtime that always gives as many rows as its largest batch."""
        tokens = plain(clips)
        rows = np.arange(7) % len(clips)
        return Tokens(cls=tokens.cls[rows], patch=tokens.patch[rows])

    assert "1 clips gave rows (7, 48)" in check_batches(stale, TINY, "fp32")["wrong"]


def test_time_of_a_call_is_a_median_over_rounds() -> None:
    waits: list[int] = []
    calls: list[int] = []
    seconds = seconds_per_call(lambda: calls.append(1), lambda: waits.append(1), seconds=0.01, most=3)
    assert 0 < seconds < 0.01
    assert len(waits) == 7  # warm-up, one to size the rounds, five rounds
    assert len(calls) in (2 + 5 * 1, 2 + 5 * 2, 2 + 5 * 3)


class Here(Workspace):
    """The tiny encoder in a size's place."""

    def __init__(self, model: LeVJEPA, tmp_path: Path) -> None:
        super().__init__("levjepa-nano", tmp_path)
        self.config = TINY
        self.__dict__["model"] = model


def part() -> Part:
    return Part(encoder="levjepa-nano", backend="torch", precision="fp32")


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "time_clips", lambda runtime, config: {"clips_per_second": 100.0})


def test_right_part_is_checked_and_then_timed(model: LeVJEPA, tmp_path: Path, no_clock: None) -> None:
    done = part()
    run_part(done, lambda workspace: TorchRuntime(model), Here(model, tmp_path), FLOORS)
    assert (done.status, done.reason) == ("right", "")
    assert done.checks.keys() == {"parity", "batches"}
    assert done.speed["gemm_share"] == pytest.approx(100 * clip_flops(TINY) / 1e12)
    assert "100.0 clips/s" in line_of(done)


def test_wrong_part_is_never_timed(model: LeVJEPA, tmp_path: Path) -> None:
    done = part()
    other = lively_model(TINY, seed=9)
    run_part(done, lambda workspace: TorchRuntime(other), Here(model, tmp_path), FLOORS)
    assert done.status == "wrong"
    assert done.reason.startswith("parity: cls_cosine")
    assert done.speed == {}


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (MissingDependency("tensorrt", "gpu"), "unavailable", "tensorrt is not installed"),
        (BundleError("cannot parse"), "wrong", "cannot parse"),
        (RuntimeError("CUDA error: out of memory"), "wrong", "RuntimeError: CUDA error"),
    ],
)
def test_what_cannot_run_ends_its_part_with_a_reason(
    model: LeVJEPA, tmp_path: Path, error: Exception, status: str, reason: str
) -> None:
    def fails(workspace: Workspace) -> Any:
        raise error

    done = part()
    run_part(done, fails, Here(model, tmp_path), FLOORS)
    assert done.status == status
    assert reason in done.reason
    assert reason in line_of(done)


def test_variant_that_failed_is_skipped_on_the_next_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(part: Part, *rest: Any) -> None:
        ran.append(part.encoder)
        part.status = "wrong" if part.precision == "fp16" else "right"

    monkeypatch.setattr(gpu_check, "run_part", run)
    parts = list(run_parts(["levjepa-nano", "levjepa-large"], tmp_path, FLOORS, float("inf")))
    assert len(parts) == 2 * len(VARIANTS)
    assert ran.count("levjepa-large") == len(VARIANTS) * 2 // 3
    skipped = [one for one in parts if one.status == "skipped"]
    assert {one.reason for one in skipped} == {"was wrong on an encoder before"}
    late = list(run_parts(["levjepa-nano"], tmp_path, FLOORS, 0.0))
    assert {(one.status, one.reason) for one in late} == {("skipped", "out of time")}


def large(share: float, **changes: Any) -> Part:
    facts = {"encoder": "levjepa-large", "backend": "torch", "precision": "bf16", "status": "right"} | changes
    return Part(**facts, speed={"clips_per_second": 200.0, "gemm_share": share})


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([large(0.61)], 0),
        ([large(0.59)], 1),
        ([large(0.59), large(0.7, backend="tensorrt")], 0),
        ([large(0.61), Part(encoder="levjepa-nano", backend="torch", precision="fp16", status="wrong")], 1),
        ([large(0.61), Part(encoder="levjepa-nano", backend="tensorrt", precision="fp16", status="unavailable")], 0),
        ([large(0.9, precision="fp16")], 1),
        ([Part(encoder="levjepa-nano", backend="tensorrt", precision="fp16", status="unavailable")], 1),
    ],
)
def test_exit_code_wants_something_right_nothing_wrong_and_the_target(parts: list[Part], code: int) -> None:
    report = make_report(parts, FLOORS, {"name": "NVIDIA H200"}, quick=False)
    assert exit_code(parts, report["targets"]) == code
    assert json.loads(json.dumps(report)).keys() >= {"machine", "versions", "results", "targets"}


def test_command_writes_its_report_and_ends_with_it(
    model: LeVJEPA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_clock: None
) -> None:
    monkeypatch.setattr(gpu_check, "find_gpu", lambda: H200)
    monkeypatch.setattr(gpu_check, "gemm_rates", lambda: FLOORS)
    monkeypatch.setattr(gpu_check, "Workspace", lambda encoder, folder: Here(model, folder))
    monkeypatch.setattr(GpuVariant, "open", lambda self, workspace: TorchRuntime(model))
    monkeypatch.setattr(gpu_check, "VARIANTS", (GpuVariant(backend="torch", precision="fp32"),))
    result = CliRunner().invoke(gpu_check_command, ["--out", str(tmp_path / "r"), "--quick"], catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(result.stdout.splitlines()[-1])
    assert report == json.loads((tmp_path / "r" / "gpu_check.json").read_text())
    assert report["machine"]["gpu"]["name"] == "NVIDIA H200"
    assert [row["status"] for row in report["results"]] == ["right"]


def test_workspace_makes_the_reference_once(model: LeVJEPA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Here(model, tmp_path)
    first = workspace.reference(random_clips(TINY, 1))
    monkeypatch.setattr("coldframe.bench.gpu_variants.TorchRuntime", None)
    assert workspace.reference(random_clips(TINY, 1)) is first
    assert workspace.graph("fp16").is_file()


@pytest.mark.gpu
def test_gemm_rates_and_handoff_on_a_gpu(model: LeVJEPA) -> None:
    from coldframe.export.torch_cuda import open_torch_cuda

    rates = gpu_measures.gemm_rates()
    assert rates["bf16"] > rates["fp32"] > 0
    assert gpu_measures.check_handoff(open_torch_cuda(model, precision="fp32"), TINY)["wrong"] == ""
