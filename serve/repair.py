"""Repair: what verification finds damaged or missing is extracted again from the videos that the store names."""

import os
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coldframe.errors import ColdframeError, StoreError
from coldframe.serve.extract import Progress
from coldframe.store import (
    Status,
    Store,
    VerifyReport,
    discard_units,
    finish_growth,
    finish_replacements,
    open_store,
    pending_units,
    text_to_path,
    verify_store,
)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What there is to do on a store.

    Attributes:
        damaged: units whose marker or objects are not what they must be.
        absent: units that are not committed, or not with all of their rows.
        rows: rows of both.
        unexpected: files that no unit owns; they are left alone.
    """

    damaged: tuple[int, ...]
    absent: tuple[int, ...]
    rows: int
    unexpected: tuple[str, ...]

    @property
    def units(self) -> list[int]:
        return sorted({*self.damaged, *self.absent})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def open_for_repair(path: str) -> Store:
    """The store, open for writing, after what a killed process had decided is carried out."""
    finish_growth(path)
    store = open_store(path, writable=True)
    with store.lock():
        finish_replacements(store.place, range(store.unit_count))
    store.refresh()
    return store


def examine(store: Store, progress: Progress) -> Findings:
    """Check every marker, object and row, without changing anything.

    Raises:
        StoreError: the plan is damaged, which the videos alone cannot mend.
    """
    with progress("Verifying units", store.unit_count) as advance:
        report = verify_store(store.place, on_unit=lambda done, total: advance(1))
    _require_plan(store, report)
    damaged, absent = report.damaged_units, tuple(pending_units(store))
    units = {*damaged, *absent}
    return Findings(
        damaged=damaged,
        absent=tuple(unit for unit in absent if unit not in damaged),
        rows=sum(len(store.unit_range(unit)) for unit in units),
        unexpected=tuple(problem.object for problem in report.problems if problem.kind == "unexpected"),
    )


def _require_plan(store: Store, report: VerifyReport) -> None:
    files = [problem.object for problem in report.problems if problem.kind == "plan"]
    if files:
        raise StoreError(
            f"The plan of {store.name} is damaged ({', '.join(files[:3])}), and nothing but a copy can "
            "say what it was. Restore those files, or make the store anew."
        )


def discard_damaged(store: Store, findings: Findings) -> None:
    """Take back the commits of damaged units, so that the next run extracts them.

    Raises:
        ColdframeError: a video of them is gone. Their good rows would be lost, so nothing is changed.
    """
    require_videos(store, findings.damaged)
    with store.lock():
        discard_units(store, findings.damaged)


def require_videos(store: Store, units: Collection[int]) -> None:
    """Raise ColdframeError unless every video that the rows of `units` are read from exists."""
    rows = np.concatenate([np.array(store.unit_range(unit)) for unit in units]) if units else np.empty(0, np.int64)
    usable = np.asarray(store.video_column("status")) == Status.OK
    videos = [int(video) for video in np.unique(store.row_videos[rows]) if usable[video]]
    gone = [store.video_paths[video] for video in videos if not os.path.exists(text_to_path(store.video_paths[video]))]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise ColdframeError(
            f"{gone[0]}{more} cannot be found, and rows of damaged units must be read from there again. Make the "
            "videos available at those paths; until then good rows of these units can still be read."
        )
