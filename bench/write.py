"""Write and read: a unit of full LeVJEPA-L tokens through the store, beside a plain file of the same bytes.

The floor of writing is a plain file that is written, synced and read back, because that is what a commit promises:
the bytes are on the disk and are what was meant. The floor of reading is the same bytes from a plain file, from the
page cache both times.
"""

import os
import tempfile
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.bench.report import Result, Target, interleave
from coldframe.bench.synthetic import empty_store
from coldframe.store import (
    Status,
    Store,
    TokenGeometry,
    UnitResult,
    discard_units,
    open_store,
    write_unit,
)

_BLOCK_BYTES = 1 << 22
GEOMETRY = TokenGeometry.for_tier("full", dim=1024, time=16, rows=14, cols=14)


def measure(quick: bool) -> tuple[list[Result], list[Target]]:
    """Write rate of a unit and rate of random clip reads, each against plain files."""
    clips = 16  # the smallest unit: 103 MB
    rng = np.random.default_rng(0)
    cls = rng.normal(size=(clips, GEOMETRY.dim)).astype(np.float16)
    shape = (clips, GEOMETRY.time, GEOMETRY.rows, GEOMETRY.cols, GEOMETRY.dim)
    patch = rng.normal(size=shape, scale=0.5).astype(np.float16)
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".bench-") as folder:
        store = empty_store(Path(folder) / "bench.zarr", clips, GEOMETRY)
        assert store.unit_rows == clips
        unit = UnitResult(
            rows=range(clips),
            status=np.full(clips, Status.OK, np.uint8),
            reason=np.zeros(clips, np.uint8),
            cls=cls,
            patch=patch,
        )
        plain = Path(folder, "plain")
        runs = 3 if quick else 7
        ours, raw = interleave([lambda: _write_unit(store, unit), lambda: _write_plain(plain, patch)], runs=runs)
        written = [
            _rate("write unit, full", patch.nbytes, ours.median, ours.spread, "plain file", raw.median),
            _rate("write plain file", patch.nbytes, raw.median, raw.spread),
        ]
        read = _measure_reads(open_store(store.path), plain, patch, runs)
    return written + read, [
        Target(name="write / plain file", value=written[0].ratio or 0.0, wants=0.8),
        Target(name="random clip read, GB/s", value=read[0].value / 1000, wants=1.0),
    ]


def _write_unit(store: Store, unit: UnitResult) -> None:
    discard_units(store, [0])  # a committed unit is staged and moved, which a first extraction does not do
    write_unit(store, 0, unit)


def _measure_reads(store: Store, plain: Path, patch: NDArray[np.float16], runs: int) -> list[Result]:
    """Rates of reading one clip, in shuffled order, after checking that the clip is right."""
    clip_bytes = patch[0].nbytes
    for row in range(store.rows):
        np.testing.assert_array_equal(store.patch([row])[0], patch[row].astype(np.float32))
        np.testing.assert_array_equal(_read_plain(plain, row, clip_bytes), patch[row].reshape(-1))
    rows = np.random.default_rng(1).permutation(store.rows)
    one, other = count(), count()
    ours, raw = interleave(
        [
            lambda: store.patch([int(rows[next(one) % len(rows)])]),
            lambda: _read_plain(plain, int(rows[next(other) % len(rows)]), clip_bytes),
        ],
        runs=10 * runs,
        warmups=store.rows,
    )
    return [
        _rate("read one clip at random, full", clip_bytes, ours.median, ours.spread, "plain file", raw.median),
        _rate("read one clip from plain file", clip_bytes, raw.median, raw.spread),
    ]


def _rate(
    name: str, size: int, seconds: float, spread: float, reference: str = "", floor_seconds: float | None = None
) -> Result:
    ratio = None if floor_seconds is None else floor_seconds / seconds
    return Result(name=name, value=size / seconds / 1e6, unit="MB/s", spread=spread, reference=reference, ratio=ratio)


def _write_plain(path: Path, values: NDArray[np.float16]) -> None:
    with open(path, "wb") as file:
        file.write(values.data)
        file.flush()
        os.fsync(file.fileno())
    block = bytearray(_BLOCK_BYTES)  # kept: fresh memory for all of it would cost more than reading
    with open(path, "rb", buffering=0) as file:
        while file.readinto(block):
            continue


def _read_plain(path: Path, row: int, size: int) -> NDArray[np.float16]:
    with open(path, "rb") as file:
        file.seek(row * size)
        return np.frombuffer(file.read(size), np.float16)
