"""Parts: disjoint contiguous shares of a store's units, one for each job of an array. Jobs never talk to each other."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coldframe.errors import StoreError, UsageError
from coldframe.serve.inputs import InputVideo
from coldframe.serve.windows import annotation_columns
from coldframe.store import Status, Store, seal
from coldframe.store.plan import Column
from coldframe.store.text import path_to_text


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part `number` (counted from 1) of `of` equal ones."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise UsageError(
                f"part is {self}; parts are counted from 1, so allowed are 1/{self.of} to {self.of}/{self.of}."
                if self.of >= 1
                else f"part is {self}; there must be at least one part, such as 1/1."
            )

    @classmethod
    def parse(cls, text: str) -> "Part":
        """From `i/n`."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        if match is None:
            raise UsageError(f"part is {text!r}; allowed is i/n, such as 1/8 to 8/8.")
        return cls(number=int(match[1]), of=int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def units(self, unit_count: int) -> range:
        """The part's units. All parts together have each unit once; sizes differ by at most one."""
        return range(unit_count * (self.number - 1) // self.of, unit_count * self.number // self.of)


def require_same_paths(store: Store, videos: Sequence[InputVideo]) -> None:
    """Refuse `videos` unless their paths are those that `store` was planned with. Nothing is read from them.

    A thousand jobs must not index every video a thousand times; content is compared when a video is decoded.
    Annotations are compared in full: rows of a plan keep their times, and another file that says otherwise would pass.
    """
    there = set(store.video_paths)
    for listed in store.video_column("duplicates"):
        there.update(json.loads(listed))
    here = {path_to_text(video.path) for video in videos}
    if here != there:
        notes = [f"{path} is new" for path in sorted(here - there)]
        raise UsageError(other_videos(store, notes + [f"{path} is missing" for path in sorted(there - here)]))
    given = [annotation for video in videos for annotation in video.annotations]
    if _annotation_rows(annotation_columns(given)) != _annotation_rows(
        {name: store.annotation_column(name) for name in store.annotation_columns}
    ):
        raise UsageError(other_videos(store, ["annotations changed"]))


def _annotation_rows(columns: Mapping[str, Column]) -> list[tuple[object, ...]]:
    """The annotations as the cells of each with their column, in one order whatever that of their rows is."""
    named = [[(name, value) for value in np.asarray(columns[name], dtype=object)] for name in sorted(columns)]
    return sorted(zip(*named, strict=True), key=repr)


def other_videos(store: Store, notes: list[str]) -> str:
    """That the videos are not those of the store, with the first of `notes`."""
    shown = ", ".join(notes[:3]) or "sources, labels, annotations or other columns changed"
    more = f" and {len(notes) - 3} more" if len(notes) > 3 else ""
    annotated = store.recipe.window != "grid"  # such a store does not grow
    advice = "and annotations to resume" if annotated else "to resume, add --append to extract new ones"
    return (
        f"The videos are not those that {store.name} was planned with: {shown}{more}. "
        f"Name the same videos {advice}, or give a new --store."
    )


def count_rows(store: Store, units: range) -> dict[str, int]:
    """Rows of `units` by status.

    Raises:
        StoreError: one is neither ok nor failed.
    """
    store.refresh()
    status = store.column("status")[units.start * store.unit_rows : units.stop * store.unit_rows]
    absent = int((status == Status.ABSENT).sum())
    if absent:
        raise StoreError(f"{store.name} lacks {absent} of the part's {len(status)} rows. Run the same part again.")
    return {"ok": int((status == Status.OK).sum()), "failed": int((status == Status.FAILED).sum())}


def seal_once(store: Store) -> bool:
    """Seal a complete store, unless another part is at it; whether this one did."""
    try:
        with store.lock(range(store.unit_count, store.unit_count + 1)):  # a range that no unit has
            seal(store)
    except UsageError:
        return False
    return True
