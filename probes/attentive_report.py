"""An attentive probe's report: the grid, how it trained, and what was chosen."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from coldframe.probes.heads import HeadShape
from coldframe.probes.loader import ReadRate
from coldframe.probes.presets import Preset
from coldframe.probes.probe_report import ProbeReport
from coldframe.probes.scored import Scored
from coldframe.probes.svg_lines import Line, Plot
from coldframe.probes.token_view import ShardedStore
from coldframe.probes.training import Scores, Setting, Trained

_MIN_SEEDS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentiveReport(ProbeReport[int]):
    """What was trained and what came out. The `head` of a result is its position in the grid.

    Attributes:
        preset: with the options applied.
        original: the preset as published.
        shape: of the heads.
        split_seed: of the division.
        settings: all heads of the grid.
        trained: their curves; parameters of all heads.
        rate, decay: chosen on validation.
        read: how fast train tokens came.
    """

    store: ShardedStore
    preset: Preset
    original: Preset
    shape: HeadShape
    split_seed: int
    settings: tuple[Setting, ...]
    trained: Trained[Scores]
    rate: float
    decay: float
    read: ReadRate

    title = "attentive probe"
    seeds_are_splits = False

    @property
    def protocol(self) -> str:
        """Name of what was done; never `linear probe`."""
        changed = " (modified)" if list(self.differences()) else ""
        return (
            f"attentive probe, preset {self.original.name}{changed}: {len(self.settings)} heads in one pass, learning "
            "rate and weight decay chosen on validation, test read once"
        )

    @property
    def seed_meaning(self) -> str:
        return "Seeds vary initial weights and dropout on one split; all heads see the same batches."

    @property
    def reads_cls(self) -> bool:
        return self.preset.reads_cls

    def differences(self) -> Iterator[str]:
        """What differs from the published protocol, one sentence each."""
        for name in ("heads", "rates", "weight_decays", "epochs", "batch"):
            used, published = getattr(self.preset, name), getattr(self.original, name)
            if used != published:
                yield f"{name.replace('_', ' ')}: {_text(used)} instead of {_text(published)}."
        tier = self.store.recipe.tokens
        if tier != "full":
            yield f"tokens: the tier {tier!r} instead of all tokens."
        if self.preset.reads_cls and self.store.recipe.clip_cls == "frame_mean":
            yield "[CLS] of a clip is the mean of its frames' own vectors."
        if self.shape.time:
            yield "a learned temporal position is added to the normalised tokens."

    def best_state(self) -> tuple[Scored[int], dict[str, Tensor]]:
        """The best result on validation, and its head's parameters on the CPU."""
        best = self.best()
        return best, {name: value[best.head].detach().cpu().clone() for name, value in self.trained.parameters.items()}

    def chosen(self, result: Scored[int]) -> tuple[str, str]:
        return "lr, wd", f"{self.rate:g}, {self.decay:g}"

    def details(self) -> dict[str, Any]:
        return {
            "preset": asdict(self.preset),
            "differences": list(self.differences()),
            "split_seed": self.split_seed,
            "chosen": {"rate": self.rate, "weight_decay": self.decay},
            "grid": [
                {**asdict(setting), "died_at_update": self.trained.died_at.get(head), **self._curves(head)}
                for head, setting in enumerate(self.settings)
            ],
            "reading": self.read.to_dict(),
            "train_token_digests": list(self.trained.token_digests),
        }

    def seed_details(self, place: int) -> dict[str, Any]:
        return {"grid_position": self.results[place].head}

    def facts(self) -> dict[str, str]:
        reading = self.read.to_dict()
        return {
            "tokens": f"{self.store.recipe.tokens}, a query over all of them",
            "reading": f"{reading['rows_per_s']:.1f} rows/s, {reading['mb_per_s']:.1f} MB/s while training, "
            f"{reading['waited_share']:.0%} of the time waiting",
        }

    def plots(self) -> list[Plot]:
        """Every head of the grid; those of the chosen setting are drawn strongly."""
        taken = {result.head for result in self.results}
        titles = {
            "train_loss": "Loss on train",
            "validation_loss": "Loss on validation",
            "validation_balanced_accuracy": "Balanced accuracy on validation",
        }
        curves = [self._curves(head) for head in range(len(self.settings))]
        return [
            Plot(
                title=title,
                x_name="epoch",
                lines=tuple(
                    Line(
                        name=f"lr {one.rate:g}, weight decay {one.decay:g}, seed {one.seed}",
                        points=tuple(
                            (epoch, y) for epoch, y in enumerate(curves[head][name], start=1) if y is not None
                        ),
                        chosen=head in taken,
                    )
                    for head, one in enumerate(self.settings)
                ),
            )
            for name, title in titles.items()
        ]

    def notes(self) -> Iterator[str]:
        for text in self.differences():
            yield f"differs from preset {self.original.name}: {text}"
        yield "one stored view a clip (no augmentation while training): published numbers use random crops."
        if len(self.results) < _MIN_SEEDS:
            yield f"{len(self.results)} seeds: at least {_MIN_SEEDS} are needed for a standard deviation worth quoting."
        if self.trained.died_at:
            died = [self.settings[head] for head in self.trained.died_at]
            listed = ", ".join(f"lr {one.rate:g} wd {one.decay:g} seed {one.seed}" for one in died[:5])
            yield f"{len(died)} of {len(self.settings)} heads diverged and were frozen: {listed}."

    def _curves(self, head: int) -> dict[str, list[float | None]]:
        """One value an epoch; None where it is not finite."""
        scores = self.trained.validation
        return {
            "train_loss": _finite(self.trained.train_loss[:, head]),
            "validation_loss": _finite(one.loss[head] for one in scores),
            "validation_balanced_accuracy": _finite(one.balanced_accuracy()[head] for one in scores),
        }


def _text(value: Any) -> str:
    return ", ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)


def _finite(values: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
