"""The root command: light, complete and helpful."""

import pytest
from click.testing import CliRunner

import coldframe
from coldframe.cli import SUBCOMMANDS, main


def test_help_lists_every_subcommand_with_its_own_first_line() -> None:
    listing = CliRunner().invoke(main, ["--help"]).output
    for name, subcommand in SUBCOMMANDS.items():
        assert name in listing
        page = CliRunner().invoke(main, [name, "--help"]).output
        # pinned, because the listing is written twice to keep `--help` free of heavy imports
        assert subcommand.short_help.split(":")[0].rstrip(".") in " ".join(page.split())


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_every_subcommand_teaches_by_example(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert f"coldframe {name}" in result.output.split("Examples:")[1]


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"coldframe, version {coldframe.__version__}\n"


def test_unknown_subcommand_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["extrakt"])
    assert result.exit_code == 2
    assert "No such command 'extrakt'" in result.output
