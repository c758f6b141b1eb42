"""`coldframe bench`: measure a stage beside its floor and its peers."""

from collections.abc import Callable, Mapping
from importlib import import_module

import click

from coldframe.bench.report import Result, Target, print_report

Measure = Callable[[bool], tuple[list[Result], list[Target]]]

# kind -> the function that measures it; imported when asked for
KINDS: Mapping[str, str] = {
    "decode": "coldframe.bench.decode:measure",
    "probe": "coldframe.bench.probe:measure",
    "encode": "coldframe.bench.encode:measure",
    "write": "coldframe.bench.write:measure",
    "pipeline": "coldframe.bench.pipeline:measure",
}


@click.command("bench")
@click.argument("kind", type=click.Choice([*KINDS, "all"]))
@click.option("--quick", is_flag=True, help="Smaller inputs and fewer runs: under three minutes in all.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON.")
def bench_command(kind: str, quick: bool, as_json: bool) -> None:
    """Measure a stage's rate, its floor on this machine and their ratio.

    Outputs are compared before anything is timed. Contenders run in turns; rates are medians, spread is the
    interquartile range over the median. On a busy machine trust the ratios, and those only where the spread is small.

    \b
    Examples:
      coldframe bench decode
      coldframe bench write
      coldframe bench pipeline --json
      coldframe bench all --quick --json
    """
    results: list[Result] = []
    targets: list[Target] = []
    for name in KINDS if kind == "all" else [kind]:
        module, function = KINDS[name].split(":")
        measure: Measure = getattr(import_module(module), function)
        measured, wanted = measure(quick)
        results += measured
        targets += wanted
    print_report(results, targets, as_json=as_json)
