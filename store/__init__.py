"""Token store: rows of frozen-encoder features on disk that are right, or absent with a reason.

    plan.py, recipe.py, schema.py, text.py   what a row is, before anything is encoded
    layout.py, shards.py, files.py           arrays, the bytes of one object, safe writing
    create.py, store.py, rows.py, root.py    make a store, open it, read it
    commits.py, lock.py, absence.py          which units count, who may write, why something is not there
    units.py, markers.py, replace.py         write one unit whole, commit it last, write it anew
    planned.py, merge.py, grow.py, kept.py   further videos, and rows that are tried again
    verify.py, summary.py, cli.py            check, summarise, seal
    neighbours.py, vectors.py                exact cosine search
    index.py, index_build.py                 the same with FAISS, from a file beside the store

A store is a Zarr v3 group that plain zarr and xarray open; `docs/FORMAT.md` specifies it.

    store = open_store("videos.zarr")
    vectors = store.cls()              # (ok rows, dim) float32
    rows = store.ok_rows()             # which rows these are
    paths = store.video_column("path")
    path = paths[store.column("video")[rows[0]]]
"""

from coldframe.store.create import create_store
from coldframe.store.grow import finish_growth, grow_store
from coldframe.store.kept import keep_rows, rows_to_extract, rows_to_retry
from coldframe.store.layout import unit_rows
from coldframe.store.merge import merge_plans
from coldframe.store.neighbours import Neighbours, nearest
from coldframe.store.plan import Clips, Plan, Videos
from coldframe.store.planned import read_plan
from coldframe.store.recipe import Recipe
from coldframe.store.replace import finish_replacements
from coldframe.store.schema import FORMAT_VERSION, TOKEN_TIERS, Flag, Reason, Status, TokenGeometry
from coldframe.store.store import Store, open_store
from coldframe.store.summary import failures, seal, summarise
from coldframe.store.text import path_to_text, text_to_path
from coldframe.store.units import UnitResult, committed_units, discard_units, pending_units, write_unit
from coldframe.store.verify import Problem, VerifyReport, verify_store

__all__ = [
    "FORMAT_VERSION",
    "TOKEN_TIERS",
    "Clips",
    "Flag",
    "Neighbours",
    "Plan",
    "Problem",
    "Reason",
    "Recipe",
    "Status",
    "Store",
    "TokenGeometry",
    "UnitResult",
    "VerifyReport",
    "Videos",
    "committed_units",
    "create_store",
    "discard_units",
    "failures",
    "finish_growth",
    "finish_replacements",
    "grow_store",
    "keep_rows",
    "merge_plans",
    "nearest",
    "open_store",
    "path_to_text",
    "pending_units",
    "read_plan",
    "rows_to_extract",
    "rows_to_retry",
    "seal",
    "summarise",
    "text_to_path",
    "unit_rows",
    "verify_store",
    "write_unit",
]
