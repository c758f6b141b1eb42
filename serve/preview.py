"""Preview: what an extraction into a given store would do, without writing anything."""

from dataclasses import asdict, dataclass
from typing import Any

from coldframe.serve.destination import require_planned
from coldframe.store import Plan, Status, merge_plans, open_store, read_plan
from coldframe.store.files import place_of
from coldframe.store.root import is_taken


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Rows of the store as the run would leave it.

    Attributes:
        rows: all of them.
        new_rows: rows that the store does not have yet, extracted or not.
        done_rows: rows that are extracted already, ok or failed.
    """

    rows: int
    new_rows: int
    done_rows: int

    @property
    def rows_to_extract(self) -> int:
        return self.rows - self.done_rows

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rows_to_extract": self.rows_to_extract}


def preview(plan: Plan, store_path: str, *, append: bool) -> Preview:
    """What `extract` would do with `plan` and the store at `store_path`; raises what it would raise."""
    if not is_taken(place_of(store_path)):
        return Preview(rows=len(plan.clips), new_rows=len(plan.clips), done_rows=0)
    store = open_store(store_path)
    plan.recipe.require_equal(store.recipe, f"the store {store_path}")
    if append:
        plan = merge_plans(read_plan(store), plan)
    else:
        require_planned(store, plan)
    done = int((store.column("status") != Status.ABSENT).sum())
    return Preview(rows=len(plan.clips), new_rows=len(plan.clips) - store.rows, done_rows=done)
