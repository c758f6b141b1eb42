"""Loader: token batches of a store that is larger than memory, read by one thread ahead of who asks for them."""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.batch_reader import BatchReader
from coldframe.probes.kept_memory import KeptMemory
from coldframe.probes.read_order import ReadOrder
from coldframe.probes.token_view import ShardedStore, TokenBatch, TokenView

# Tokens, as stored, that pass through the heads at once. Each piece reads all parameters of the grid, and products of
# few rows with them are slow: 20 heads of width 1,024 have 1 GB of parameters.
MICRO_BATCH_BYTES = 512 << 20
_PIECES_IN_MEMORY = 8  # three that are whole, and five among which rows are mixed
DEFAULT_MEMORY_BYTES = 4 << 30
_READ_BYTES = 8 << 20  # one read; a row of this size or more is read alone
_AHEAD = 1  # batches that wait in the queue
_IN_HAND = 2  # one that is given to the caller, and the one before, which the caller still has
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
            two reads large, come on top. Int8 tokens wait as they are stored, and are float32 in batches.
        memory: where batches lie. Loaders of which one runs at a time may share it.
        yields: whether reading yields to what is computed meanwhile, for callers that compute far longer than it reads.
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
    memory: KeptMemory = field(default_factory=KeptMemory)
    yields: bool = False
    rate: ReadRate = field(default_factory=ReadRate)
    _reader: BatchReader = field(init=False)

    def __post_init__(self) -> None:
        if self.batch_rows < 1:
            raise UsageError(f"batch_rows is {self.batch_rows}; allowed is 1 or more.")
        self.view.check(self.store)
        self.rows = np.unique(self.rows)
        self._reader = BatchReader(store=self.store, view=self.view, memory=self.memory, yields=self.yields)
        if self.open_batches < 1:
            needed = self.memory_bytes + (1 - self.open_batches) * self._open_bytes
            raise UsageError(
                f"the loader may use {self.memory_bytes} bytes; batches of {self.batch_rows} rows need "
                f"{needed}. Allow more memory or use smaller batches."
            )

    @property
    def _open_bytes(self) -> int:
        """Bytes of a batch that is being read."""
        return self._reader.open_row_bytes * self.batch_rows

    @property
    def open_batches(self) -> int:
        """Batches that may be open at once; a row goes to any of them."""
        whole = self.view.row_bytes(self.store) * self.batch_rows * (_AHEAD + _IN_HAND + self._reader.converts)
        return (self.memory_bytes - whole) // self._open_bytes

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
                self.rate.stored_bytes += self._reader.stored_row_bytes * len(item.rows)
                yield item
            now = time.perf_counter()
            self.rate.seconds += now - started
            started = now
            if item is None:
                return

    def _batches(self, number: int) -> Iterator[TokenBatch]:
        order = ReadOrder(
            rows=self.rows,
            shard_rows=self.store.unit_rows,
            read_rows=int(np.clip(_READ_BYTES // self._reader.open_row_bytes, 1, self.batch_rows)),
            batch_rows=self.batch_rows,
            room=self.open_batches,
            rng=None if self.seed is None else np.random.default_rng([self.seed, number]),
        )
        return self._reader.batches(order)


def micro_batch_rows(batch: int, row_bytes: int, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> int:
    """The largest divisor of `batch` whose tokens fit into `MICRO_BATCH_BYTES` and an eighth of a loader's memory."""
    fitting = max(1, min(MICRO_BATCH_BYTES, memory_bytes // _PIECES_IN_MEMORY) // row_bytes)
    return max(rows for rows in range(1, batch + 1) if batch % rows == 0 and rows <= fitting)
