"""Every row goes to one batch, batches mix rows from far apart, and never more of them are open than may be."""

from collections import Counter

import numpy as np
import pytest

from coldframe.probes.read_order import Read, ReadOrder


def order(rows: int = 1000, seed: int | None = 0, **sizes: int) -> ReadOrder:
    rng = None if seed is None else np.random.default_rng(seed)
    given = {"shard_rows": 16, "read_rows": 3, "batch_rows": 32, "room": 5, **sizes}
    return ReadOrder(rows=np.arange(rows), rng=rng, **given)


def batches_of(reads: list[Read]) -> dict[int, list[int]]:
    made: dict[int, list[int]] = {}
    for read in reads:
        for row, batch in zip(read.rows.tolist(), read.batches.tolist(), strict=True):
            made.setdefault(batch, []).append(row)
    return made


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("rows", [1, 5, 32, 33, 64, 250, 1000])
def test_every_row_is_in_one_batch_and_only_the_last_is_short(rows: int, seed: int | None) -> None:
    made = order(rows, seed)
    reads = list(made.reads())
    batches = batches_of(reads)
    assert sorted(row for batch in batches.values() for row in batch) == list(range(rows))
    handed_out = [batch for read in reads for batch in read.whole]
    assert handed_out == sorted(batches) == list(range(made.count))
    assert [len(batches[batch]) for batch in handed_out[:-1]] == [32] * (made.count - 1)
    assert len(batches[handed_out[-1]]) == rows - 32 * (made.count - 1)
    assert [len(batches[batch]) for batch in handed_out] == [made.size(batch) for batch in handed_out]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("rows", "room", "most"), [(3000, 5, 5), (1000, 50, 16), (250, 50, 4), (250, 3, 3), (70, 50, 2), (250, 1, 1)]
)
def test_half_of_the_epoch_is_open_or_what_there_is_room_for(rows: int, room: int, most: int, seed: int) -> None:
    made = order(rows, seed, room=room)
    missing = Counter({batch: made.size(batch) for batch in range(made.count)})
    being_read: set[int] = set()
    open_then = []
    for read in made.reads():
        being_read |= set(read.batches.tolist())
        open_then.append(len(being_read))
        missing.subtract(read.batches.tolist())
        for batch in read.whole:
            assert missing[batch] == 0
            being_read.remove(batch)
    assert most - 1 <= max(open_then) <= most
    assert not being_read


def test_the_first_batch_is_whole_long_before_all_that_are_open() -> None:
    reads = order(4000, room=40).reads()
    before = 0
    for read in reads:
        before += len(read.rows)
        if read.whole:
            break
    assert before < 2 * (2 * 39 * 32 * 32) ** 0.5  # of 1,248 places


def test_rows_without_a_generator_come_in_their_order() -> None:
    reads = list(order(100, None).reads())
    assert [row for read in reads for row in read.rows.tolist()] == list(range(100))
    assert [batch for read in reads for batch in read.whole] == [0, 1, 2, 3]


def test_a_read_is_within_a_shard_and_no_longer_than_asked() -> None:
    for read in order(read_rows=5, batch_rows=7).reads():
        assert len(np.unique(read.rows // 16)) == 1
        assert 1 <= len(read.rows) <= 5
        assert (np.diff(read.rows) == 1).all()


def test_batches_mix_rows_from_far_apart() -> None:
    """Of 5 batches, 160 rows are open, and a pool of so many rows would mix 22 shards and have 0.09 neighbours."""
    batches = list(batches_of(list(order(4000, room=5).reads())).values())
    shards = [len({row // 16 for row in batch}) for batch in batches]
    assert np.mean(shards) > 17  # in file order it would be 2
    neighbours = np.mean([np.mean(np.diff(sorted(batch)) == 1) for batch in batches])
    assert neighbours < 0.22  # and there 1


def test_the_generator_alone_decides() -> None:
    def rows(seed: int) -> list[list[int]]:
        return list(batches_of(list(order(seed=seed).reads())).values())

    assert rows(0) == rows(0)
    assert rows(0) != rows(1)
