"""Kinds: what makes decoders differ, found in one file after the other, each in a process that can be killed."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from coldframe.errors import VideoError
from coldframe.serve.container import open_container
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.pts_index import build_index
from coldframe.store.schema import Flag

_RATES = (23.976, 24.0, 25.0, 29.97, 30.0, 48.0, 50.0, 59.94, 60.0, 120.0)
# They are columns of their own: colour, rotation and rate.
_SHOWN_ELSEWHERE = Flag.COLOUR_UNTAGGED | Flag.ROTATED | Flag.VARIABLE_RATE


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What files of one group have in common."""

    codec: str
    size: str
    colour: str
    rate: str
    rotation: int
    flags: str


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A file that can be read: its kind, and how many frames it shows."""

    path: str
    kind: Kind
    frames: int


def look_at_files(paths: Sequence[str], threads: int) -> Iterator[Looked | VideoError]:
    """What each of `paths` is, in their order, or why it cannot be read.

    Args:
        paths: files.
        threads: files looked at together.
    """
    processes: SimpleQueue[DecodeProcess] = SimpleQueue()

    def examine(path: str) -> Looked | VideoError:
        process = processes.get()
        try:
            (found,) = process.run(look, path)
            return found
        except VideoError as error:  # of the file, or of a process that had to be killed
            return error
        finally:
            processes.put(process)

    with ExitStack() as stack:
        for _ in range(min(threads, len(paths))):
            process = DecodeProcess()
            stack.callback(process.close)
            processes.put(process)
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        yield from pool.map(examine, paths)


def look(path: str) -> Iterator[Looked]:
    """Yield what `path` is, once, as the job of a decode process.

    Raises:
        VideoError: it cannot be read.
    """
    index = build_index(path)
    with open_container(path) as container:
        header = container.streams[index.stream_index].codec_context
        matrix, full = getattr(header, "colorspace", 2), getattr(header, "color_range", 0)
        pixels = getattr(header, "pix_fmt", None)
    untagged = Flag.COLOUR_UNTAGGED in index.flags
    shown = Flag(index.flags & ~_SHOWN_ELSEWHERE)
    flags = [flag.name.lower() for flag in Flag if flag in shown and flag.name]
    if index.mirrored:
        flags.append("mirrored")
    kind = Kind(
        codec=index.codec,
        size=f"{index.width}x{index.height}",
        colour=f"{pixels} {'untagged' if untagged else f'matrix {int(matrix)}'}{' full' if int(full) == 2 else ''}",
        rate="variable" if Flag.VARIABLE_RATE in index.flags else _rate(index.fps),
        rotation=index.rotation,
        flags="|".join(flags) or "-",
    )
    yield Looked(path=path, kind=kind, frames=len(index))


def _rate(fps: float) -> str:
    if np.isnan(fps):
        return "unknown"
    nearest = min(_RATES, key=lambda rate: abs(rate - fps))
    return f"{nearest:g}" if abs(nearest - fps) < 0.004 * nearest else f"{fps:.4g}"
