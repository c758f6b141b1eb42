"""What the user named: files, folders and manifests become one sorted list of input videos."""

import csv
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coldframe.errors import InputNotFound, MissingDependency, UsageError
from coldframe.serve.windows import Annotation
from coldframe.store.layout import require_column_name
from coldframe.store.text import path_to_text

# Only a filter for walking folders: a file that is named, in a manifest or on the command line, is always tried.
VIDEO_ENDINGS = frozenset({
    ".3g2", ".3gp", ".asf", ".avi", ".avif", ".flv", ".gif", ".h264", ".hevc", ".ivf", ".m2ts", ".m4v", ".mkv", ".mov",
    ".mp4", ".mpeg", ".mpg", ".mts", ".ogg", ".ogv", ".rm", ".rmvb", ".ts", ".vob", ".webm", ".wmv",
})  # fmt: skip
_SHOWN_ENDINGS = 8
MANIFEST_ENDINGS = frozenset({".csv", ".parquet", ".pq"})


@dataclass(frozen=True, kw_only=True)
class InputVideo:
    """One file to extract from.

    Attributes:
        path: absolute path, links not resolved.
        source: the independent thing it comes from; None means the file's content.
        columns: further manifest columns; a missing value, or NaN, is None.
        annotations: actions in it that make its clips, in the order of its rows (`annotations.annotate`).
    """

    path: str
    source: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    annotations: tuple[Annotation, ...] = ()

    @property
    def is_described(self) -> bool:
        """Whether a manifest says more about it than its path."""
        return self.source is not None or bool(self.columns)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """All input videos in row order (by path bytes), and how many files a folder walk passed over, by ending."""

    videos: Sequence[InputVideo]
    ignored: Mapping[str, int]


def collect_inputs(paths: Iterable[str]) -> Inputs:
    """Gather the videos of `paths`: files, folders (searched through, links followed once) and manifests.

    A manifest is a `.csv` or `.parquet` file with a `path` column (relative to the manifest), an optional `source`
    and any other columns. The result does not depend on the order of `paths`.

    Raises:
        InputNotFound: a path on the command line does not exist. A missing file that a manifest names is kept: it
            becomes a failed row, because a manifest of a million lines should not stop at one of them.
        UsageError: a manifest is malformed, one path has two descriptions, or nothing was found.
    """
    found: dict[str, InputVideo] = {}
    ignored: Counter[str] = Counter()
    for name in paths:
        if not os.path.exists(name):
            raise InputNotFound(f"{path_to_text(name)} does not exist. Name a video, a folder or a manifest.")
        for video in _videos_of(os.path.abspath(name), ignored):
            known = found.setdefault(video.path, video)
            if known != video and video.is_described and known.is_described:
                raise UsageError(
                    f"{path_to_text(video.path)} is listed twice with different columns ({dict(known.columns)} and "
                    f"{dict(video.columns)}, sources {known.source!r} and {video.source!r}). List it once."
                )
            if not known.is_described:
                found[video.path] = video
    if not found:
        raise UsageError(f"No video found. Passed over: {passed_over(ignored)}. Name files or list them in a manifest.")
    videos = sorted(found.values(), key=lambda video: os.fsencode(video.path))
    return Inputs(videos=videos, ignored=dict(ignored))


def passed_over(ignored: Mapping[str, int]) -> str:
    """`Inputs.ignored` in words, the commonest endings first."""
    commonest = sorted(ignored.items(), key=lambda item: (-item[1], item[0]))
    words = [f"{n} {ending or 'without ending'}" for ending, n in commonest[:_SHOWN_ENDINGS]]
    if rest := commonest[_SHOWN_ENDINGS:]:
        words.append(f"{sum(n for _, n in rest)} of {len(rest)} other endings")
    return ", ".join(words) or "nothing"


def _videos_of(path: str, ignored: Counter[str]) -> Iterator[InputVideo]:
    if os.path.isdir(path):
        for file in _walk(path, set()):
            ending = Path(file).suffix.lower()
            if ending in VIDEO_ENDINGS:
                yield InputVideo(path=file)
            else:
                ignored[ending] += 1
    elif Path(path).suffix.lower() in MANIFEST_ENDINGS:
        yield from read_manifest(path)
    else:
        yield InputVideo(path=path)


def _walk(folder: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """Files below `folder`; every real folder is entered once, so a cycle of links ends."""
    stat = os.stat(folder)
    if (stat.st_dev, stat.st_ino) in seen:
        return
    seen.add((stat.st_dev, stat.st_ino))
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise UsageError(f"{path_to_text(folder)} cannot be read: {error.strerror}.") from error
    for entry in entries:
        link = entry.is_symlink()
        if os.path.isdir(entry.path) if link else entry.is_dir():  # of a link to itself, `entry.is_dir` raises
            yield from _walk(entry.path, seen)
        elif link or entry.is_file():  # a link that leads nowhere becomes a failed row, and is not left out
            yield entry.path


def read_manifest(path: str) -> list[InputVideo]:
    """Read a CSV or parquet manifest. CSV cells stay text ("007" is not a number); parquet keeps its types."""
    rows = _csv_rows(path) if path.lower().endswith(".csv") else _parquet_rows(path)
    folder = os.path.dirname(path)
    videos = []
    for number, row in enumerate(rows, start=1):
        name = row.pop("path", None)
        if not isinstance(name, str) or not name:
            raise UsageError(f"{path_to_text(path)}, row {number}: the path is {name!r}. Give every row a path.")
        source = row.pop("source", None)
        videos.append(
            InputVideo(
                path=os.path.abspath(os.path.join(folder, name)),
                source=None if source in (None, "") or _is_nan(source) else str(source),
                columns={name: None if _is_nan(value) else value for name, value in row.items()},
            )
        )
    return videos


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _csv_rows(path: str) -> list[dict[str, Any]]:
    # surrogateescape keeps file names that are not UTF-8; other cells are checked below
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header, *lines = list(reader) or [[]]
        except csv.Error as error:
            raise UsageError(f"{path_to_text(path)}, line {reader.line_num}: {error}.") from error
    _check_header(path, header)
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        if len(line) != len(header):
            raise UsageError(
                f"{path_to_text(path)}, row {number}: {len(line)} cells under {len(header)} columns. Quote cells that "
                "contain commas."
            )
        row = dict(zip(header, line, strict=True))
        if any("\udc80" <= character <= "\udcff" for key in header if key != "path" for character in row[key]):
            raise UsageError(f"{path_to_text(path)}, row {number}: not UTF-8. Save the manifest as UTF-8.")
        rows.append(row)
    return rows


def _parquet_rows(path: str) -> list[dict[str, Any]]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependency("pyarrow (for parquet manifests)", "cpu") from error
    try:
        table = parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise UsageError(f"{path_to_text(path)} is not a parquet file: {error}.") from error
    _check_header(path, table.column_names)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _check_header(path: str, header: Sequence[str]) -> None:
    if "path" not in header:
        columns = ", ".join(map(repr, header)) or "none"
        raise UsageError(f"{path_to_text(path)} has no column 'path' (columns: {columns}). Add one, or rename yours.")
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated or "" in header:
        raise UsageError(f"{path_to_text(path)}: column names must be unique and not empty; header is {list(header)}.")
    for name in header:
        if name not in ("path", "source"):
            require_column_name(name)
