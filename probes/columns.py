"""Columns of a store's videos as text: what labels and groups are made of."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.features import TokenStore

_PLACEHOLDERS = frozenset({"nan", "na", "n/a", "null", "none", "<na>", "nat"})  # as programs write a missing value
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9]{1,14}(\.[0-9]{0,14})?")  # 28 digits at most, as Decimal keeps
_MAX_DISTINCT_NUMBERS = 0.5  # of the labelled videos; above it a column of numbers measures or identifies


@runtime_checkable
class AnnotatedStore(Protocol):
    """A store that says which annotation made each of its rows."""

    @property
    def annotation_columns(self) -> Sequence[str]: ...
    def annotation_column(self, name: str) -> Any: ...
    @property
    def video_columns(self) -> Sequence[str]: ...
    def video_column(self, name: str) -> Any: ...
    def column(self, name: str) -> NDArray[Any]: ...


def video_text(store: TokenStore, name: str) -> list[str]:
    """One text a video, empty where the column has no value (blank text, NaN).

    Whole numbers lose their decimals, since a column with gaps is often stored as float. A column of the annotations
    that made a store's clips serves too, if all annotations of a video have one value there, as those of a person have.

    Raises:
        UsageError: the store has no such column; the message lists those that it has.
    """
    if name in store.video_columns:
        return [_text(value) for value in store.video_column(name)]
    if is_of_annotations(store, name):
        return _of_annotations(cast(AnnotatedStore, store), name)
    known = ", ".join(sorted({*store.video_columns, *getattr(store, "annotation_columns", ())}))
    raise UsageError(
        f"the store has no column {name!r} for its videos. Columns: {known}. Labels can also come from a file: "
        "--labels FILE.csv."
    )


def annotation_text(store: AnnotatedStore, name: str) -> list[str]:
    """One text a row, of the annotation that made it.

    Raises:
        UsageError: the annotations have no such column, or none made the store's clips.
    """
    if name not in store.annotation_columns:
        known = ", ".join(store.annotation_columns) or "none: no annotations made its clips"
        raise UsageError(f"the store has no annotation column {name!r}. Columns: {known}.")
    return [_text(value) for value in store.annotation_column(name)]


def is_of_annotations(store: TokenStore, name: str) -> bool:
    """Whether `name` is a column of the annotations that made the store's clips, and none of its videos."""
    return name not in store.video_columns and isinstance(store, AnnotatedStore) and name in store.annotation_columns


def row_text(store: TokenStore, name: str) -> list[str]:
    """One text a row, of its annotation or of its video, whichever has the column; as `video_text` otherwise."""
    if is_of_annotations(store, name):
        return annotation_text(cast(AnnotatedStore, store), name)
    of_video = video_text(store, name)
    return [of_video[video] for video in store.column("video").tolist()]


def _of_annotations(store: AnnotatedStore, name: str) -> list[str]:
    texts = [""] * len(store.video_column("path"))
    for video, text in zip(store.column("video").tolist(), annotation_text(store, name), strict=True):
        if text and texts[video] and text != texts[video]:
            raise UsageError(
                f"annotation column {name!r} has several values in {store.video_column('path')[video]}, such as "
                f"{texts[video]!r} and {text!r}; here it must say one thing of a video."
            )
        texts[video] = text or texts[video]
    return texts


def require_classes(name: str, values: Sequence[str]) -> None:
    """Refuse a label column that cannot be one.

    Args:
        name: of the column.
        values: non-empty texts of the labelled videos that have rows to use.

    Raises:
        UsageError: no value, one value, or numbers of which more than half are distinct.
    """
    distinct = set(values)
    if not distinct:
        raise UsageError(f"label column {name!r} is empty for every video with ok rows; label some videos.")
    if len(distinct) == 1:
        raise UsageError(
            f"label column {name!r} has the one value {values[0]!r} in all {len(values)} labelled videos; "
            "a probe needs 2 or more classes."
        )
    if len(distinct) > _MAX_DISTINCT_NUMBERS * len(values) and all(map(_is_number, distinct)):
        raise UsageError(
            f"label column {name!r} holds {len(distinct)} distinct numbers in {len(values)} videos: it looks "
            "like a measurement or an identifier, not like classes. Bin it, or name another column."
        )


def doubtful_classes(names: Iterable[str]) -> Iterator[str]:
    """One sentence for each group of class names that differ in writing only, and for names of missing values.

    Nothing is merged: "A" and "a" may well be two classes of a hand alphabet.

    Args:
        names: of classes, distinct.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(_as_meant(name), []).append(name)
    for meant, group in sorted(groups.items()):
        if len(group) > 1:
            yield (
                f"{', '.join(map(repr, group))} count as {len(group)} classes and differ only in case, blanks, Unicode "
                "form or the way a number is written: if they are one, write them alike."
            )
        if meant in _PLACEHOLDERS:
            yield f"{group[0]!r} counts as a class: if it stands for a missing label, leave the cell empty."


def _as_meant(name: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    return str(Decimal(text).normalize() + 0) if _PLAIN_NUMBER.fullmatch(text) else text


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value if value.strip() else ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    number = float(value)
    if np.isnan(number):
        return ""
    return str(int(value)) if number.is_integer() else repr(number)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
