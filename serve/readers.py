"""Readers: the ways of getting clips out of videos, by name."""

from typing import Literal, get_args

from coldframe.errors import UsageError
from coldframe.serve.clips import ClipReader, PyAVReader
from coldframe.serve.decode_process import STALL_SECONDS
from coldframe.store.recipe import ImageSize

DecoderName = Literal["pyav", "dali", "dali-cpu"]
DECODERS: tuple[DecoderName, ...] = get_args(DecoderName)


def open_reader(
    decoder: DecoderName, *, image_size: ImageSize, threads: int, stall_seconds: float = STALL_SECONDS
) -> ClipReader:
    """A reader that gives clips of `image_size` pixels.

    Args:
        decoder: `pyav`; `dali` on a GPU; or `dali-cpu`, the same graph on the CPU, for VP8, VP9 and MJPEG. Files that
            DALI would not read as PyAV does go to PyAV, each with a recorded reason.
        image_size: side of a square, or height and width.
        threads: threads of DALI's CPU parts; PyAV uses one.
        stall_seconds: how long PyAV may go without getting on before a video's remaining rows are given up.

    Raises:
        UsageError: an unknown name, `dali` on a machine without a GPU, or DALI for an input that is not square.
        MissingDependency: DALI is not installed.
    """
    if decoder not in DECODERS:
        raise UsageError(f"decoder is {decoder!r}; allowed are {', '.join(DECODERS)}.")
    if decoder == "pyav":
        return PyAVReader(image_size=image_size, stall_seconds=stall_seconds)
    if not isinstance(image_size, int):
        raise UsageError(f"The encoder takes {image_size} pixels; DALI gives squares only here. Use --decoder pyav.")
    from coldframe.serve.dali_reader import DaliReader

    return DaliReader(image_size=image_size, device="gpu" if decoder == "dali" else "cpu", threads=threads)
