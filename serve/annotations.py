"""Annotations: the actions in a CSV file, each of which makes one clip of its video."""

import csv
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from coldframe.errors import InputNotFound, UsageError
from coldframe.serve.inputs import InputVideo
from coldframe.serve.windows import Annotation, window_start
from coldframe.store.layout import require_array_name
from coldframe.store.recipe import Recipe
from coldframe.store.text import path_to_text

# what a column is, by its header; EPIC-KITCHENS' names come first
_ROLES = {
    "id": ("narration_id", "id"),
    "video": ("video_id", "video"),
    "start_s": ("start_timestamp", "start"),
    "stop_s": ("stop_timestamp", "stop"),
}
_CLOCK = re.compile(r"(?:(\d{1,3}):)?([0-5]?\d):([0-5]?\d(?:\.\d{1,9})?)", re.ASCII)
_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Annotated:
    """Videos with their annotations.

    Attributes:
        videos: those that an annotation names, in row order, each with its annotations in row order.
        unannotated: number of videos that none names; they give no rows.
        missing: annotations whose video was not given, by the name of that video; they give no rows.
    """

    videos: Sequence[InputVideo]
    unannotated: int
    missing: Mapping[str, int]


def read_annotations(path: str) -> list[Annotation]:
    """The annotations in a CSV file, in its order.

    Columns are `id`, `video`, `start` and `stop`, or EPIC-KITCHENS' `narration_id`, `video_id`, `start_timestamp` and
    `stop_timestamp`; any others are kept as text, without the blanks around it, which would make two classes of one
    word. Times are seconds, `MM:SS.ss` or `HH:MM:SS.ss`.

    Raises:
        InputNotFound: no such file.
        UsageError: it is no such CSV file, a time is none, a start lies behind its stop, or an id is there twice.
    """
    name = path_to_text(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header, *lines = list(csv.reader(file, strict=True)) or [[]]
    except FileNotFoundError as error:
        raise InputNotFound(f"There is no file {name} of annotations. Check the path.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{name} is not a CSV file in UTF-8: {error}.") from error
    places = _places(name, header)
    found, problems = list[Annotation](), list[str]()
    for number, line in enumerate(lines, start=2):
        if line:
            parsed = _parse(line, header, places)
            if isinstance(parsed, str):
                problems.append(f"line {number}: {parsed}")
            else:
                found.append(parsed)
    twice = [
        f"the id {key!r} is there {count} times" for key, count in Counter(a.id for a in found).items() if count > 1
    ]
    if problems or twice:
        raise UsageError(f"{name}: {_some([*problems, *twice])}. Correct them; nothing of the file is used until then.")
    if not found:
        raise UsageError(f"{name} has no line below its header.")
    return found


def _places(name: str, header: Sequence[str]) -> dict[str, int]:
    """Which column has which role."""
    repeated = [column for column, count in Counter(header).items() if count > 1]
    if repeated or "" in header:
        raise UsageError(f"{name}: column names must be unique and not empty; the header is {list(header)}.")
    places = {}
    for role, names in _ROLES.items():
        present = [column for column in names if column in header]
        if len(present) != 1:
            what = "both, and it must be clear which one counts" if present else "neither"
            raise UsageError(
                f"{name} needs a column {' or '.join(names)} and has {what} (columns: {', '.join(header) or 'none'}). "
                "Rename columns."
            )
        places[role] = header.index(present[0])
    for column in header:
        require_array_name(column)
        if column in _ROLES and header.index(column) not in places.values():
            raise UsageError(f"{name}: the column {column!r} has a name that is taken. Rename it.")
    return places


def _parse(line: Sequence[str], header: Sequence[str], places: Mapping[str, int]) -> Annotation | str:
    """The annotation of a line, or what is wrong with it."""
    if len(line) != len(header):
        return f"{len(line)} cells under {len(header)} columns; quote cells that contain commas"
    cells = {role: line[place].strip() for role, place in places.items()}
    empty = [header[places[role]] for role in ("id", "video") if not cells[role]]
    if empty:
        return f"no {' and no '.join(empty)}"
    start, stop = (_seconds(cells[role]) for role in ("start_s", "stop_s"))
    if start is None or stop is None:
        role = "start_s" if start is None else "stop_s"
        return f"{header[places[role]]} is {cells[role]!r}; allowed are seconds from 0, MM:SS.ss and HH:MM:SS.ss"
    if start > stop:
        return f"it starts at {cells['start_s']} and stops before that, at {cells['stop_s']}"
    rest = {column: line[i].strip() for i, column in enumerate(header) if i not in places.values()}
    return Annotation(id=cells["id"], video=cells["video"], start_s=start, stop_s=stop, columns=rest)


def _seconds(text: str) -> Fraction | None:
    """Exact seconds, or None for what is no time: a rounded one would move a frame."""
    if _SECONDS.fullmatch(text):
        return Fraction(text)
    clock = _CLOCK.fullmatch(text)
    return None if clock is None else 3600 * int(clock[1] or 0) + 60 * int(clock[2]) + Fraction(clock[3])


def annotate(
    videos: Sequence[InputVideo], annotations: Sequence[Annotation], recipe: Recipe, *, allow_missing: bool = False
) -> Annotated:
    """Give each of `videos` its annotations, in the order of its rows: by window, then start, stop and id.

    Args:
        videos: inputs in row order.
        annotations: of one file.
        recipe: its window decides the order of overlapping annotations.
        allow_missing: annotations of other videos are counted instead of refused.

    Raises:
        UsageError: an annotation names no video, or several, of `videos`.
    """
    by_name: dict[str, list[int]] = {}
    for number, video in enumerate(videos):
        base = os.path.basename(video.path)
        for name in {video.path, base, os.path.splitext(base)[0]}:
            by_name.setdefault(path_to_text(name), []).append(number)
    of_video: dict[int, list[Annotation]] = {}
    missing: Counter[str] = Counter()
    for annotation in annotations:
        numbers = by_name.get(annotation.video, [])
        if len(numbers) > 1:
            paths = ", ".join(path_to_text(videos[number].path) for number in numbers[:_SHOWN])
            raise UsageError(f"Annotation {annotation.id} names the video {annotation.video!r}, which is {paths}.")
        if numbers:
            of_video.setdefault(numbers[0], []).append(annotation)
        else:
            missing[annotation.video] += 1
    if missing and (not allow_missing or not of_video):
        raise UsageError(
            f"{missing.total()} of {len(annotations)} annotations name {len(missing)} videos that were not given: "
            f"{_some([repr(name) for name in missing])}. A video is named by its file name, with or without its "
            "ending, or by its absolute path. Name those videos too, or leave their annotations out with "
            "--allow-missing-videos."
        )
    annotated = [
        replace(video, annotations=tuple(sorted(of_video[number], key=lambda item: _order(item, recipe))))
        for number, video in enumerate(videos)
        if number in of_video
    ]
    return Annotated(videos=annotated, unannotated=len(videos) - len(annotated), missing=dict(missing))


def _order(annotation: Annotation, recipe: Recipe) -> tuple[Fraction, Fraction, Fraction, str]:
    """Sort key. Windows that begin earlier come first, because clips are decoded from front to back."""
    start, stop = annotation.start_s, annotation.stop_s
    return window_start(start, stop, recipe), start, stop, annotation.id


def _some(notes: Sequence[str]) -> str:
    more = f" (and {len(notes) - _SHOWN} more)" if len(notes) > _SHOWN else ""
    return "; ".join(notes[:_SHOWN]) + more
