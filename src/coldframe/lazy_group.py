"""A command group whose subcommands' modules are imported only when they are called."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from coldframe.cli_errors import ColdframeGroup


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """Where a command lives, and its help line, so that `--help` starts without torch."""

    target: str
    short_help: str


class LazyGroup(ColdframeGroup):
    """A group whose subcommands are those of a table, by name."""

    def __init__(self, *args: Any, subcommands: Mapping[str, Subcommand], **options: Any) -> None:
        super().__init__(*args, **options)
        self._subcommands = subcommands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._subcommands:
            return None
        module, name = self._subcommands[cmd_name].target.split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._subcommands[name].short_help) for name in self.list_commands(ctx)])
