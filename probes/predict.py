"""Predict with a saved probe on a store of its own recipe."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.attentive import token_view
from coldframe.probes.attentive_report import AttentiveReport
from coldframe.probes.features import read_features
from coldframe.probes.heads import HeadShape
from coldframe.probes.linear import LinearReport
from coldframe.probes.loader import DEFAULT_MEMORY_BYTES, TokenLoader, micro_batch_rows
from coldframe.probes.logistic import LinearHead, Link
from coldframe.probes.logistic_probe import LogisticReport
from coldframe.probes.multilabel import MultiLabelReport
from coldframe.probes.presets import Preset
from coldframe.probes.probe_report import ProbeReport
from coldframe.probes.released import strict_state
from coldframe.probes.ridge import RidgeHead
from coldframe.probes.saved import Prediction, ProbeCard, Tensors, geometry_dict
from coldframe.probes.scored import Scored
from coldframe.probes.token_view import ShardedStore
from coldframe.probes.training import logits_of, require_device

_LINEAR_TENSORS = ("mean", "scale", "weight", "intercept")
_ROWS = 1024  # of a linear probe's features at once


def attentive_card(report: AttentiveReport, created_by: str) -> tuple[ProbeCard, dict[str, NDArray[Any]]]:
    """Card and tensors of the report's best head on validation."""
    best, state = report.best_state()
    preset = {**vars(report.preset), "time": report.shape.time}
    card = _card(report, best, created_by, kind="attentive", split_seed=report.split_seed, preset=preset)
    return card, {name: value.numpy() for name, value in state.items()}


def ridge_card(report: LinearReport, created_by: str) -> tuple[ProbeCard, dict[str, NDArray[np.float64]]]:
    """Card and tensors of the report's best head on validation."""
    best = report.best()
    own = {"features": report.features, "penalty": best.head.penalty}
    card = _card(report, best, created_by, kind="ridge", split_seed=best.seed, **own)
    return card, _linear_tensors(best.head)


def logistic_card(report: LogisticReport, created_by: str) -> tuple[ProbeCard, dict[str, NDArray[np.float64]]]:
    """Card and tensors of the report's best head on validation."""
    best = report.best()
    own = {"features": report.features, "link": best.head.link, "strength": best.head.strength}
    card = _card(report, best, created_by, kind="linear", split_seed=best.seed, **own)
    return card, _linear_tensors(best.head)


def multilabel_card(report: MultiLabelReport, created_by: str) -> tuple[ProbeCard, dict[str, NDArray[np.float64]]]:
    """Card and tensors of the head that is best on its validation videos."""
    best = max(report.results, key=lambda result: result.validation_map)
    card = ProbeCard(
        kind="linear",
        label=report.label,
        names=report.selection.names,
        recipe=report.store.recipe.to_dict(),
        geometry=geometry_dict(report.store),
        split_digest=best.split_digest,
        split_seed=best.seed,
        seed=best.seed,
        validation_balanced_accuracy=None,
        validation_map=best.validation_map,
        created_by=created_by,
        features=report.features,
        link="sigmoid",
        strength=best.head.strength,
    )
    return card, _linear_tensors(best.head)


def _card(report: ProbeReport[Any], best: Scored[Any], created_by: str, **own: Any) -> ProbeCard:
    return ProbeCard(
        label=report.label,
        names=report.selection.labels.names,
        recipe=report.store.recipe.to_dict(),
        geometry=geometry_dict(report.store),
        split_digest=best.split_digest,
        seed=best.seed,
        validation_balanced_accuracy=best.validation_balanced_accuracy,
        created_by=created_by,
        **own,
    )


def _linear_tensors(head: RidgeHead | LinearHead) -> dict[str, NDArray[np.float64]]:
    return {name: getattr(head, name) for name in _LINEAR_TENSORS}


def predict(
    card: ProbeCard,
    tensors: Tensors,
    store: ShardedStore,
    rows: NDArray[np.int64],
    *,
    device: str = "cpu",
    on_rows: Callable[[int], object] = lambda count: None,
) -> Iterator[Prediction]:
    """One prediction a row, ascending.

    Args:
        card, tensors: of a saved probe.
        store: of the same recipe.
        rows: (n,) ok rows, n >= 1.
        device: where an attentive head runs.
        on_rows: called with the number of rows after each batch.

    Raises:
        UsageError: the store has another recipe, or the tensors do not fit the card.
    """
    card.require_store(store, "the saved probe")
    if not len(rows):
        raise UsageError("the store has no ok rows; there is nothing to predict.")
    if card.kind != "attentive" and device != "cpu":
        raise UsageError(f"device is {device!r}, but a {card.kind} probe runs on the CPU only. Leave --device out.")
    pieces = (
        _attentive(card, tensors, store, rows, device)
        if card.kind == "attentive"
        else _linear(card, tensors, store, rows)
    )
    for numbers, probabilities in pieces:
        for row, values in zip(numbers.tolist(), probabilities, strict=True):
            yield Prediction(row=row, values=values)
        on_rows(len(numbers))


Piece = tuple[NDArray[np.int64], NDArray[np.float64]]


def _attentive(
    card: ProbeCard, tensors: Tensors, store: ShardedStore, rows: NDArray[np.int64], device: str
) -> Iterator[Piece]:
    import torch

    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in card.preset.items()
    }
    time: int = fields.pop("time")
    shape = HeadShape(preset=Preset(**fields), dim=store.geometry.dim, classes=len(card.names), time=time)
    state = strict_state({name: torch.from_numpy(np.array(value)) for name, value in tensors.items()}, shape)
    where = require_device(device)
    parameters = {name: value[None].to(where) for name, value in state.items()}
    view = token_view(store, shape.preset)
    loader = TokenLoader(
        store=store,
        rows=rows,
        view=view,
        batch_rows=micro_batch_rows(64, view.row_bytes(store)),
        memory_bytes=DEFAULT_MEMORY_BYTES,
    )
    for numbers, logits in logits_of(loader, parameters, shape):
        yield numbers, logits[0].double().softmax(dim=-1).cpu().numpy()


def _linear(card: ProbeCard, tensors: Tensors, store: ShardedStore, rows: NDArray[np.int64]) -> Iterator[Piece]:
    if sorted(tensors) != sorted(_LINEAR_TENSORS):
        raise UsageError(f"the saved probe has the tensors {', '.join(tensors)}; wanted {', '.join(_LINEAR_TENSORS)}.")
    parts = {name: tensors[name] for name in _LINEAR_TENSORS}
    if card.kind == "ridge":
        outputs = RidgeHead(**parts, penalty=card.penalty).scores
    else:
        link: Link = "softmax" if card.link == "softmax" else "sigmoid"
        outputs = LinearHead(**parts, link=link, strength=card.strength, steps=0, gradient=0.0).probabilities
    rows = np.unique(rows)
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        yield part, outputs(read_features(store, part, card.features))
