"""Labels from a CSV file: further video columns for a store that was extracted without them."""

import csv
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import InputNotFound, UsageError
from coldframe.probes.columns import AnnotatedStore
from coldframe.probes.features import TokenStore
from coldframe.probes.token_view import FrameStore, ShardedStore
from coldframe.store.recipe import Recipe
from coldframe.store.schema import TokenGeometry
from coldframe.store.text import path_to_text

KEYS = ("sha256", "path")  # in this order: content says more than a name


@dataclass(frozen=True, kw_only=True)
class LabelledStore:
    """A store whose videos have further text columns. Tokens and rows are those of `store`.

    Attributes:
        store: what is read.
        extra: one text a video and column, empty where the file says nothing.
    """

    store: ShardedStore
    extra: Mapping[str, Sequence[str]]

    @property
    def name(self) -> str:
        return self.store.name

    @property
    def recipe(self) -> Recipe:
        return self.store.recipe

    @property
    def recipe_id(self) -> str:
        return self.store.recipe_id

    @property
    def encoder(self) -> Mapping[str, Any]:
        return self.store.encoder

    @property
    def geometry(self) -> TokenGeometry:
        return self.store.geometry

    @property
    def video_columns(self) -> Sequence[str]:
        return sorted({*self.store.video_columns, *self.extra})

    def video_column(self, name: str) -> Any:
        return list(self.extra[name]) if name in self.extra else self.store.video_column(name)

    @property
    def annotation_columns(self) -> Sequence[str]:
        return cast(Sequence[str], getattr(self.store, "annotation_columns", ()))

    def annotation_column(self, name: str) -> Any:
        return cast(AnnotatedStore, self.store).annotation_column(name)

    def column(self, name: str) -> NDArray[Any]:
        return self.store.column(name)

    def ok_rows(self) -> NDArray[np.int64]:
        return self.store.ok_rows()

    def cls(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.store.cls(rows)

    @property
    def unit_rows(self) -> int:
        return self.store.unit_rows

    def patch(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.store.patch(rows)

    def stored_into(self, array: str, rows: NDArray[np.int64], rooms: Sequence[NDArray[Any]]) -> None:
        self.store.stored_into(array, rows, rooms)

    def frame_cls(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return cast(FrameStore, self.store).frame_cls(rows)

    def baseline(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.store.baseline(name, rows)


def with_labels(store: ShardedStore, file: str | os.PathLike[str]) -> LabelledStore:
    """`store` with the columns of a CSV file, whose lines are matched to videos by `sha256` or by `path`.

    Paths are taken relative to the file's folder. A column of the file replaces one of the same name. Lines of
    other videos are ignored, so that one file can serve many stores. Where both keys are there, `sha256` decides.

    Raises:
        InputNotFound: no such file.
        UsageError: no key column, no line that fits a video, two lines that say different things of one video, or a
            line whose `sha256` is of one video and whose `path` is of another.
    """
    name, lines = path_to_text(file), _read(file)
    key = next((key for key in KEYS if key in lines[0]), None)
    if key is None:
        raise UsageError(
            f"{name} has the columns {', '.join(map(repr, lines[0]))}; one of them must be sha256 or path, and commas "
            "stand between them."
        )
    videos = _videos_by_key(store, key)
    paths = _videos_by_key(store, "path") if set(KEYS) <= set(lines[0]) else {}
    columns = [column for column in lines[0] if column not in KEYS]
    extra = {column: [""] * len(store.video_column("sha256")) for column in columns}
    found: dict[int, int] = {}
    for number, line in enumerate(lines, start=2):
        value = line[key] if key == "sha256" else _absolute(line[key], file)
        here = videos.get(value, [])
        there = paths.get(_absolute(line["path"], file), here) if paths else here
        if here and not set(here) & set(there):
            raise UsageError(
                f"{name}: line {number} has the sha256 of {store.video_column('path')[here[0]]} and the path of "
                f"{store.video_column('path')[there[0]]}. Leave one of the two columns out, or put them right."
            )
        for video in here:
            if video in found and any(extra[column][video] != line[column] for column in columns):
                raise UsageError(f"{name}: lines {found[video]} and {number} say different things of {value}.")
            found[video] = number
            for column in columns:
                extra[column][video] = line[column]
    if not found:
        raise UsageError(
            f"{name}: none of {len(lines)} lines fits a video of {store.name} by {key}; the first says "
            f"{lines[0][key]!r}, the store has {next(iter(videos), '')!r}."
        )
    return LabelledStore(store=store, extra=extra)


def _read(file: str | os.PathLike[str]) -> list[dict[str, str]]:
    name = path_to_text(file)
    try:
        with open(file, newline="", encoding="utf-8-sig") as text:
            reader = csv.DictReader(text, strict=True)
            lines, header = list(reader), list(reader.fieldnames or [])
    except FileNotFoundError as error:
        raise InputNotFound(f"There is no label file {name}. Check the path.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{name} is not a CSV file in UTF-8: {error}.") from error
    repeated = [column for column, count in Counter(header).items() if count > 1]
    if repeated:
        raise UsageError(f"{name} has the column {repeated[0]!r} more than once. Rename or remove all but one.")
    if not lines:
        raise UsageError(f"{name} has no line below its header.")
    ragged = [number for number, line in enumerate(lines, start=2) if None in line or None in line.values()]
    if ragged:
        raise UsageError(f"{name}: line {ragged[0]} has more or fewer values than the header.")
    return lines


def _videos_by_key(store: TokenStore, key: str) -> dict[str, list[int]]:
    videos: dict[str, list[int]] = {}
    for video, value in enumerate(store.video_column(key)):
        if value:
            videos.setdefault(value, []).append(video)
    if key == "path" and "duplicates" in store.video_columns:
        for video, others in enumerate(store.video_column("duplicates")):
            for other in json.loads(others):
                videos.setdefault(other, []).append(video)
    return videos


def _absolute(path: str, file: str | os.PathLike[str]) -> str:
    return path_to_text(os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(file)), path)))
