"""Every error that Coldframe raises on purpose.

    ColdframeError                 exit code 1
    |-- UsageError (ValueError)    exit code 2: what was asked for cannot be done as asked
    |   |-- InputNotFound (FileNotFoundError)
    |   |-- MissingDependency (ImportError)
    |   `-- RecipeMismatch         two recipes that must agree differ; the message shows where
    |-- BundleError                an exported encoder is incomplete, altered or over its parity budget
    |-- StoreError                 a store on disk is not what its markers say
    `-- VideoError                 one video cannot be used; carries the reason that its rows will show

A message says what happened, the value, what is allowed and what to do next. Commands print it on one
line and leave with `exit_code`; a traceback is always a defect.
"""

from collections.abc import Mapping
from typing import Any


class ColdframeError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class UsageError(ColdframeError, ValueError):
    """The request itself is wrong."""

    exit_code = 2


class InputNotFound(UsageError, FileNotFoundError):
    """A path that was named does not exist."""

    def __str__(self) -> str:  # FileNotFoundError would print its errno form
        return str(self.args[0])


class MissingDependency(UsageError, ImportError):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed. Install it with: pip install 'coldframe[{extra}]'")


class RecipeMismatch(UsageError):
    """Features made by another recipe were about to be mixed in."""

    def __init__(self, what: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
        differences = "; ".join(
            f"{key}: {here.get(key)!r} here, {there.get(key)!r} in {what}"
            for key in sorted(here.keys() | there.keys())
            if here.get(key) != there.get(key)
        )
        super().__init__(f"{what} was made with another recipe ({differences}). Use the same recipe or a new store.")


class BundleError(ColdframeError):
    """An exported encoder is incomplete, altered or over its parity budget."""


class StoreError(ColdframeError):
    """A store on disk is not what its markers say."""


class VideoError(ColdframeError):
    """One video cannot be used.

    Attributes:
        reason: name of the reason code that the video's rows get (`coldframe.store.schema.Reason`).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type["VideoError"], tuple[str, str]]:  # it crosses process borders
        return VideoError, (self.reason, str(self))
