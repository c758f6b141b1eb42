"""Read order: in which turns the rows of an epoch are read, and into which batch each goes.

Shards are visited in shuffled order, many at a time, each read from front to back. A row's place in the epoch is where
it is read plus a random delay, so neighbours in a video rarely share a batch, and batches become whole one after the
other. All of it is known before anything is read: every row is read straight to where it is used. It depends on the
generator and the sizes, never on timing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_OPEN_SHARDS = 32
_LEAST_OPEN = 2
_OPEN_SHARE = 2  # half of an epoch's batches are open, so that the first is whole before most has been read
_SHRINK = 0.9


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """Rows to read at once.

    Attributes:
        rows: (n,) ascending, within one shard.
        batches: (n,) number of the batch of each.
        whole: batches that can be handed out once these rows are there, in that order.
    """

    rows: NDArray[np.int64]
    batches: NDArray[np.int64]
    whole: range


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadOrder:
    """Batches of one epoch, handed out in the order of their numbers.

    Attributes:
        rows: (n,) ascending, n >= 1.
        shard_rows: rows that share a shard.
        read_rows: rows of one read, at most.
        batch_rows: rows of every batch but the last, which may have fewer.
        room: batches that may be open at once: begun, and not handed out.
        rng: None gives ascending rows.
    """

    rows: NDArray[np.int64]
    shard_rows: int
    read_rows: int
    batch_rows: int
    room: int
    rng: np.random.Generator | None

    @property
    def count(self) -> int:
        """Batches of the epoch."""
        return -(-len(self.rows) // self.batch_rows)

    def size(self, batch: int) -> int:
        """Rows of a batch, which is counted from 0."""
        return min(self.batch_rows, len(self.rows) - batch * self.batch_rows)

    def reads(self) -> Iterator[Read]:
        """Every row once."""
        batches = self._batches()
        _, ends = self._spans(batches)
        done = turn = 0
        for run in self._runs():
            while len(run):
                count = min(len(run), int(ends[done]) + 1 - turn)  # to the row that makes a batch whole, or all
                whole = range(done, int(np.searchsorted(ends, turn + count)))
                yield Read(rows=run[:count], batches=batches[turn : turn + count], whole=whole)
                done, turn, run = whole.stop, turn + count, run[count:]

    def _batches(self) -> NDArray[np.int64]:
        """(n,) the batch of each row, in the order in which they are read."""
        turns = np.arange(len(self.rows))
        if self.rng is None:
            return turns // self.batch_rows
        allowed = min(self.room, max(_LEAST_OPEN, self.count // _OPEN_SHARE))
        delays, longest = self.rng.random(len(turns)), float((allowed - 1) * self.batch_rows)
        while True:
            places = np.empty_like(turns)
            places[np.argsort(turns + delays * longest, kind="stable")] = turns
            batches = places // self.batch_rows
            if self._most_open(batches) <= allowed:
                return batches
            longest *= _SHRINK  # seldom: the spans of batches are as long as that on average

    def _spans(self, batches: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(count,) turn at which a batch is begun, and at which it and all before it are whole."""
        turns = np.arange(len(batches))
        starts, ends = np.full(self.count, len(batches)), np.zeros(self.count, np.int64)
        np.minimum.at(starts, batches, turns)
        np.maximum.at(ends, batches, turns)
        return starts, np.maximum.accumulate(ends)

    def _most_open(self, batches: NDArray[np.int64]) -> int:
        """Most batches that are open at once."""
        starts, ends = self._spans(batches)
        change = np.zeros(len(batches) + 1, np.int64)
        np.add.at(change, starts, 1)
        np.add.at(change, ends + 1, -1)
        return int(np.cumsum(change).max())

    def _runs(self) -> Iterator[NDArray[np.int64]]:
        """Ascending runs of rows, each within one shard; a few shards at a time in random turns."""
        shards = np.split(self.rows, np.flatnonzero(np.diff(self.rows // self.shard_rows)) + 1)
        runs = [np.split(shard, range(self.read_rows, len(shard), self.read_rows)) for shard in shards]
        if self.rng is None:
            yield from (run for shard in runs for run in shard)
            return
        waiting = [iter(runs[i]) for i in self.rng.permutation(len(runs))]
        while waiting:
            turn = int(self.rng.integers(min(len(waiting), _OPEN_SHARDS)))
            run = next(waiting[turn], None)
            if run is None:
                waiting.pop(turn)
            else:
                yield run
