"""The `coldframe-probe` command. It lives in the root package because it ties probes and exported encoders together."""

from collections.abc import Mapping

import click

import coldframe
from coldframe.lazy_group import LazyGroup, Subcommand

SUBCOMMANDS: Mapping[str, Subcommand] = {
    "linear": Subcommand(
        target="coldframe.probes.cli:linear",
        short_help="Fit a linear probe on a store and report it on test videos.",
    ),
    "parity": Subcommand(
        target="coldframe.export.cli:parity_command",
        short_help="Measure a bundle again against its PyTorch reference.",
    ),
}


@click.group("coldframe-probe", cls=LazyGroup, subcommands=SUBCOMMANDS)
@click.version_option(coldframe.__version__)
def main() -> None:
    """Fit readouts on features that were extracted before, and check the encoder that made them."""


if __name__ == "__main__":
    main()
