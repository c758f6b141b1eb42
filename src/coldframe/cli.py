"""The `coldframe` command. A subcommand's module is imported only when it is called."""

from collections.abc import Mapping

import click

import coldframe
from coldframe.lazy_group import LazyGroup, Subcommand

SUBCOMMANDS: Mapping[str, Subcommand] = {
    "bench": Subcommand(
        target="coldframe.bench.cli:bench_command",
        short_help="Measure a stage's rate, its floor on this machine and their ratio.",
    ),
    "build-engine": Subcommand(
        target="coldframe.export.engine_cli:build_engine_command",
        short_help="Build a TensorRT engine from a bundle's graph, into the bundle.",
    ),
    "convert": Subcommand(
        target="coldframe.store.convert_cli:convert_command",
        short_help="Write the ok rows of a store in a format that other tools read.",
    ),
    "demo": Subcommand(
        target="coldframe.demo:demo_command",
        short_help="Run the whole thread on real clips, from export to report.",
    ),
    "doctor": Subcommand(
        target="coldframe.serve.doctor_cli:doctor_command",
        short_help="Report the machine, and which decoder to trust with which files.",
    ),
    "export": Subcommand(
        target="coldframe.export.cli:export_command",
        short_help="Export a frozen video encoder to a bundle with measured parity.",
    ),
    "extract": Subcommand(
        target="coldframe.serve.cli:extract_command",
        short_help="Extract tokens of videos into a Zarr store.",
    ),
    "index": Subcommand(
        target="coldframe.store.index_cli:index_command",
        short_help="Build a FAISS index of the ok rows of STORE beside it.",
    ),
    "info": Subcommand(
        target="coldframe.store.cli:info_command",
        short_help="Show what a store holds and how complete it is.",
    ),
    "parity": Subcommand(
        target="coldframe.export.cli:parity_command",
        short_help="Measure a bundle again against its PyTorch reference.",
    ),
    "plan": Subcommand(
        target="coldframe.serve.cli:plan_command",
        short_help="Show what an extraction would do: videos, clips, bytes and hours.",
    ),
    "repair": Subcommand(
        target="coldframe.serve.repair_cli:repair_command",
        short_help="Extract again exactly what is missing or damaged in a store.",
    ),
    "retry-failed": Subcommand(
        target="coldframe.serve.retry_cli:retry_command",
        short_help="Try failed rows of a store again, such as those of a disk that was away.",
    ),
    "search": Subcommand(
        target="coldframe.store.index_cli:search_command",
        short_help="Find the clips of STORE that are most like one of its clips.",
    ),
    "verify": Subcommand(
        target="coldframe.serve.verify_cli:verify_command",
        short_help="Check every row, marker and checksum of a store.",
    ),
}


@click.group("coldframe", cls=LazyGroup, subcommands=SUBCOMMANDS)
@click.version_option(coldframe.__version__, prog_name="coldframe")
def main() -> None:
    """Turn videos into a store of frozen-encoder tokens that can be trusted.

    \b
    A first run:
      coldframe export levjepa-nano --random-init 0 --out nano/
      coldframe plan videos/ --encoder nano/
      coldframe extract videos/ --encoder nano/ --store videos.zarr
      coldframe verify videos.zarr
      coldframe-probe linear videos.zarr --labels labels.csv --label label

    Exit codes: 0 done, 1 failed, 2 usage, 3 finished but some inputs failed.
    """


if __name__ == "__main__":
    main()
