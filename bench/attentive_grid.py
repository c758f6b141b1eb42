"""Attentive grid: 20 heads in one pass over the tokens, against its floor and against plain heads.

The floor is the larger of two measured times on the same tokens: reading each of them once through the store from the
page cache, and the multiply-adds of the folded pooler, forward and backward, at the rate that products with these
tokens reach in float32, in the fastest of three arrangements. LayerNorm, softmax, MLPs, classifiers and the adding of
gradients are not in the floor; they are in ours, as is the loader. The optimiser's update, one for the 256 clips of the
preset's batch, is neither forward nor backward and is given apart.
"""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from coldframe.bench.report import Result, Target, interleave
from coldframe.probes.attentive import grid
from coldframe.probes.core_threads import spread
from coldframe.probes.heads import HeadShape
from coldframe.probes.kept_memory import KeptMemory
from coldframe.probes.loader import TokenLoader, micro_batch_rows
from coldframe.probes.presets import PRESETS
from coldframe.probes.token_view import TokenView
from coldframe.probes.training import Training
from coldframe.store import Store

_PRODUCT_CLIPS = 8  # more would only measure the same products longer


def measure_grid(store: Store, runs: int) -> tuple[list[Result], list[Target]]:
    """One epoch of 20 heads over `store`; its floor; one plain head, which has to be trained 20 times."""
    preset = PRESETS["levjepa"]
    shape = HeadShape(preset=preset, dim=store.geometry.dim, classes=50)
    settings = grid(preset, [0])
    labels = np.arange(store.rows) % 50
    training = Training.start(shape, settings, 1000, torch.device("cpu"))
    memory = KeptMemory()
    loader, in_order = _loader(store, 0, memory), _loader(store, None, memory)
    epochs = itertools.count()

    def ours() -> None:
        for _ in range(preset.batch // store.rows):
            for piece in loader.epoch(next(epochs)):
                training.accumulate(piece, labels, preset.batch)
        training.finish_gradients()

    def read() -> None:
        for _ in in_order.epoch():
            pass

    some = torch.from_numpy(next(iter(in_order.epoch())).maps[0][:_PRODUCT_CLIPS]).float()
    queries = len(settings) * preset.heads
    contenders = [ours, read, training.update, _plain_step(some[:1], preset.heads), *_products(some, queries)]
    both_ways, reading, update, one, *products = interleave(contenders, runs=runs)
    gemm = min(products, key=lambda timing: timing.median)
    clip, update_clip = (timing.median / preset.batch for timing in (both_ways, update))  # seconds
    read_clip = reading.median / store.rows
    with_tokens, inside = 4 * queries * some[0].numel(), 3 * len(settings) * store.geometry.dim**2  # multiply-adds
    gemm_clip = gemm.median / len(some) * (1 + inside / with_tokens)
    floor = max(read_clip, gemm_clip)
    plain_clip = one.median * len(settings)
    name = f"floor ({'reading' if read_clip > gemm_clip else 'GEMM'})"
    results = [
        _against("20 attentive heads, both ways", clip, both_ways.spread, name, floor),
        _against("  with the update", clip + update_clip, update.spread, name, floor),
        Result(name="floor: read tokens once", value=1 / read_clip, unit="clips/s", spread=reading.spread),
        Result(name="floor: folded products", value=1 / gemm_clip, unit="clips/s", spread=gemm.spread),
        *(
            Result(name=f"  {how}", value=2e-9 * with_tokens * len(some) / t.median, unit="GFLOP/s", spread=t.spread)
            for how, t in zip(("of all clips at once", "clip by clip", "a clip a core"), products, strict=True)
        ),
        Result(name="read tokens once", value=some[0].numel() * 2e-6 / read_clip, unit="MB/s", spread=reading.spread),
        _against("20 plain heads, one after another", plain_clip, one.spread, "20 heads at once", clip + update_clip),
    ]
    return results, [
        Target(name="20-head grid: floor / time (1.5x)", value=floor / clip, wants=1 / 1.5),
        Target(name="20-head grid / 20 plain heads", value=plain_clip / (clip + update_clip), wants=10.0),
    ]


def _loader(store: Store, seed: int | None, memory: KeptMemory) -> TokenLoader:
    view = TokenView(cls=True)
    micro = micro_batch_rows(store.rows, view.row_bytes(store))
    return TokenLoader(
        store=store,
        rows=store.ok_rows(),
        view=view,
        batch_rows=micro,
        seed=seed,
        memory=memory,
        yields=seed is not None,
    )


def _against(name: str, seconds: float, spread: float, reference: str, other: float) -> Result:
    """Clips a second, and how many times as fast as `other` seconds a clip."""
    return Result(
        name=name, value=1 / seconds, unit="clips/s", spread=spread, reference=reference, ratio=other / seconds
    )


def _products(tokens: Tensor, queries: int) -> list[Callable[[], None]]:
    """The folded pooler's four products with tokens, for logits, means and their gradients, in three arrangements."""
    samples, length, dim = tokens.shape
    flat, reads = tokens.flatten(0, 1), torch.randn(queries, dim) * 0.02
    weights = torch.softmax(reads @ flat.mT, dim=-1)
    rooms = [(torch.empty(queries, length), torch.empty(queries, dim)) for _ in range(torch.get_num_threads())]

    def at_once() -> None:
        reads @ flat.mT
        means = weights @ flat
        means @ flat.mT
        weights @ flat

    def clip(thread: int, number: int) -> None:
        logits, means = rooms[thread]
        for _ in range(2):
            torch.mm(reads, tokens[number].mT, out=logits)
            torch.mm(logits, tokens[number], out=means)

    def by_clip() -> None:
        for number in range(samples):
            clip(0, number)

    def by_core() -> None:
        spread(clip, samples, min(len(rooms), samples))

    return [at_once, by_clip, by_core]


def _plain_step(tokens: Tensor, heads: int) -> Callable[[], None]:
    """Forward and backward of one head in the plain form on one clip: keys and values of every token."""
    dim = tokens.shape[-1]
    norm, kv = torch.nn.LayerNorm(dim), torch.nn.Linear(dim, 2 * dim)
    query = torch.nn.Parameter(torch.randn(1, 1, dim) * 0.02)

    def run() -> None:
        k, v = (part.view(1, -1, heads, dim // heads).transpose(1, 2) for part in kv(norm(tokens)).chunk(2, dim=-1))
        q = query.view(1, 1, heads, -1).transpose(1, 2)
        read = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        torch.autograd.backward(read.square().sum())

    return run
