"""A stand-in for the decode process that works in the caller's own, for tests that are not about decoding."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from coldframe.serve import clips, planner


class InlineProcess:
    """Runs jobs where it is called; `close` has nothing to end."""

    def __init__(self, **limits: float) -> None:
        pass

    def run(self, job: Callable[..., Iterable[Any]], *arguments: object) -> Iterator[Any]:
        yield from job(*arguments)

    def close(self) -> None:
        pass


def use(patched: pytest.MonkeyPatch) -> None:
    """Use it for the length of a test."""
    for module in (clips, planner):
        patched.setattr(module, "DecodeProcess", InlineProcess)


def install() -> None:
    """Use it from now on in this process."""
    for module in (clips, planner):
        module.DecodeProcess = InlineProcess  # type: ignore[attr-defined]
