"""Stages: how long decoding, encoding and writing were at work, and which of them bounds a run."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

STAGES = ("decode", "encode", "write")


@dataclass(frozen=True, kw_only=True)
class StageSeconds:
    """Seconds of one run, summed over its workers.

    Attributes:
        decode: waiting for readers to give the next clip, summed over decode processes. A reader that is ahead works
            unseen while its last clip waits to be taken, so this is the whole of decoding only where decoding bounds.
        encode: inside the encoder.
        write: writing, reading back and committing units.
        decode_available, encode_available, write_available: seconds that each stage could have been at work.
    """

    decode: float = 0.0
    encode: float = 0.0
    write: float = 0.0
    decode_available: float = 0.0
    encode_available: float = 0.0
    write_available: float = 0.0

    def busy(self, stage: str) -> float:
        """Share of the time that `stage` was at work, 0 to 1; the rest it waited for the others."""
        available: float = getattr(self, f"{stage}_available")
        return getattr(self, stage) / available if available else 0.0

    @property
    def bound(self) -> str | None:
        """The stage that was at work for the largest share of the time; None if nothing ran."""
        return max(STAGES, key=self.busy) if self.encode_available else None

    @classmethod
    def total(cls, parts: Iterable["StageSeconds"]) -> "StageSeconds":
        """The sum over workers."""
        listed = list(parts)
        return cls(**{item.name: sum(getattr(part, item.name) for part in listed) for item in fields(cls)})

    def to_dict(self) -> dict[str, Any]:
        rounded = {name: round(value, 3) for name, value in asdict(self).items()}
        busy = {stage: round(self.busy(stage), 3) for stage in STAGES}
        return {"seconds": {stage: rounded[stage] for stage in STAGES}, "busy": busy, "bound": self.bound}
