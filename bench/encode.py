"""Encode: one clip through ViT-L in every runtime, beside PyTorch as it would be written today, and beside the floor.

The peers are the reference with one masked attention a block, in float32 and in bfloat16. The floor is a chain of the
encoder's largest matrix product, `(3137 x 1024) x (1024 x 4096)` and back, in the same runtime and precision, with
nothing between; PyTorch's rate for the same chain stands beside it, so that a slow floor would show. Work is counted
as what block-causal attention needs, 2.41 TFLOP a clip; a runtime that computes the masked half as well gets no
credit for it.

With `quick` the encoder has 1 of its 24 blocks. Ratios then weigh the embedding more, and caches are warmer. Without
it, smaller encoders, ONNX Runtime on them, batches of eight, the time of an export and peak memory follow.
"""

import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from coldframe.bench.large_export import measure_export
from coldframe.bench.report import Result, Target, Timing, interleave
from coldframe.errors import BundleError
from coldframe.export import SIZES, LeVJEPAConfig
from coldframe.export.checkpoint import load_random
from coldframe.export.graph import write_graph
from coldframe.export.host import check_threads
from coldframe.export.onnx_runtime import OnnxRuntime
from coldframe.export.openvino_model import product_chain
from coldframe.export.openvino_runtime import OpenVinoRuntime
from coldframe.export.parity import BUDGETS, compare, parity_clips
from coldframe.export.pixels import Clips, check_clips
from coldframe.export.tokens import Tokens
from coldframe.export.torch_runtime import TorchRuntime, normalise

if TYPE_CHECKING:
    from coldframe.export.levjepa import LeVJEPA

PRODUCTS = 4  # enough that the conversion of the chain's ends does not show
Encoder = Callable[[Clips], Tokens]


class MaskedNarrow:
    """The reference cast to bfloat16 as a whole, which is what `model.to(torch.bfloat16)` gives."""

    def __init__(self, model: "LeVJEPA") -> None:
        self._model = deepcopy(model).to(torch.bfloat16)

    def __call__(self, clips: Clips) -> Tokens:
        config = self._model.config
        pixels = normalise(torch.from_numpy(check_clips(clips, config))).to(torch.bfloat16)
        before = torch.get_num_threads()
        torch.set_num_threads(check_threads(None))
        try:
            with torch.inference_mode():
                hidden = self._model(pixel_values=pixels).last_hidden_state.float().numpy()
        finally:
            torch.set_num_threads(before)
        grid = (len(hidden), config.num_frames, config.grid, config.grid, config.embed_dim)
        return Tokens(cls=hidden[:, 0].copy(), patch=hidden[:, 1:].copy().reshape(grid))


def clip_operations(config: LeVJEPAConfig) -> float:
    """Floating-point operations of one clip's matrix products, attention counted over the frames that it reads."""
    frame, dim = config.grid**2, config.embed_dim
    tokens = config.num_frames * frame + 1
    linear = tokens * (4 * dim * dim + 2 * dim * config.mlp_dim)
    seen = sum(frame * frame * (t + 1) for t in range(config.num_frames)) + tokens
    embed = config.num_frames * frame * 3 * config.patch_size**2 * dim
    return 2.0 * (config.depth * (linear + 2 * dim * seen) + embed)


def measure(quick: bool) -> tuple[list[Result], list[Target]]:
    """Rates of the large encoder, and with `quick` off of smaller ones and of larger batches too."""
    large = replace(SIZES["levjepa-large"], depth=1) if quick else SIZES["levjepa-large"]
    results, targets = _measure_against_peers(large, "1 block of large" if quick else "large", runs=2 if quick else 3)
    if not quick:
        for name, runs in (("levjepa-nano", 5), ("levjepa-base", 2)):
            results += _measure_batches(SIZES[name], name, runs=runs)
        exported, limits = measure_export("levjepa-large")
        results += exported
        targets += limits
    return results, targets


def _measure_against_peers(config: LeVJEPAConfig, name: str, *, runs: int) -> tuple[list[Result], list[Target]]:
    model = load_random(config, seed=0)
    clip = parity_clips(config)["moving"]
    tokens = config.num_frames * config.grid**2 + 1
    sizes = (tokens, config.embed_dim, config.mlp_dim)
    chains: list[Callable[[], object]] = [
        product_chain(*sizes, precision="fp32", products=PRODUCTS),
        product_chain(*sizes, precision="bf16", products=PRODUCTS),
        torch_chain(*sizes, dtype=torch.float32, products=PRODUCTS),
        torch_chain(*sizes, dtype=torch.bfloat16, products=PRODUCTS),
    ]
    with tempfile.TemporaryDirectory(prefix="coldframe-bench-") as folder:
        graph = Path(folder, "encoder.fp32.onnx")
        write_graph(model, graph, metadata={})
        encoders: dict[str, tuple[Encoder, str]] = {
            "PyTorch fp32 masked": (TorchRuntime(model), "fp32"),
            "PyTorch bf16 masked": (MaskedNarrow(model), "bf16"),
            "torch bf16": (TorchRuntime(model, precision="bf16"), "bf16"),
            "onnxruntime fp32": (OnnxRuntime(graph, config), "fp32"),
            "openvino fp32": (OpenVinoRuntime(graph, config), "fp32"),
            "openvino bf16": (OpenVinoRuntime(graph, config, precision="bf16"), "bf16"),
        }
        _require_equal(encoders, clip)
        contenders: list[Callable[[], object]] = [_bound(encode, clip) for encode, _ in encoders.values()]
        for run in chains:
            run()
        # The comparison and this were the warm-up.
        *timings, wide, narrow, torch_wide, torch_narrow = interleave([*contenders, *chains], runs=runs, warmups=0)
    floor_operations = 2.0 * tokens * config.embed_dim * config.mlp_dim * PRODUCTS
    timed = dict(zip(encoders, timings, strict=True))
    floors = {"fp32": floor_operations / wide.median, "bf16": floor_operations / narrow.median}
    results, targets = _report(timed, floors, (wide, narrow), clip_operations(config), name)
    for precision, ours, other in (("fp32", wide, torch_wide), ("bf16", narrow, torch_narrow)):
        results.append(
            Result(
                name=f"PyTorch {precision} products alone",
                value=floor_operations / other.median / 1e9,
                unit="GFLOP/s",
                spread=other.spread,
                reference="openvino's products",
                ratio=ours.median / other.median,
                cpu_ratio=ours.cpu_median / other.cpu_median,
            )
        )
    return results, targets


