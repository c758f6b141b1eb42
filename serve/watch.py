"""Watch: what a run's workers have committed so far, seen from the markers on disk, wherever the workers are."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from coldframe.serve.guard import FailureGuard, FailureLimits
from coldframe.store import Reason, Status, Store
from coldframe.store.markers import MARKER_FOLDER, marker_path
from coldframe.store.object_path import ObjectPath

_SECONDS_BETWEEN_LOOKS = 2.0
_WORK_FOR_A_LOOK = 50.0  # times as long as the look took: with many units on a network disk it is slow


class StoreWatch:
    """Counts the failed videos of a store while units are added to it, against the limit on all of them.

    An annotation without a window is no failure of its video, and tells nothing of the disk.
    """

    def __init__(self, store: Store, units: Sequence[int], limits: FailureLimits) -> None:
        """Raises ColdframeError if more videos than the limit have failed before anything is done.

        Args:
            store: the store.
            units: those that are about to be written, here or by other parts; all others count as they are.
            limits: how many may fail.
        """
        self._store, self._watches = store, limits.videos is not None
        self._waiting = _stamps(store, units) if self._watches else {}
        self._guard = FailureGuard(limits)
        self._next_look = time.monotonic()
        if self._watches:
            self._guard = FailureGuard(limits, failed=self._failed_already(set(units)))
            self._guard.require_within(" (before this run)")

    def around(self, on_clips: Callable[[int], object]) -> Callable[[int], object]:
        """`on_clips` with a look at the store every few seconds."""

        def looking(count: int) -> None:
            on_clips(count)
            if time.monotonic() >= self._next_look:
                self.look()

        return looking

    def look(self) -> None:
        """Count the failures of units committed since the last look.

        Raises:
            ColdframeError: more videos failed than the limit allows.
        """
        began = time.monotonic()
        now = _stamps(self._store, self._waiting)
        for unit in [unit for unit, stamp in self._waiting.items() if now[unit] != stamp]:
            marker = self._store.trusted_marker(unit)
            if marker is not None:
                del self._waiting[unit]
                for failure in marker.failures:
                    if Reason[failure["reason"].upper()] != Reason.NO_WINDOW:
                        self._guard.counted(failure["path"], failure["reason"])
        ended = time.monotonic()
        self._next_look = ended + max(_SECONDS_BETWEEN_LOOKS, _WORK_FOR_A_LOOK * (ended - began))

    def _failed_already(self, units: set[int]) -> set[str]:
        """Videos that were unusable when they were planned, or have failed rows in units that stay as they are."""
        store = self._store
        failed = (store.column("status") == Status.FAILED) & (store.column("reason") != Reason.NO_WINDOW)
        rows = np.flatnonzero(failed)
        rows = rows[~np.isin(rows // store.unit_rows, sorted(units))]
        unusable = np.flatnonzero(np.asarray(store.video_column("status")) == Status.FAILED)
        return {store.video_paths[int(video)] for video in chain(store.row_videos[rows], unusable)}


def _stamps(store: Store, units: Iterable[int]) -> dict[int, int | str | None]:
    """By unit, what changes when its marker is written; None if there is none."""
    folder, names = store.place / MARKER_FOLDER, {unit: marker_path(store.place, unit).name for unit in units}
    if isinstance(folder, ObjectPath):  # one listing, since to ask for each would be a round trip each
        tags = folder.tags()
        return {unit: tags.get(name) for unit, name in names.items()}
    return {unit: _written_ns(folder / name) for unit, name in names.items()}


def _written_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
