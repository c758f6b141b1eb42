"""What `gpu_check` measures: parity, independence of the batch, the hand-off on the GPU, and speed against GEMM.

Each check gives a JSON-ready record with `wrong`: what is wrong, in words, or an empty text.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from coldframe.export.config import LeVJEPAConfig
from coldframe.export.cuda import full_accumulation, new_stream
from coldframe.export.frame_attention import TORCH_DTYPES
from coldframe.export.parity import BUDGETS, Encode, cosine, measure_parity, over_budget
from coldframe.export.pixels import Clips

SEED = 7
_GEMM = (8 * 3137, 1024, 4096)  # the MLP of LeVJEPA-L on eight clips
_HANDOFF_TRIALS = 5
_LATE_CYCLES = 100_000_000  # about 0.05 s of the GPU's clock
# Least cosine of a row to itself in another batch: kernels differ with the batch, so half types round differently.
_BATCH_COSINE = {"fp32": 0.99999, "bf16": 0.999, "fp16": 0.999}


def random_clips(config: LeVJEPAConfig, count: int) -> Clips:
    """uint8 noise `(count, T, H, W, 3)`."""
    shape = (count, config.num_frames, config.img_size, config.img_size, 3)
    return np.random.default_rng(SEED).integers(0, 256, shape, dtype=np.uint8)


def check_parity(runtime: Encode, reference: Encode, config: LeVJEPAConfig, precision: str) -> dict[str, Any]:
    """Parity with the reference, within the budget of `precision`; a precision without a budget is wrong."""
    record = measure_parity(reference, runtime, config)
    misses = over_budget(record, precision) if precision in BUDGETS else [f"{precision} has no parity budget"]
    return {**record, "wrong": "; ".join(misses)}


def check_batches(runtime: Encode, config: LeVJEPAConfig, precision: str) -> dict[str, Any]:
    """Seven clips at once, in fives, and one by one: as many rows out as in, and each the same."""
    clips = random_clips(config, 7)
    whole = runtime(clips)
    worst, largest = 1.0, 0.0
    for size in (1, 5):
        for start in range(0, len(clips), size):
            rows = slice(start, start + size)
            part = runtime(clips[rows])
            for one, other in ((whole.cls[rows], part.cls), (whole.patch[rows], part.patch)):
                if one.shape != other.shape:
                    return {"wrong": f"{len(clips[rows])} clips gave rows {other.shape}"}
                worst = min(worst, float(cosine(one, other).min()))
                largest = max(largest, float(np.abs(one - other).max()))
    limit = _BATCH_COSINE[precision]
    wrong = "" if worst >= limit else f"a row changes with its batch: cosine {worst:.6f}, allowed is at least {limit}"
    return {"cosine": worst, "max_abs": largest, "wrong": wrong}


def check_handoff(runtime: Any, config: LeVJEPAConfig) -> dict[str, Any]:
    """Clips of a producer that is late, with its event, against the same after a forced sync: equal to the bit.

    `late` says that the producer really was: another stream, which did not wait, still saw zeros.
    """
    source = torch.from_numpy(random_clips(config, 2)).cuda()
    torch.cuda.synchronize()
    wanted = {name: out.clone() for name, out in runtime.encode_device(source).items()}
    producer, peeking, late, differing = new_stream(), new_stream(), 0, 0
    for _ in range(_HANDOFF_TRIALS):
        target = torch.zeros_like(source)
        torch.cuda.synchronize()
        with torch.cuda.stream(producer):
            torch.cuda._sleep(_LATE_CYCLES)  # type: ignore[no-untyped-call]
            target.copy_(source)
            ready = producer.record_event()
        with torch.cuda.stream(peeking):
            peeked = target.clone()
        peeking.synchronize()
        late += int(not peeked.any())
        got = runtime.encode_device(target, ready=ready)
        torch.cuda.synchronize()
        differing += int(not all(torch.equal(out, wanted[name]) for name, out in got.items()))
    wrong = f"{differing} of {_HANDOFF_TRIALS} hand-offs gave other tokens than a forced sync" if differing else ""
    if not wrong and late < _HANDOFF_TRIALS:
        wrong = f"the producer was late in {late} of {_HANDOFF_TRIALS} trials only, so this shows nothing"
    return {"trials": _HANDOFF_TRIALS, "late": late, "differing": differing, "wrong": wrong}


def clip_flops(config: LeVJEPAConfig) -> float:
    """Floating-point operations of one clip with block-causal attention; 2.41e12 for LeVJEPA-L."""
    patches, dim = config.grid**2, config.embed_dim
    tokens = config.num_frames * patches + 1
    linear = 2 * tokens * (4 * dim * dim + 2 * dim * config.mlp_dim)
    pairs = patches * patches * config.num_frames * (config.num_frames + 1) // 2 + tokens
    embedding = 2 * (tokens - 1) * 3 * config.patch_size**2 * dim
    return float(config.depth * (linear + 4 * dim * pairs) + embedding)


def gemm_rates() -> dict[str, float]:
    """Measured matrix product rate of each type in FLOP/s; float32 without TF32."""
    rates = {}
    rows, inner, cols = _GEMM
    for precision, dtype in TORCH_DTYPES.items():
        a = torch.randn(rows, inner, device="cuda").to(dtype)
        b = torch.randn(inner, cols, device="cuda").to(dtype)

        def multiply(a: torch.Tensor = a, b: torch.Tensor = b) -> None:
            torch.matmul(a, b)

        with full_accumulation():
            rates[precision] = 2.0 * rows * inner * cols / seconds_per_call(multiply, torch.cuda.synchronize)
    return rates


def time_clips(runtime: Any, config: LeVJEPAConfig) -> dict[str, float]:
    """Clips a second: eight at once and one at once on the GPU, and eight at once from and to numpy arrays."""
    clips, wait = random_clips(config, 8), torch.cuda.synchronize
    numpy_rate = 8 / seconds_per_call(lambda: runtime(clips), wait)
    if not hasattr(runtime, "encode_device"):
        return {"clips_per_second": numpy_rate, "numpy_clips_per_second": numpy_rate}
    eight = torch.from_numpy(clips).cuda()
    one = eight[:1].clone()
    return {
        "clips_per_second": 8 / seconds_per_call(lambda: runtime.encode_device(eight), wait),
        "single_clips_per_second": 1 / seconds_per_call(lambda: runtime.encode_device(one), wait),
        "numpy_clips_per_second": numpy_rate,
    }


def seconds_per_call(
    call: Callable[[], object], wait: Callable[[], None], *, seconds: float = 1.0, most: int = 200
) -> float:
    """Median over five rounds of as many calls as fit into `seconds` in all, at least one a round, after a warm-up."""
    call()
    wait()
    started = time.perf_counter()
    call()
    wait()
    once = time.perf_counter() - started
    calls = max(1, min(most, int(seconds / 5 / max(once, 1e-6))))
    rounds = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        rounds.append((time.perf_counter() - started) / calls)
    return float(np.median(rounds))
