"""Conversion: rows of a store as files for other tools. What is not ok is left out and counted, never filled in."""

import csv
import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import MissingDependency, UsageError
from coldframe.store.files import disk_errors
from coldframe.store.schema import Flag, Status, StorageDtype
from coldframe.store.store import Store
from coldframe.store.text import path_to_text, text_to_path
from coldframe.workplace import workplace

Target = Literal["npy", "parquet", "webdataset", "lance"]
TARGETS: tuple[Target, ...] = get_args(Target)

ROWS_A_READ = 256
SHARD_BYTES = 1 << 30  # of a webdataset tar; large enough to be few, small enough to copy


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What was written.

    Attributes:
        rows: rows written.
        left_out_rows: planned rows that were not, because they, or for `npy` another row of their video, are not ok.
        files: files written.
        dequantised: whether patch tokens were written that the store keeps in int8: as float32, times their scales.
    """

    rows: int
    left_out_rows: int
    files: int
    dequantised: bool = False

    def to_dict(self) -> dict[str, int | bool]:
        return asdict(self)


def convert(
    store: Store, target: Target, out: Path, *, patches: bool = False, on_rows: Callable[[int], object] | None = None
) -> Converted:
    """Write the ok rows of `store` to the new folder `out`, which is there when all of them are.

    Args:
        store: any store; an incomplete one gives what it has.
        target: `npy`, one float32 array (clips, dim) a video and `index.csv`, for tools that work on whole videos, so
            only videos whose rows are all ok; `parquet`, one row a clip with its [CLS] vector; `lance`, the same as a
            Lance dataset; `webdataset`, tar files with `.cls.npy`, `.patch.npy` and `.json` members a clip, and
            `.frame_cls.npy` (time, dim) where the store keeps one vector a frame; no `.cls.npy` without [CLS].
        out: folder to make.
        patches: also write patch tokens, in the stored type, or in float32 where that is int8; `webdataset` only.
        on_rows: called with the number of rows just written.

    Raises:
        UsageError: `out` exists, there is nothing to write, or `patches` does not suit.
        MissingDependency: `parquet` without pyarrow, `lance` without pylance.
    """
    _check(store, target, out, patches)
    advance = on_rows or (lambda count: None)
    with disk_errors("write", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        # half of a conversion looks like a whole one
        with workplace(out, prefix=f".{out.name}.partial-") as partial:
            if target == "npy":
                done = _to_npy(store, partial, advance)
            elif target == "parquet":
                done = _to_parquet(store, partial, advance)
            elif target == "lance":
                done = _to_lance(store, partial, advance)
            else:
                done = _to_webdataset(store, partial, patches, advance)
            partial.rename(out)
    return done


def _check(store: Store, target: Target, out: Path, patches: bool) -> None:
    if out.exists():
        raise UsageError(f"{path_to_text(out)} exists. Name a new folder.")
    if patches and target != "webdataset":
        raise UsageError(f"Patch tokens do not fit into {target}. Use --to webdataset.")
    if patches and not store.geometry.keeps_patches:
        raise UsageError(f"{store.name} has no patch tokens (tokens: {store.recipe.tokens}).")
    if not (store.geometry.has_cls or patches):
        raise UsageError(
            f"{store.name} has no [CLS] tokens (tokens: {store.recipe.tokens}). Use --to webdataset --patches."
        )
    if not len(store.ok_rows()):
        raise UsageError(f"{store.name} has no row that is ok.")
    if target == "npy" and store.recipe.window != "grid":
        raise UsageError(
            f"The clips of {store.name} are made by annotations, and an npy file a video is for clips that cut all of "
            "it. Use another format."
        )
    if target == "npy" and not len(_whole_videos(store)):
        raise UsageError(f"{store.name} has no video whose rows are all ok. Finish it, or use another format.")


def _whole_videos(store: Store) -> NDArray[np.int32]:
    """Numbers of the videos whose rows are all ok."""
    video, ok = store.column("video"), store.column("status") == Status.OK
    return np.setdiff1d(np.unique(video), video[~ok])


class _Facts:
    """What every format says of a row besides its tokens."""

    def __init__(self, store: Store) -> None:
        self._clips = {name: store.column(name) for name in ("video", "clip_start_s", "clip_end_s", "n_real", "flags")}
        self._videos = {name: store.video_column(name) for name in store.video_columns}
        self._annotations = {name: store.annotation_column(name) for name in store.annotation_columns}

    def of(self, row: int) -> dict[str, Any]:
        """JSON values by name; manifest columns and facts of the video under `video_<name>`."""
        video = int(self._clips["video"][row])
        flags = Flag(int(self._clips["flags"][row]))
        return {
            "row": row,
            "clip_start_s": float(self._clips["clip_start_s"][row]),
            "clip_end_s": float(self._clips["clip_end_s"][row]),
            "n_real": int(self._clips["n_real"][row]),
            "flags": [flag.name.lower() for flag in flags if flag.name],
            **{f"video_{name}": _plain(column[video]) for name, column in self._videos.items()},
            **{f"annotation_{name}": _plain(column[row]) for name, column in self._annotations.items()},
        }


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _batches(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    yield from (rows[start : start + ROWS_A_READ] for start in range(0, len(rows), ROWS_A_READ))


def _to_npy(store: Store, out: Path, advance: Callable[[int], object]) -> Converted:
    video, whole = store.column("video"), _whole_videos(store)
    names = _file_names(store)
    facts = _Facts(store)
    with open(out / "index.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "position", "row", "clip_start_s", "clip_end_s", "n_real", "video_path"])
        written = 0
        for number in whole.tolist():
            rows = np.flatnonzero(video == number)
            np.save(out / names[number], store.cls(rows))
            for position, row in enumerate(rows.tolist()):
                of = facts.of(row)
                times = [of[name] for name in ("clip_start_s", "clip_end_s", "n_real", "video_path")]
                writer.writerow([names[number], position, row, *times])
            written += len(rows)
            advance(len(rows))
    return Converted(rows=written, left_out_rows=store.rows - written, files=len(whole) + 1)


def _file_names(store: Store) -> list[str]:
    """`<name of the video>.npy`; videos of equal names get their number too, so that none overwrites another."""
    stems = [path_to_text(os.path.basename(text_to_path(path))) for path in store.video_column("path")]
    stems = [Path(stem).stem.replace("/", "_") or "video" for stem in stems]
    counts = Counter(stem.casefold() for stem in stems)  # some file systems take A and a for the same
    return [f"{stem}.npy" if counts[stem.casefold()] == 1 else f"{stem}.{n}.npy" for n, stem in enumerate(stems)]


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependency("pyarrow (for parquet and lance)", "cpu") from error
    return pyarrow


def _tables(store: Store, advance: Callable[[int], object]) -> Iterator[Any]:
    """Arrow tables of ok rows in row order, one row a clip with its [CLS] vector; the recipe is in their schema."""
    arrow, facts, schema = _arrow(), _Facts(store), None
    for batch in _batches(store.ok_rows()):
        vectors = arrow.FixedSizeListArray.from_arrays(store.cls(batch).reshape(-1), store.geometry.dim)
        table = arrow.Table.from_pylist([facts.of(row) for row in batch.tolist()]).append_column("cls", vectors)
        if schema is None:
            about = {"coldframe_recipe": json.dumps(store.recipe.to_dict()), "coldframe_recipe_id": store.recipe_id}
            schema = table.schema.with_metadata(about)
        yield table.cast(schema)
        advance(len(batch))


def _to_parquet(store: Store, out: Path, advance: Callable[[int], object]) -> Converted:
    _arrow()
    from pyarrow import parquet

    tables = _tables(store, advance)
    first = next(tables)
    with parquet.ParquetWriter(out / "clips.parquet", first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)
    rows = len(store.ok_rows())
    return Converted(rows=rows, left_out_rows=store.rows - rows, files=1)


def _to_lance(store: Store, out: Path, advance: Callable[[int], object]) -> Converted:
    arrow = _arrow()
    try:
        import lance
    except ImportError as error:
        raise MissingDependency("pylance (for lance)", "lance") from error
    tables = _tables(store, advance)
    first = next(tables)
    batches = (batch for table in chain([first], tables) for batch in table.to_batches())
    place = out / "clips.lance"
    lance.write_dataset(arrow.RecordBatchReader.from_batches(first.schema, batches), str(place))
    rows = len(store.ok_rows())
    files = sum(1 for entry in place.rglob("*") if entry.is_file())
    return Converted(rows=rows, left_out_rows=store.rows - rows, files=files)


def _to_webdataset(store: Store, out: Path, patches: bool, advance: Callable[[int], object]) -> Converted:
    rows, facts = store.ok_rows(), _Facts(store)
    geometry = store.geometry
    vectors = 1 + geometry.time * geometry.has_frame_cls
    dequantised = patches and store.recipe.dtype == "int8"
    dtype: StorageDtype = "float32" if dequantised else store.recipe.dtype
    about = {"patch_stored_as": "int8"} if dequantised else {}
    row_bytes = geometry.row_bytes(dtype) if patches else 4 * geometry.dim * vectors
    rows_a_shard = max(1, SHARD_BYTES // row_bytes)
    shards = 0
    for start in range(0, len(rows), rows_a_shard):
        with tarfile.open(out / f"clips-{shards:06d}.tar", "w") as tar:
            for row in rows[start : start + rows_a_shard].tolist():
                if geometry.has_cls:
                    _add(tar, f"{row:09d}.cls.npy", _npy(store.cls([row])[0]))
                if geometry.has_frame_cls:
                    _add(tar, f"{row:09d}.frame_cls.npy", _npy(store.frame_cls([row])[0]))
                if patches:
                    _add(tar, f"{row:09d}.patch.npy", _npy(store.patch([row])[0].astype(dtype)))
                _add(tar, f"{row:09d}.json", json.dumps({**facts.of(row), **about}, sort_keys=True).encode())
                advance(1)
        shards += 1
    return Converted(rows=len(rows), left_out_rows=store.rows - len(rows), files=shards, dequantised=dequantised)


def _npy(values: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # without time or owner, so that equal stores give equal files
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
