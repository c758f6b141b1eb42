"""Probe: a grid of attentive heads, the closed-form and logistic grids, and the loader's memory."""

import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.bench.attentive_grid import measure_grid
from coldframe.bench.report import Result, Target, interleave
from coldframe.bench.synthetic import empty_store
from coldframe.errors import MissingDependency
from coldframe.probes.loader import TokenLoader
from coldframe.probes.logistic import STRENGTHS, LinearHead, choose_strength, fit_logistic
from coldframe.probes.ridge import PENALTIES, choose, fit_ridge
from coldframe.probes.token_view import TokenView
from coldframe.store import (
    Status,
    Store,
    TokenGeometry,
    UnitResult,
    open_store,
    write_unit,
)

_EQUAL_ACCURACY = 0.01


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the inputs are."""

    clips: int
    dim: int
    side: int
    runs: int
    ridge: tuple[int, int]  # rows, dim
    logistic: tuple[int, int, int]  # rows, dim, classes
    strengths: tuple[float, ...]


QUICK = Size(clips=32, dim=64, side=14, runs=2, ridge=(2000, 128), logistic=(400, 48, 5), strengths=STRENGTHS[::9])
FULL = Size(clips=256, dim=1024, side=14, runs=2, ridge=(20_000, 1024), logistic=(4000, 256, 20), strengths=STRENGTHS)


def measure(quick: bool) -> tuple[list[Result], list[Target]]:
    """Rates of the readouts against their floors and peers."""
    size = QUICK if quick else FULL
    results: list[Result] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".bench-") as folder:
        store = _store(Path(folder, "S.zarr"), size.clips, size.dim, size.side)
        parts = [measure_grid(store, size.runs), _ridge(size), _logistic(size), _memory(Path(folder))]
    for found, wanted in parts:
        results += found
        targets += wanted
    return results, targets


def _ridge(size: Size) -> tuple[list[Result], list[Target]]:
    """Fit of 41 penalties; choosing among them is apart."""
    rows, dim = size.ridge
    features, labels = _features(rows + rows // 4, dim, 50)
    timing = interleave([lambda: fit_ridge(features[:rows], labels[:rows], 50)], runs=size.runs)[0]
    heads = fit_ridge(features[:rows], labels[:rows], 50)
    started = time.perf_counter()
    choose(heads, features[rows:], labels[rows:], 50)
    chosen = time.perf_counter() - started
    name = f"ridge {rows} x {dim}, {len(PENALTIES)} lambdas"
    return [
        Result(name=name, value=timing.median, unit="s", spread=timing.spread),
        Result(name="  choosing among them", value=chosen, unit="s", spread=0.0),
    ], [Target(name="ridge: 1 s / time", value=1 / timing.median, wants=1.0)]


def _logistic(size: Size) -> tuple[list[Result], list[Target]]:
    """The grid of C against scikit-learn's loop over it, at the same tolerance and equal validation accuracy."""
    rows, dim, classes = size.logistic
    features, labels = _features(rows + rows // 2, dim, classes)
    train, other = slice(0, rows), slice(rows, None)
    targets = np.eye(classes, dtype=np.float32)[labels[train]]
    found: list[list[LinearHead]] = []
    peers: list[float] = []

    def ours() -> None:
        heads = fit_logistic(features[train], targets, link="softmax", strengths=size.strengths, tolerance=1e-4)
        choose_strength(heads, features[other], labels[other])
        found.append(heads)

    peer = _scikit_learn_grid(features, labels, rows, size.strengths)
    mine, theirs = interleave([ours, lambda: peers.append(peer())], runs=1 if size is FULL else size.runs, warmups=0)
    accuracy = max(float((head.logits(features[other]).argmax(1) == labels[other]).mean()) for head in found[-1])
    equal = accuracy >= peers[-1] - _EQUAL_ACCURACY
    return [
        Result(
            name=f"logistic {rows} x {dim}, {len(size.strengths)} values of C",
            value=mine.median,
            unit="s",
            spread=mine.spread,
            reference="scikit-learn loop",
            ratio=theirs.median / mine.median,
        ),
        Result(name="  best validation top-1", value=accuracy, unit="share", spread=0.0),
        Result(name="  scikit-learn's", value=peers[-1], unit="share", spread=0.0),
    ], [
        Target(
            name="logistic grid / scikit-learn loop",
            value=theirs.median / mine.median if equal else 0.0,
            wants=10.0,
        )
    ]


def _scikit_learn_grid(
    features: NDArray[np.float32], labels: NDArray[np.int64], rows: int, strengths: tuple[float, ...]
) -> Callable[[], float]:
    """Best validation accuracy of a loop over the grid, on the same standardised float32 features."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingDependency("scikit-learn", "dev") from error

    def run() -> float:
        mean, scale = features[:rows].mean(axis=0), features[:rows].std(axis=0)
        standard = (features - mean) / scale
        heads = (
            LogisticRegression(C=strength, max_iter=1000).fit(standard[:rows], labels[:rows]) for strength in strengths
        )
        return max(float(head.score(standard[rows:], labels[rows:])) for head in heads)

    return run


def _memory(folder: Path) -> tuple[list[Result], list[Target]]:
    """Peak memory of one epoch over a store and over one of four times its rows."""
    peaks = []
    for clips in (64, 256):
        store = _store(folder / f"M{clips}.zarr", clips, 128, 8)
        loader = TokenLoader(
            store=store, rows=store.ok_rows(), view=TokenView(cls=True), batch_rows=4, seed=0, memory_bytes=8_000_000
        )
        tracemalloc.start()
        for _ in loader.epoch():
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return [
        Result(name="loader's peak memory, 256 clips", value=peaks[1] / 1e6, unit="MB", spread=0.0),
        Result(name="loader's peak memory, 64 clips", value=peaks[0] / 1e6, unit="MB", spread=0.0),
    ], [Target(name="loader memory: 64 / 256 clips", value=peaks[0] / peaks[1], wants=0.8)]


def _features(rows: int, dim: int, classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Overlapping classes with a falling spectrum, as frozen features have."""
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=rows)
    mix = rng.normal(size=(dim, dim)) * np.logspace(0, -2, dim)
    means = rng.normal(size=(classes, dim)) * 0.35
    features = (rng.normal(size=(rows, dim)) + means[labels]) @ mix
    return features.astype(np.float32), labels


def _store(path: Path, clips: int, dim: int, side: int) -> Store:
    """A complete store of random tokens of one video that does not exist."""
    geometry = TokenGeometry.for_tier("full", dim=dim, time=16, rows=side, cols=side)
    store = empty_store(path, clips, geometry)
    rng = np.random.default_rng(0)
    shape = (store.unit_rows, geometry.time, geometry.rows, geometry.cols, geometry.dim)
    patch = rng.standard_normal(
        shape, np.float32
    )  # of every unit, because to draw them takes longer than to write them
    for unit in range(store.unit_count):
        rows = store.unit_range(unit)
        write_unit(
            store,
            unit,
            UnitResult(
                rows=rows,
                status=np.full(len(rows), Status.OK, np.uint8),
                reason=np.zeros(len(rows), np.uint8),
                cls=rng.standard_normal((len(rows), geometry.dim), np.float32),
                patch=patch[: len(rows)],
            ),
        )
    return open_store(path)
