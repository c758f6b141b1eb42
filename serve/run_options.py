"""Options that say how a run is carried out (`execution.Execution`), shared by every command that extracts."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from coldframe.serve.gpu_runtime import DEVICES, GPU_BACKENDS
from coldframe.serve.guard import FAILURES_IN_A_ROW
from coldframe.serve.readers import DECODERS
from coldframe.serve.runtime import BACKENDS

Command = Callable[..., Any]

BACKEND_OPTIONS = [
    click.option(
        "--backend",
        type=click.Choice([*BACKENDS, *GPU_BACKENDS]),
        default="onnxruntime",
        show_default=True,
        help="Runtime of the encoder.",
    ),
    click.option(
        "--device",
        type=click.Choice(DEVICES),
        help="Where the encoder runs; cuda without a GPU is an error.  [default: cpu, or cuda for tensorrt]",
    ),
]
_RUN_OPTIONS = [
    click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes."),
    click.option("--batch-clips", type=click.IntRange(1, 256), default=4, show_default=True, help="Clips a batch."),
    click.option(
        "--decoder",
        type=click.Choice(DECODERS),
        default="pyav",
        show_default=True,
        help="dali: on the GPU. dali-cpu: VP8, VP9 and MJPEG. What DALI would read differently goes to PyAV, recorded.",
    ),
    click.option(
        "--decoders",
        type=click.IntRange(1),
        help="Decode processes a worker.  [default: 1, or one a core with a GPU]",
    ),
    click.option(
        "--max-failures",
        type=click.IntRange(0),
        metavar="N",
        help="Stop, with exit code 1, once more than N videos of the store have failed.  [default: no limit]",
    ),
    click.option(
        "--max-failures-in-a-row",
        type=click.IntRange(0),
        default=FAILURES_IN_A_ROW,
        show_default=True,
        metavar="N",
        help="Stop, with exit code 1, once N videos in a row gave no clip, as when a disk has gone; 0: never.",
    ),
]


def run_options(command: Command) -> Command:
    """Workers, batch, decoder and when to give up."""
    return with_options(command, _RUN_OPTIONS)


def with_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """`command` with `options`, listed in its help in their order."""
    for option in reversed(options):
        command = option(command)
    return command
