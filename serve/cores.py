"""Cores: how a worker's share of the processor is divided between its encoder and its decode processes."""

import os
from dataclasses import dataclass

# With fewer, the core that decoding seldom fills would be a third or half of what the encoder has.
_RESERVE_FROM = 4


@dataclass(frozen=True, kw_only=True)
class CoreShare:
    """Threads of one worker's encoder, and its decode processes, each of which runs one thread."""

    threads: int
    decoders: int


def share_cores(*, workers: int, on_gpu: bool, decoders: int | None = None, cores: int | None = None) -> CoreShare:
    """Divide the cores that this process may use among `workers`, and each worker's share once more.

    An encoder on the CPU works in steps that all of its threads finish together, so one core that it shares with a
    decoder halves its speed for as long as that decodes. From four cores a worker on, decoding has cores of its own;
    below, giving one up would always cost more.

    Args:
        workers: processes, each with one encoder.
        on_gpu: the encoder does not need the processor: all cores but one may decode.
        decoders: decode processes a worker; None for one, or with a GPU for all cores but one.
        cores: None for the affinity mask's.
    """
    share = max(1, (len(os.sched_getaffinity(0)) if cores is None else cores) // workers)
    if decoders is None:
        decoders = max(1, share - 1) if on_gpu else 1
    reserved = decoders if share >= _RESERVE_FROM else 0
    return CoreShare(threads=max(1, share - reserved), decoders=decoders)
