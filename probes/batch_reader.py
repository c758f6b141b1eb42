"""Batch reader: reads rows of a store to their places in token batches."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError
from coldframe.probes.core_threads import yield_to_others
from coldframe.probes.kept_memory import KeptMemory
from coldframe.probes.read_order import ReadOrder
from coldframe.probes.token_view import (
    FrameStore,
    ShardedStore,
    TokenBatch,
    TokenView,
    held_dtype,
    token_mask,
)
from coldframe.store.int8_tokens import dequantise
from coldframe.store.schema import layer_array, scale_array

_INF = 0x7C00  # bits of float16; those of nan are larger, and the sign is the bit above
_AT_ONCE = 2  # reads; more than one while nothing is computed, or where each waits for an object store
_CHECKED_VALUES = 1 << 16  # at once, so that what is made of them stays in a cache


@dataclass(kw_only=True, eq=False)
class _Open:
    """A batch that is being read, as it is stored.

    Attributes:
        rows: (n,) rows of the store; the first `filled` are there.
        maps: one (n, lead + L, dim) a feature map in the dtype of the batch, or (n, L, dim) in int8.
        scales: one (n, L) float32 a map where these are int8.
        cls: (n, dim) where maps are int8 and the view has [CLS].
    """

    rows: NDArray[np.int64]
    maps: tuple[NDArray[Any], ...]
    scales: tuple[NDArray[np.float32], ...]
    cls: NDArray[np.float16] | None
    filled: int = 0

    def place(self, row: int) -> "_Place":
        """A place for `row`, behind those that are taken."""
        self.rows[self.filled] = row
        self.filled += 1
        return self, self.filled - 1


_Place = tuple[_Open, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchReader:
    """Makes batches of a store's tokens.

    Attributes:
        store: where the tokens are.
        view: which of them.
        memory: where batches lie.
        yields: whether the threads that read yield to those that compute.
    """

    store: ShardedStore
    view: TokenView
    memory: KeptMemory
    yields: bool = False

    @property
    def converts(self) -> bool:
        """Whether a batch is made anew of what was read: int8 tokens are multiplied by their scales."""
        return self.store.recipe.dtype == "int8"

    @property
    def open_row_bytes(self) -> int:
        """Bytes of a row in a batch that is being read."""
        if not self.converts:
            return self.view.row_bytes(self.store)
        return self._patches * (self.store.geometry.dim + 4) * self.view.maps + 2 * self.store.geometry.dim * self._lead

    @property
    def stored_row_bytes(self) -> int:
        """Bytes of a row in the store."""
        if self.converts:
            return self.open_row_bytes
        width = np.dtype(held_dtype(self.store)).itemsize
        return self.open_row_bytes // width * np.dtype(self.store.recipe.dtype).itemsize

    @property
    def _lead(self) -> int:
        return int(self.view.cls)

    @property
    def _patches(self) -> int:
        """Tokens of a map without [CLS]."""
        return len(self.view.time_of_tokens(self.store)) - self._lead

    def batches(self, order: ReadOrder) -> Iterator[TokenBatch]:
        """Batches of one epoch.

        Raises:
            StoreError: the tokens of a row are damaged, or not finite.
        """
        being_read: dict[int, _Open] = {}
        under_way: deque[Future[None]] = deque()
        start = yield_to_others if self.yields else None
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="token-loader", initializer=start) as threads:
            for read in order.reads():
                places = []
                for row, batch in zip(read.rows.tolist(), read.batches.tolist(), strict=True):
                    if batch not in being_read:
                        being_read[batch] = self._open(order.size(batch), order.batch_rows)
                    places.append(being_read[batch].place(row))
                under_way.append(threads.submit(self._read, read.rows, places))
                while len(under_way) > (0 if read.whole else _AT_ONCE):
                    under_way.popleft().result()
                for batch in read.whole:
                    yield self._close(being_read.pop(batch))

    def _open(self, size: int, most: int) -> _Open:
        """Room for `size` rows, in a block for `most`: blocks of one size are used again for one another."""
        dim, maps = self.store.geometry.dim, range(self.view.maps)
        tokens = self._patches + (0 if self.converts else self._lead)
        dtype = np.int8 if self.converts else held_dtype(self.store)
        return _Open(
            rows=np.empty(size, np.int64),
            maps=tuple(self.memory.array((most, tokens, dim), dtype)[:size] for _ in maps),
            scales=tuple(np.empty((size, tokens), np.float32) for _ in maps if self.converts),
            cls=np.empty((size, dim), np.float16) if self.converts and self._lead else None,
        )

    def _read(self, rows: NDArray[np.int64], places: list[_Place]) -> None:
        """Read `rows` to their places."""
        lead = 0 if self.converts else self._lead
        for position, layer in enumerate((*self.view.layers, None)):
            rooms = [into.maps[position][i, lead:] for into, i in places]
            self._read_map(rows, layer, rooms)
            if self.converts:
                self._read_stored(scale_array(_array(layer)), rows, [into.scales[position][i] for into, i in places])
        if self._lead:
            for (into, i), vector in zip(places, self.store.cls(rows), strict=True):
                for room in [block[i, 0] for block in into.maps] if into.cls is None else [into.cls[i]]:
                    room[:] = vector
        for row, (into, i) in zip(rows.tolist(), places, strict=True):
            # int8 is finite; what is not is in its scales
            parts = [block[i] for block in into.scales or into.maps] + ([] if into.cls is None else [into.cls[i]])
            if not all(_finite(part) for part in parts):
                raise StoreError(
                    f"row {row} is marked ok but its tokens hold inf or nan. Run: coldframe verify {self.store.name}"
                )

    def _read_map(self, rows: NDArray[np.int64], layer: int | None, rooms: list[NDArray[Any]]) -> None:
        """Tokens of `rows` into (L, dim) each: patches, or one a frame where the store keeps those alone."""
        if layer is not None or self.store.geometry.keeps_patches:
            self._read_stored(_array(layer), rows, rooms)
            return
        for room, vectors in zip(rooms, cast(FrameStore, self.store).frame_cls(rows), strict=True):
            room[:] = vectors

    def _read_stored(self, array: str, rows: NDArray[np.int64], rooms: list[NDArray[Any]]) -> None:
        geometry = self.store.geometry
        grid = (geometry.time, geometry.rows, geometry.cols)
        self.store.stored_into(array, rows, [room.reshape(*grid, *room.shape[1:]) for room in rooms])

    def _close(self, whole: _Open) -> TokenBatch:
        maps = whole.maps
        if self.converts:
            tokens, dim, dtype = self._lead + self._patches, self.store.geometry.dim, held_dtype(self.store)
            maps = tuple(self.memory.array((len(whole.rows), tokens, dim), dtype) for _ in whole.maps)
            for block, stored, scales in zip(maps, whole.maps, whole.scales, strict=True):
                for i in range(len(block)):
                    dequantise(stored[i], scales[i], block[i, self._lead :])
                if whole.cls is not None:
                    block[:, 0] = whole.cls
        return TokenBatch(
            rows=whole.rows,
            maps=maps,
            mask=token_mask(self.store, whole.rows, self.view),
            time=self.view.time_of_tokens(self.store),
        )


def _array(layer: int | None) -> str:
    return "patch" if layer is None else layer_array(layer)


def _finite(values: NDArray[Any]) -> bool:
    """Whether no value is inf or nan; in float16 many times as fast as `np.isfinite`."""
    if values.dtype != np.float16:
        return bool(np.isfinite(values.sum(dtype=np.float32)))
    bits = values.reshape(-1)
    parts = (bits[start : start + _CHECKED_VALUES] for start in range(0, len(bits), _CHECKED_VALUES))
    # as signed numbers the positive ones come last, as unsigned numbers the negative ones
    return all(part.view(np.int16).max() < _INF and part.view(np.uint16).max() < _INF + (1 << 15) for part in parts)
