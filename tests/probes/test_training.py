"""A grid trained as stacked heads is what each head would be alone, whatever happens to the others."""

import numpy as np
import pytest
import torch
from torch import nn

from coldframe.errors import UsageError
from coldframe.probes.heads import HeadShape, initialise
from coldframe.probes.loader import TokenLoader, micro_batch_rows
from coldframe.probes.presets import PRESETS
from coldframe.probes.token_view import TokenView
from coldframe.probes.training import (
    Scores,
    Setting,
    Trained,
    choose_setting,
    require_device,
    score_heads,
    train_heads,
)
from coldframe.store import Store
from tests.probes.plain_heads import Head
from tests.probes.stores import class_store

SETTINGS = (
    Setting(rate=1e-2, decay=0.1, seed=0),
    Setting(rate=1e-3, decay=0.8, seed=1),
    Setting(rate=3e-3, decay=0.0, seed=2),
)
EPOCHS, BATCH = 3, 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return class_store(tmp_path_factory.mktemp("training") / "S.zarr")


def shape_of(preset: str = "levjepa") -> HeadShape:
    return HeadShape(preset=PRESETS[preset].with_heads(2), dim=8, classes=3)


def labels_of(store: Store) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (store.column("video") % 3).astype(np.int64)


def loader(store: Store, batch_rows: int = BATCH, seed: int | None = 5, preset: str = "levjepa") -> TokenLoader:
    view = TokenView(cls=PRESETS[preset].reads_cls)
    return TokenLoader(store=store, rows=store.ok_rows()[:44], view=view, batch_rows=batch_rows, seed=seed)


def train(
    store: Store, settings: tuple[Setting, ...] = SETTINGS, preset: str = "levjepa", batch_rows: int = BATCH
) -> Trained[Scores]:
    return train_heads(
        loader(store, batch_rows, preset=preset),
        labels_of(store),
        shape_of(preset),
        settings,
        epochs=EPOCHS,
        batch=BATCH,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(("preset", "depth"), [("levjepa", 1), ("vjepa2-d4", 4)])
def test_each_head_is_a_plain_head_trained_alone_with_pytorch(store: Store, preset: str, depth: int) -> None:
    ours = train(store, preset=preset)
    made = initialise(shape_of(preset), [setting.seed for setting in SETTINGS])
    labels = labels_of(store)
    steps = EPOCHS * 6
    for g, setting in enumerate(SETTINGS):
        head = Head(8, 3, 2, depth=depth)
        head.load_state_dict({name: value[g] for name, value in made.items()})
        adamw = torch.optim.AdamW(head.parameters(), lr=setting.rate, weight_decay=setting.decay)
        step = 0
        for epoch in range(EPOCHS):
            for batch in loader(store, preset=preset).epoch(epoch):
                step += 1
                adamw.param_groups[0]["lr"] = setting.rate * 0.5 * (1 + np.cos(np.pi * step / steps))
                maps, mask = [torch.from_numpy(m).float() for m in batch.maps], torch.from_numpy(batch.mask)
                loss = nn.functional.cross_entropy(
                    head(maps, mask, torch.from_numpy(batch.time)), torch.from_numpy(labels[batch.rows])
                )
                adamw.zero_grad()
                torch.autograd.backward(loss)
                adamw.step()
        for name, value in head.state_dict().items():
            torch.testing.assert_close(ours.parameters[name][g], value, rtol=1e-3, atol=2e-4)


def test_gradients_of_pieces_add_up_to_those_of_the_batch(store: Store) -> None:
    # In file order, because the pool's size and so the order depends on the piece.
    trained: list[Trained[Scores]] = []
    for pieces in (8, 2):
        ordered = loader(store, pieces, seed=None)
        trained.append(
            train_heads(ordered, labels_of(store), shape_of(), SETTINGS, epochs=2, batch=8, device=torch.device("cpu"))
        )
    for name, value in trained[0].parameters.items():
        torch.testing.assert_close(value, trained[1].parameters[name], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(trained[0].train_loss, trained[1].train_loss, rtol=1e-4)


def test_training_is_deterministic_and_a_head_does_not_depend_on_its_neighbours(store: Store) -> None:
    one, two = train(store), train(store)
    assert all(torch.equal(value, two.parameters[name]) for name, value in one.parameters.items())
    alone = train(store, SETTINGS[:1])
    for name, value in alone.parameters.items():
        torch.testing.assert_close(value[0], one.parameters[name][0], rtol=1e-3, atol=1e-4)


def test_a_diverging_head_is_frozen_and_reported_and_the_others_go_on(store: Store) -> None:
    wild = Setting(rate=1e30, decay=0.0, seed=3)
    trained = train(store, (SETTINGS[0], wild, SETTINGS[2]))
    calm = train(store, (SETTINGS[0], SETTINGS[1], SETTINGS[2]))
    assert list(trained.died_at) == [1]
    assert 2 <= trained.died_at[1] <= EPOCHS * 6
    for name, value in trained.parameters.items():
        torch.testing.assert_close(value[[0, 2]], calm.parameters[name][[0, 2]], rtol=1e-3, atol=1e-4)
    scores = score_heads(loader(store, seed=None), labels_of(store), trained.parameters, shape_of())
    assert np.isfinite(scores.loss[[0, 2]]).all()
    assert choose_setting((SETTINGS[0], wild, SETTINGS[2]), scores, trained.died_at) != (1e30, 0.0)


def test_choice_is_by_mean_over_seeds_then_loss_and_never_a_diverged_setting() -> None:
    settings = [Setting(rate=rate, decay=0.1, seed=seed) for rate in (1.0, 2.0, 3.0, 4.0) for seed in (0, 1)]
    right = [9, 1, 6, 6, 6, 6, 10, 10]
    scores = Scores(
        loss=np.array([1, 1, 0.5, 0.5, 0.4, 0.5, 0.1, np.nan]),
        confusion=np.array([[[n, 10 - n], [10 - n, n]] for n in right]),
    )
    assert choose_setting(settings, scores, {}) == (3.0, 0.1)
    assert choose_setting(settings, scores, {5: 7}) == (2.0, 0.1)
    with pytest.raises(UsageError, match="all 8 heads of the grid diverged"):
        choose_setting(settings, scores, dict.fromkeys(range(8), 1))


def test_micro_batches_divide_the_batch() -> None:
    assert micro_batch_rows(256, 6_424_576) == 64  # LeVJEPA-L, all tokens, float16
    assert micro_batch_rows(256, 6_424_576, 1 << 30) == 16  # an eighth of 1 GiB
    assert micro_batch_rows(256, 6_424_576, 64 << 30) == 64
    assert micro_batch_rows(256, 1) == 256
    assert micro_batch_rows(7, 1 << 40) == 1


@pytest.mark.parametrize("name", ["gpu", "mps", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="device is"):
        require_device(name)