def torch_chain(
    rows: int, width: int, hidden: int, *, dtype: torch.dtype, products: int, threads: int | None = None
) -> Callable[[], object]:
    """The chain of `product_chain`, in PyTorch on all usable cores or on `threads`."""
    draws = torch.Generator().manual_seed(0)
    up, down = (torch.randn(shape, generator=draws).mul(0.02).to(dtype) for shape in ((hidden, width), (width, hidden)))
    source, used = torch.randn((rows, width), generator=draws).to(dtype), check_threads(threads)

    def run() -> object:
        before = torch.get_num_threads()
        torch.set_num_threads(used)
        try:
            values = source
            with torch.inference_mode():
                for _ in range(products // 2):
                    values = functional.linear(functional.linear(values, up), down)
        finally:
            torch.set_num_threads(before)
        return values

    return run


def _report(
    timed: dict[str, Timing],
    floors: dict[str, float],
    chains: tuple[Timing, Timing],
    operations: float,
    name: str,
) -> tuple[list[Result], list[Target]]:
    peer, narrow_peer = timed["PyTorch fp32 masked"].median, timed["PyTorch bf16 masked"].median
    results = [
        Result(
            name=f"{what}, {name}",
            value=operations / timing.median / 1e9,
            unit="GFLOP/s",
            spread=timing.spread,
            reference="PyTorch fp32 masked",
            ratio=peer / timing.median,
            cpu_ratio=timed["PyTorch fp32 masked"].cpu_median / timing.cpu_median,
        )
        for what, timing in timed.items()
    ]
    for (precision, rate), chain in zip(floors.items(), chains, strict=True):
        encoder, cpu_rate = timed[f"openvino {precision}"], rate * chain.median / chain.cpu_median
        results.append(
            Result(
                name=f"openvino {precision} products alone",
                value=rate / 1e9,
                unit="GFLOP/s",
                spread=chain.spread,
                reference="of it in the encoder",
                ratio=operations / encoder.median / rate,
                cpu_ratio=operations / encoder.cpu_median / cpu_rate,
            )
        )
    wide, narrow = timed["openvino fp32"].median, timed["openvino bf16"].median
    return results, [
        Target(name="openvino bf16 / PyTorch fp32 masked", value=peer / narrow, wants=5.0),
        Target(name="openvino bf16 / PyTorch bf16 masked", value=narrow_peer / narrow, wants=3.0),
        Target(name="openvino fp32 / PyTorch fp32 masked", value=peer / wide, wants=2.5),
        Target(name="openvino bf16 / its products alone", value=operations / narrow / floors["bf16"], wants=0.9),
        Target(name="openvino fp32 / its products alone", value=operations / wide / floors["fp32"], wants=0.9),
    ]


def _measure_batches(config: LeVJEPAConfig, name: str, *, runs: int) -> list[Result]:
    """Rates of one clip and of eight at once, in OpenVINO's two precisions and in ONNX Runtime."""
    model = load_random(config, seed=0)
    clip = parity_clips(config)["moving"]
    eight = clip.repeat(8, axis=0)
    results = []
    with tempfile.TemporaryDirectory(prefix="coldframe-bench-") as folder:
        graph = Path(folder, "encoder.fp32.onnx")
        write_graph(model, graph, metadata={})
        encoders: dict[str, tuple[Encoder, str]] = {
            "reference": (TorchRuntime(model), "fp32"),
            "openvino fp32": (OpenVinoRuntime(graph, config), "fp32"),
            "openvino bf16": (OpenVinoRuntime(graph, config, precision="bf16"), "bf16"),
            "onnxruntime fp32": (OnnxRuntime(graph, config), "fp32"),
        }
        _require_equal(encoders, clip)
        for what, (encode, _) in list(encoders.items())[1:]:
            one, many = interleave([_bound(encode, clip), _bound(encode, eight)], runs=runs, warmups=0)
            for count, timing in ((1, one), (8, many)):
                rate = count / timing.median
                results.append(
                    Result(
                        name=f"{what}, {name}, batch {count}",
                        value=rate,
                        unit="clips/s",
                        spread=timing.spread,
                        reference="batch 1",
                        ratio=rate * one.median,
                    )
                )
    return results


def _bound(encode: Encoder, clips: Clips) -> Callable[[], object]:
    return lambda: encode(clips)


def _require_equal(encoders: dict[str, tuple[Encoder, str]], clip: Clips) -> None:
    """Refuse to time an encoder whose tokens are not those of the first one, within its precision's budget."""
    (_, (first, _)), *others = encoders.items()
    reference = first(clip)
    for name, (encode, precision) in others:
        found, budget = compare(reference, encode(clip)), BUDGETS[precision]
        near = found["cls_cosine"] >= budget.cls_cosine and found["patch_cosine_worst"] >= budget.patch_cosine_worst
        if not near:
            raise BundleError(f"{name} gives other tokens than PyTorch ({found}), so its speed means nothing.")
