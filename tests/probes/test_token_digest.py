"""Every epoch sees the same tokens, or the training ends."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray

from coldframe.errors import StoreError
from coldframe.probe_cli import main
from coldframe.probes.heads import HeadShape
from coldframe.probes.loader import TokenLoader
from coldframe.probes.presets import PRESETS
from coldframe.probes.token_digest import TokenDigest
from coldframe.probes.token_view import TokenBatch, TokenView
from coldframe.probes.training import Scores, Setting, Trained, train_heads
from coldframe.store import Store
from tests.probes.stores import class_store

EPOCHS = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return class_store(tmp_path_factory.mktemp("digest") / "S.zarr")


class Drifting:
    """A store whose patch tokens change in one bit of one value after some reads."""

    def __init__(self, store: Store, after: int) -> None:
        self.store, self.after, self.reads = store, after, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def stored_into(self, array: str, rows: NDArray[np.int64], rooms: Sequence[NDArray[Any]]) -> None:
        self.reads += 1
        self.store.stored_into(array, rows, rooms)
        if self.reads > self.after:
            first = (0,) * rooms[0].ndim
            rooms[0][first] = np.nextafter(rooms[0][first], rooms[0].dtype.type(np.inf))


def train(store: Any, seed: int = 0) -> Trained[Scores]:
    rows = store.ok_rows()
    loader = TokenLoader(store=store, rows=rows, view=TokenView(cls=True), batch_rows=8, seed=seed)
    shape = HeadShape(preset=PRESETS["levjepa"].with_heads(2), dim=8, classes=3)
    labels = (store.column("video") % 3).astype(np.int64)
    settings = [Setting(rate=1e-3, decay=0.1, seed=0)]
    return train_heads(loader, labels, shape, settings, epochs=EPOCHS, batch=8, device=torch.device("cpu"))


def test_one_digest_an_epoch_whatever_the_order_of_the_batches(store: Store) -> None:
    one, other = train(store, seed=0), train(store, seed=1)
    assert len(one.token_digests) == EPOCHS
    assert len({*one.token_digests, *other.token_digests}) == 1


def test_a_store_that_changes_between_epochs_ends_the_training(store: Store) -> None:
    counted = Drifting(store, after=10**9)
    train(counted)
    with pytest.raises(StoreError, match=r"tokens of \d+ of 60 rows changed while heads were trained on them"):
        train(Drifting(store, after=counted.reads - 1))  # the last read of the last epoch


@pytest.mark.parametrize("what", ["maps", "mask", "row"])
def test_the_digest_reads_every_map_the_mask_and_which_row_it_was(what: str) -> None:
    rng = np.random.default_rng(0)
    rows = np.array([3, 7, 9])
    maps = tuple(rng.normal(size=(3, 5, 4)).astype(np.float16) for _ in range(2))
    mask = np.ones((3, 5), bool)

    def digest(order: list[int]) -> str:
        made = TokenDigest(store="S", rows=rows)
        for i in order:
            time = np.zeros(5, np.int64)
            made.add(TokenBatch(rows=rows[[i]], maps=tuple(m[[i]] for m in maps), mask=mask[[i]], time=time))
        return made.end_epoch()

    before = digest([0, 1, 2])
    assert before == digest([2, 0, 1])
    if what == "maps":
        maps[1][2, 4, 3] += np.float16(0.01)
    elif what == "mask":
        mask[1, 4] = False
    else:
        rows[2] = 8
    assert digest([0, 1, 2]) != before


def test_rows_that_an_epoch_left_out_are_noticed() -> None:
    made = TokenDigest(store="S", rows=np.array([0, 1]))
    tokens, mask, time = np.ones((1, 2, 4), np.float32), np.ones((1, 2), bool), np.zeros(2, np.int64)
    for row in (0, 1):
        made.add(TokenBatch(rows=np.array([row]), maps=(tokens,), mask=mask, time=time))
    made.end_epoch()
    made.add(TokenBatch(rows=np.array([0]), maps=(tokens,), mask=mask, time=time))
    with pytest.raises(StoreError, match=r"1 of 2 rows changed .* first row 1"):
        made.end_epoch()


def test_the_command_reports_them(store: Store, tmp_path: Path) -> None:
    args = ["attentive", str(store.path), "--label", "label", "--heads", "2", "--lr", "1e-3", "--wd", "0.1"]
    result = CliRunner().invoke(main, [*args, "--epochs", "2", "--batch", "8", "--json"])
    assert result.exit_code == 0, result.output
    digests = json.loads(result.stdout)["train_token_digests"]
    assert len(digests) == 2
    assert len(set(digests)) == 1
