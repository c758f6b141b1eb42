"""`coldframe bench`: measure a stage beside its floor and its peers."""

from collections.abc import Callable, Mapping
from importlib import import_module

import click

from coldframe.bench.report import Result, Target, print_json, print_tables

Measure = Callable[[bool], tuple[list[Result], list[Target]]]

# kind -> the function that measures it; imported when asked for
KINDS: Mapping[str, str] = {
    "decode": "coldframe.bench.decode:measure",
    "probe": "coldframe.bench.probe:measure",
    "encode": "coldframe.bench.encode:measure",
    "write": "coldframe.bench.write:measure",
    "index": "coldframe.bench.index:measure",
    "pipeline": "coldframe.bench.pipeline:measure",
}


@click.command("bench")
@click.argument("kind", type=click.Choice([*KINDS, "all"]))
@click.option("--quick", is_flag=True, help="Smaller inputs and fewer runs: under three minutes in all.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON.")
def bench_command(kind: str, quick: bool, as_json: bool) -> None:
    """Measure a stage's rate, its floor on this machine and their ratio.

    \b
    decode    delivered frames beside bare PyAV, with and without resizing
    encode    every runtime beside PyTorch and the rate of its own matrix products
    write     a unit beside a plain file of the same bytes; one clip at random
    index     a retrieval index beside reading its vectors, a search beside one product with all of them
    probe     readouts and attentive grids beside their floors
    pipeline  whole extractions beside their stages alone, and which of them bounds; memory; resuming a million rows
    all       all of these in turn, as if named one by one

    A ratio says how much of its reference a thing reaches: 0.90 of "encode alone" is a pipeline that would be a ninth
    faster if decoding and writing were free. Improve what bounds; nothing else makes a run faster.

    Outputs are compared before anything is timed. Contenders run in turns; rates are medians, spread is the
    interquartile range over the median. On a busy machine trust the ratios, and those only where the spread is small.
    With --json the last line is one object: machine, versions, results, targets.

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
        print_tables(measured, wanted)
        results += measured
        targets += wanted
    if as_json:
        print_json(results, targets)
