"""The commands `coldframe index` and `coldframe search`."""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from coldframe.cli_errors import one_line
from coldframe.errors import UsageError
from coldframe.progress import progress_bar
from coldframe.store.faiss_library import INDEX_KINDS, IndexKind
from coldframe.store.index import Index, open_index
from coldframe.store.index_build import RECALL_WANTED, Built, build_index
from coldframe.store.neighbours import Neighbours
from coldframe.store.store import Store, open_store
from coldframe.store.text import path_to_text
from coldframe.store.vectors import VECTOR_KINDS, VectorKind


@click.command("index")
@click.argument("store")
@click.option(
    "--features",
    type=click.Choice(VECTOR_KINDS),
    default="cls",
    show_default=True,
    help="The [CLS] token, or the mean of the patch tokens of real frames.",
)
@click.option(
    "--kind",
    type=click.Choice(INDEX_KINDS),
    default="exact",
    show_default=True,
    help="exact: compare with every row. ivf: with those of the nearest clusters, for millions of rows.",
)
@click.option("--out", metavar="DIR", help="Where the index is.  [default: STORE.index]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def index_command(store: str, features: VectorKind, kind: IndexKind, out: str | None, as_json: bool) -> None:
    """Build a FAISS index of the ok rows of STORE beside it, or bring one that is there up to date.

    \b
    Examples:
      coldframe index videos.zarr
      coldframe index videos.zarr --kind ivf
      coldframe index videos.zarr --features mean --out mean.index

    Ids are row numbers of the store. Of an ivf index, recall@10 against exact search is measured and shown. A search
    refuses an index that no longer fits the store: run this again after `extract`, `repair` or `retry-failed`.
    """
    opened = open_store(store)
    with progress_bar("Indexing rows", len(opened.ok_rows())) as on_rows:
        built = build_index(opened, out, features=features, kind=kind, on_rows=on_rows)
    if as_json:
        click.echo(json.dumps(_plain(built)))
    else:
        click.echo(_text(built))


def _plain(built: Built) -> dict[str, Any]:
    facts = built.identity.to_dict()
    del facts["units"]
    return {"index": path_to_text(built.folder), "added_rows": built.added_rows, **facts}


def _text(built: Built) -> str:
    one = built.identity
    lines = [
        f"{one_line(path_to_text(built.folder))}: {one.rows} rows, {built.added_rows} added now",
        f"  {one.kind} cosine search of {one.features} vectors, FAISS {one.faiss}, recipe {one.recipe_id[:12]}",
    ]
    if one.recall is not None:
        lines.append(
            f"  {one.nprobe} of {one.lists} lists a search: recall@{one.recall.k} {one.recall.recall:.3f} against "
            f"exact search, {one.recall.queries} rows asked ({RECALL_WANTED} wanted)"
        )
    return "\n".join(lines)


@click.command("search")
@click.argument("store")
@click.option("--row", "rows", type=click.IntRange(min=0), multiple=True, help="Row to ask about; repeatable.")
@click.option("--video", help="Ask about a clip of this video of the store (its path, or the end of it).")
@click.option("--at", "at_seconds", type=float, help="Second of --video that the clip covers.  [default: 0]")
@click.option("-k", "--k", type=click.IntRange(min=1), default=10, show_default=True, help="Answers a query.")
@click.option("--same-source", is_flag=True, help="Let rows of the query's own source answer, which are near-copies.")
@click.option("--index", "folder", metavar="DIR", help="Index to search.  [default: STORE.index]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def search_command(
    store: str,
    rows: tuple[int, ...],
    video: str | None,
    at_seconds: float | None,
    k: int,
    same_source: bool,
    folder: str | None,
    as_json: bool,
) -> None:
    """Find the clips of STORE that are most like one of its clips, by cosine, with its index.

    \b
    Examples:
      coldframe index videos.zarr
      coldframe search videos.zarr --row 0
      coldframe search videos.zarr --video beach.mp4 --at 12.5 -k 5
      coldframe search videos.zarr --row 0 --row 7 --json
    """
    opened = open_store(store)
    queries = [*rows, *([] if video is None else [_row_at(opened, video, at_seconds or 0.0)])]
    if not queries:
        raise UsageError("There is nothing to search for. Name a clip with --row, or with --video and --at.")
    if at_seconds is not None and video is None:
        raise UsageError(f"--at is {at_seconds:g}, of no video. Name one with --video.")
    index = open_index(opened, folder)
    answers = index.nearest(queries, k, exclude_same_source=not same_source)
    if as_json:
        click.echo(json.dumps({"store": opened.name, "answers": [_answer(opened, one) for one in answers]}))
        return
    click.echo("\n\n".join(_answer_text(opened, one) for one in answers))
    click.echo(_remark(index, same_source))


def _row_at(store: Store, video: str, seconds: float) -> int:
    """The ok row whose clip of `video` covers `seconds`; the one that begins last of several."""
    paths, names = store.video_paths, (video, path_to_text(video))  # as it is shown, or as the file is called
    found = [number for number, path in enumerate(paths) if path in names] or [
        number for number, path in enumerate(paths) if path.endswith(tuple(f"/{name}" for name in names))
    ]
    if len(found) != 1:
        which = ", ".join(paths[number] for number in found[:3])
        many = (
            f"{len(found)} videos end like that ({which}, ...); give more of the path."
            if found
            else "it has none such."
        )
        raise UsageError(f"--video is {video!r}; of {store.name}: {many}")
    rows = store.ok_rows()
    rows = rows[store.row_videos[rows] == found[0]]
    start, end = store.column("clip_start_s")[rows], store.column("clip_end_s")[rows]
    covering = np.flatnonzero((start <= seconds) & (seconds < end))
    if not len(covering):
        spans = f"{start.min():g} to {end.max():g} s" if len(rows) else "no clip that is ok"
        raise UsageError(f"--at is {seconds:g} s, which no ok clip of {video} covers; it has {spans}.")
    return int(rows[covering[-1]])


def _clip(store: Store, row: int) -> dict[str, Any]:
    return {
        "row": row,
        "path": store.video_paths[int(store.row_videos[row])],
        "start_s": float(store.column("clip_start_s")[row]),
        "end_s": float(store.column("clip_end_s")[row]),
    }


def _answer(store: Store, one: Neighbours) -> dict[str, Any]:
    pairs = zip(one.rows.tolist(), one.cosine.tolist(), strict=True)
    return {
        "query": _clip(store, one.query),
        "found": [{**_clip(store, row), "cosine": cosine} for row, cosine in pairs],
    }


def _answer_text(store: Store, one: Neighbours) -> str:
    answer = _answer(store, one)
    lines = [f"like row {_place(answer['query'])}"]
    lines += [f"  {found['cosine']:+.4f}  row {_place(found)}" for found in answer["found"]]
    return "\n".join(lines if answer["found"] else [*lines, "  nothing: the store has no other clip to answer"])


def _place(clip: dict[str, Any]) -> str:
    name = one_line(Path(clip["path"]).name)
    return f"{clip['row']}: {name}, {clip['start_s']:.2f} to {clip['end_s']:.2f} s"


def _remark(index: Index, same_source: bool) -> str:
    one = index.identity
    left_out = "" if same_source else " Clips of the query's own source are left out (--same-source keeps them)."
    if one.recall is None:
        return f"\n{one.rows} rows compared.{left_out}"
    return f"\nAbout {one.recall.recall:.0%} of the true answers are found (recall@{one.recall.k}).{left_out}"
