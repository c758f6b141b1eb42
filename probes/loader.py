"""Loader: token batches of a store that is larger than memory.

Shards are visited in shuffled order, several at a time, each read from front to back. What was read waits in a pool of
bounded size from which batches are drawn at random, so neighbours in a video rarely share a batch. One thread reads
ahead. The order depends on the seed, the epoch and the sizes, never on timing.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError, UsageError
from coldframe.probes.token_view import (
    FrameStore,
    Int8Store,
    ShardedStore,
    TokenBatch,
    TokenView,
    held_dtype,
    token_mask,
)
from coldframe.store.int8_tokens import dequantise
from coldframe.store.schema import layer_array, scale_array

DEFAULT_MEMORY_BYTES = 4 << 30
_READ_BYTES = 8 << 20  # one read; a row of this size or more is read alone
_OPEN_SHARDS = 8
_AHEAD = 2  # batches that wait in the queue
_IN_HAND = 2  # one that is being assembled and one that the caller works on
_POLL_SECONDS = 0.1


@dataclass(kw_only=True)
class ReadRate:
    """How fast tokens came.

    Attributes:
        rows: rows delivered.
        stored_bytes: bytes of them as stored.
        seconds: time in which the caller had or waited for batches.
        waited_seconds: the part of it that the caller waited.
    """

    rows: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0

    def to_dict(self) -> dict[str, float | None]:
        """Rates in rows and MB a second, None before the first row."""
        whole = self.seconds or None
        return {
            "rows": self.rows,
            "rows_per_s": whole and self.rows / whole,
            "mb_per_s": whole and self.stored_bytes / whole / 1e6,
            "waited_share": whole and self.waited_seconds / whole,
        }


@dataclass(kw_only=True, eq=False)
class TokenLoader:
    """Reads every one of `rows` exactly once an epoch.

    Attributes:
        store: where the tokens are.
        rows: (n,) rows with status ok, n >= 1.
        view: which of their tokens.
        batch_rows: rows of a batch; the last may have fewer.
        seed: of the order; None gives ascending rows.
        memory_bytes: bound on tokens held at once, batches in the caller's hands included. The store's own buffers,
            one read large, come on top. Int8 tokens wait as they are stored, and are float32 in batches.
        rate: of all epochs so far.

    Raises:
        UsageError: the store does not hold these tokens, or the memory does not hold a few batches.
    """

    store: ShardedStore
    rows: NDArray[np.int64]
    view: TokenView
    batch_rows: int
    seed: int | None = None
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    rate: ReadRate = field(default_factory=ReadRate)

    def __post_init__(self) -> None:
        if self.batch_rows < 1:
            raise UsageError(f"batch_rows is {self.batch_rows}; allowed is 1 or more.")
        self.view.check(self.store)
        self.rows = np.unique(self.rows)
        needed = self._fixed_bytes + self._pooled_row_bytes * self.batch_rows
        if self.memory_bytes < needed:
            raise UsageError(
                f"the loader may use {self.memory_bytes} bytes; batches of {self.batch_rows} rows need {needed}. "
                "Allow more memory or use smaller batches."
            )

    @property
    def _is_int8(self) -> bool:
        return self.store.recipe.dtype == "int8"

    @property
    def _row_bytes(self) -> int:
        """Bytes of a row in a batch."""
        return self.view.row_bytes(self.store)

    @property
    def _pooled_row_bytes(self) -> int:
        """Bytes of a row that was read and waits to be drawn."""
        if not self._is_int8:
            return self._row_bytes
        geometry = self.store.geometry
        patches = geometry.time * geometry.rows * geometry.cols * self.view.maps
        return patches * (geometry.dim + 4) + 2 * geometry.dim * self.view.cls

    @property
    def _read_rows(self) -> int:
        return int(np.clip(_READ_BYTES // self._pooled_row_bytes, 1, self.batch_rows))

    @property
    def _fixed_bytes(self) -> int:
        """Bytes held outside the pool: one read, and the batches of the queue and in hand."""
        return self._pooled_row_bytes * self._read_rows + self._row_bytes * self.batch_rows * (_AHEAD + _IN_HAND)

    @property
    def pool_rows(self) -> int:
        """Rows among which a batch is drawn."""
        return (self.memory_bytes - self._fixed_bytes) // self._pooled_row_bytes

    def epoch(self, number: int = 0) -> Iterator[TokenBatch]:
        """Batches of one pass; another `number` gives another order."""
        ready: queue.Queue[TokenBatch | BaseException | None] = queue.Queue(maxsize=_AHEAD)
        stop = threading.Event()

        def put(item: TokenBatch | BaseException | None) -> bool:
            while not stop.is_set():
                try:
                    ready.put(item, timeout=_POLL_SECONDS)
                except queue.Full:
                    continue
                return True
            return False

        def produce() -> None:
            try:
                for batch in self._batches(number):
                    if not put(batch):
                        return
                put(None)
            except BaseException as error:  # the caller's thread raises it
                put(error)

        reader = threading.Thread(target=produce, name="token-loader", daemon=True)
        reader.start()
        try:
            yield from self._deliver(ready)
        finally:
            stop.set()
            reader.join()

    def _deliver(self, ready: "queue.Queue[TokenBatch | BaseException | None]") -> Iterator[TokenBatch]:
        started = time.perf_counter()
        while True:
            asked = time.perf_counter()
            item = ready.get()
            now = time.perf_counter()
            self.rate.waited_seconds += now - asked
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                self.rate.rows += len(item.rows)
                self.rate.stored_bytes += self._stored_row_bytes * len(item.rows)
                yield item
            now = time.perf_counter()
            self.rate.seconds += now - started
            started = now
            if item is None:
                return

    @property
    def _stored_row_bytes(self) -> int:
        if self._is_int8:
            return self._pooled_row_bytes
        width = np.dtype(held_dtype(self.store)).itemsize
        return self._row_bytes // width * np.dtype(self.store.recipe.dtype).itemsize

    def _batches(self, number: int) -> Iterator[TokenBatch]:
        rng = None if self.seed is None else np.random.default_rng([self.seed, number])
        keep = self.batch_rows if rng is None else self.pool_rows
        pool: list[_Row] = []
        for rows in _reads(self.rows, self.store.unit_rows, self._read_rows, rng):
            while len(pool) >= max(keep, self.batch_rows):
                yield self._assemble(_draw(pool, self.batch_rows, rng))
            pool += self._read(rows)
        while pool:
            yield self._assemble(_draw(pool, min(self.batch_rows, len(pool)), rng))

    def _maps(self, rows: NDArray[np.int64], layer: int | None) -> NDArray[Any]:
        """(n, L, dim) tokens as they wait in memory."""
        held = held_dtype(self.store)
        if layer is None and not self.store.geometry.keeps_patches:
            maps = cast(FrameStore, self.store).frame_cls(rows).astype(held)
        elif self._is_int8:
            maps = cast(Int8Store, self.store).stored(_array(layer), rows)
        else:
            maps = self.store.patch(rows, layer=layer, dtype=held)
        return maps.reshape(len(rows), -1, maps.shape[-1])

    def _read(self, rows: NDArray[np.int64]) -> list["_Row"]:
        layers = (*self.view.layers, None)
        blocks = [self._maps(rows, layer) for layer in layers]
        scales: list[NDArray[np.float32]] = []
        if self._is_int8:
            stored = cast(Int8Store, self.store).stored
            scales = [stored(scale_array(_array(layer)), rows).reshape(len(rows), -1) for layer in layers]
        cls_dtype = np.float16 if self._is_int8 else held_dtype(self.store)
        cls = self.store.cls(rows).astype(cls_dtype) if self.view.cls else None
        made = []
        for i, row in enumerate(rows.tolist()):
            # A row of a larger read is copied, so that one waiting row does not keep the others in memory.
            maps, own_scales = (
                tuple(block[i] if len(rows) == 1 else block[i].copy() for block in parts) for parts in (blocks, scales)
            )
            own = None if cls is None else cls[i].copy()
            # int8 is finite; what is not is in its scales
            if not all(_finite(part) for part in (*(own_scales or maps), *([] if own is None else [own]))):
                raise StoreError(
                    f"row {row} is marked ok but its tokens hold inf or nan. Run: coldframe verify {self.store.name}"
                )
            made.append(_Row(row=row, cls=own, maps=maps, scales=own_scales))
        return made

    def _assemble(self, drawn: "Sequence[_Row]") -> TokenBatch:
        rows = np.array([item.row for item in drawn], dtype=np.int64)
        lead = int(self.view.cls)
        maps = []
        for position, first in enumerate(drawn[0].maps):
            block = np.empty((len(drawn), lead + len(first), first.shape[-1]), held_dtype(self.store))
            for i, item in enumerate(drawn):
                if item.scales:
                    dequantise(item.maps[position], item.scales[position], block[i, lead:])
                else:
                    block[i, lead:] = item.maps[position]
                if item.cls is not None:
                    block[i, 0] = item.cls
            maps.append(block)
        return TokenBatch(
            rows=rows,
            maps=tuple(maps),
            mask=token_mask(self.store, rows, self.view),
            time=self.view.time_of_tokens(self.store),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Row:
    """One row in the pool: (L, dim) tokens a map, and (L,) scales of each where they are int8."""

    row: int
    cls: NDArray[Any] | None
    maps: tuple[NDArray[Any], ...]
    scales: tuple[NDArray[np.float32], ...] = ()


def _array(layer: int | None) -> str:
    return "patch" if layer is None else layer_array(layer)


def _finite(values: NDArray[Any]) -> bool:
    """Whether no value is inf or nan; four times as fast as `np.isfinite` of float16."""
    if values.dtype != np.float16:
        return bool(np.isfinite(values.sum(dtype=np.float32)))
    exponent = np.uint16(0x7C00)  # all ones in inf and nan alone
    return bool((values.view(np.uint16) & exponent).max() != exponent)


def _reads(
    rows: NDArray[np.int64], shard_rows: int, read_rows: int, rng: np.random.Generator | None
) -> Iterator[NDArray[np.int64]]:
    """Ascending runs of rows, each within one shard; a few shards at a time in random turns."""
    shards = np.split(rows, np.flatnonzero(np.diff(rows // shard_rows)) + 1)
    runs = [np.split(shard, range(read_rows, len(shard), read_rows)) for shard in shards]
    if rng is None:
        yield from (run for shard in runs for run in shard)
        return
    waiting = [iter(runs[i]) for i in rng.permutation(len(runs))]
    while waiting:
        turn = int(rng.integers(min(len(waiting), _OPEN_SHARDS)))
        run = next(waiting[turn], None)
        if run is None:
            waiting.pop(turn)
        else:
            yield run


def _draw(pool: list[_Row], count: int, rng: np.random.Generator | None) -> list[_Row]:
    """Take `count` rows out of `pool`: the first, or random ones."""
    if rng is None:
        drawn, pool[:] = pool[:count], pool[count:]
        return drawn
    drawn = []
    for _ in range(count):
        place = int(rng.integers(len(pool)))
        pool[place], pool[-1] = pool[-1], pool[place]
        drawn.append(pool.pop())
    return drawn
