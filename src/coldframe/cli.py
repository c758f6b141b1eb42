"""The `coldframe` command. A subcommand's module is imported only when it is called."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import click

import coldframe
from coldframe.cli_errors import ColdframeGroup


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """Where a command lives, and its help line, so that `coldframe --help` starts without torch."""

    target: str
    short_help: str


SUBCOMMANDS: Mapping[str, Subcommand] = {
    "bench": Subcommand(
        target="coldframe.bench.cli:bench_command",
        short_help="Measure a stage's rate, its floor on this machine and their ratio.",
    ),
    "build-engine": Subcommand(
        target="coldframe.export.engine_cli:build_engine_command",
        short_help="Build a TensorRT engine from a bundle's graph, into the bundle.",
    ),
    "demo": Subcommand(
        target="coldframe.demo:demo_command",
        short_help="Run the whole thread on real clips: export, extract, search, probe.",
    ),
    "export": Subcommand(
        target="coldframe.export.cli:export_command",
        short_help="Export a frozen video encoder to a bundle with measured parity.",
    ),
    "extract": Subcommand(
        target="coldframe.serve.cli:extract_command",
        short_help="Extract tokens of videos into a Zarr store.",
    ),
    "info": Subcommand(
        target="coldframe.store.cli:info_command",
        short_help="Show what a store holds and how complete it is.",
    ),
    "plan": Subcommand(
        target="coldframe.serve.cli:plan_command",
        short_help="Show what an extraction would do: videos, clips, bytes and hours.",
    ),
    "verify": Subcommand(
        target="coldframe.store.cli:verify_command",
        short_help="Check every row, marker and checksum of a store.",
    ),
}


class LazyGroup(ColdframeGroup):
    """A group whose subcommands are listed in `SUBCOMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module, name = SUBCOMMANDS[cmd_name].target.split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name].short_help) for name in self.list_commands(ctx)])


@click.group("coldframe", cls=LazyGroup)
@click.version_option(coldframe.__version__, prog_name="coldframe")
def main() -> None:
    """Turn videos into a store of frozen-encoder tokens that can be trusted.

    \b
    A first run:
      coldframe export levjepa-nano --random-init 0 --out nano/
      coldframe plan videos/ --encoder nano/
      coldframe extract videos/ --encoder nano/ --store videos.zarr
      coldframe verify videos.zarr
      coldframe-probe linear videos.zarr --label label

    Exit codes: 0 done, 1 failed, 2 usage, 3 finished but some inputs failed.
    """


if __name__ == "__main__":
    main()
