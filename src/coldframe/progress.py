"""Progress for people: on standard error, and only where that is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def progress_bar(label: str, length: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that advances the bar by a number of steps."""
    if not _is_terminal():
        yield lambda steps: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr, show_pos=True) as bar:
        yield bar.update


def announce(stage: str) -> None:
    """Say which stage begins, where there is no telling how long it takes."""
    if _is_terminal():
        click.echo(f"{stage} ...", err=True)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # None if a shell closed it (`2>&-`)
