"""Guard: stops a run whose failures have one cause, such as a dead mount, before they are taken for facts."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from coldframe.errors import ColdframeError

FAILURES_IN_A_ROW = 50


@dataclass(frozen=True, kw_only=True)
class FailureLimits:
    """How many failures a run may have before it stops.

    Attributes:
        in_a_row: videos, one after the other, none of which gave a clip; 0 for no limit. Counted while videos are
            indexed, and by each worker while they are extracted.
        videos: failed videos of the whole store; None for no limit.
    """

    in_a_row: int = FAILURES_IN_A_ROW
    videos: int | None = None


class FailureGuard:
    """Counts failed videos and raises once there are more than the limits allow."""

    def __init__(self, limits: FailureLimits, failed: Iterable[str] = ()) -> None:
        """`failed` are videos that count towards the limit on all from the start."""
        self._limits = limits
        self._failed = set(failed)
        self._reasons: Counter[str] = Counter()
        self._streak: dict[str, str] = {}

    def succeeded(self) -> None:
        """A video gave a clip, or was indexed."""
        self._streak.clear()

    def failed(self, path: str, reason: str) -> None:
        """`path`, or a clip of it, failed for `reason`.

        Raises:
            ColdframeError: one of the limits is passed.
        """
        self._streak[path] = reason
        if 0 < self._limits.in_a_row <= len(self._streak):
            reasons = Counter(self._streak.values())
            raise ColdframeError(
                f"{len(self._streak)} videos in a row failed, {_commonest(reasons)}; the last one is {path}. If one "
                "cause is behind it, such as a disk that is not mounted, remove it and run the same command again: "
                "finished units are kept. If the files are really like that, set a higher --max-failures-in-a-row, "
                "or 0 for no limit."
            )
        self.counted(path, reason)

    def counted(self, path: str, reason: str) -> None:
        """As `failed`, for the limit on all videos only."""
        if path not in self._failed:
            self._failed.add(path)
            self._reasons[reason] += 1
        self.require_within(f"; of this run's, {_commonest(self._reasons)}; the last one is {path}")

    def require_within(self, which: str = "") -> None:
        """Raise ColdframeError, naming `which`, if more videos failed than the limit on all of them allows."""
        if self._limits.videos is not None and len(self._failed) > self._limits.videos:
            raise ColdframeError(
                f"{len(self._failed)} videos failed, --max-failures allows {self._limits.videos}{which}. Finished "
                "units are kept: see to the cause, or allow more, and run the same command again."
            )


def _commonest(reasons: Counter[str]) -> str:
    if not reasons:
        return "none is new"
    reason, count = reasons.most_common(1)[0]
    return f"{count} of them with the reason {reason}"
