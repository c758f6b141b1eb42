"""Readers: the ways of getting clips out of videos, by name."""

from typing import Literal, get_args

from coldframe.errors import UsageError
from coldframe.serve.clips import ClipReader, PyAVReader

DecoderName = Literal["pyav", "dali", "dali-cpu"]
DECODERS: tuple[DecoderName, ...] = get_args(DecoderName)


def open_reader(decoder: DecoderName, *, image_size: int, threads: int) -> ClipReader:
    """A reader that gives squares of `image_size` pixels.

    Args:
        decoder: `pyav`; `dali` on a GPU; or `dali-cpu`, the same graph on the CPU, for VP8, VP9 and MJPEG. Files that
            DALI would not read as PyAV does go to PyAV, each with a recorded reason.
        threads: threads of DALI's CPU parts; PyAV uses one.

    Raises:
        UsageError: an unknown name, or `dali` on a machine without a GPU.
        MissingDependency: DALI is not installed.
    """
    if decoder not in DECODERS:
        raise UsageError(f"decoder is {decoder!r}; allowed are {', '.join(DECODERS)}.")
    if decoder == "pyav":
        return PyAVReader(image_size=image_size)
    from coldframe.serve.dali_reader import DaliReader

    return DaliReader(image_size=image_size, device="gpu" if decoder == "dali" else "cpu", threads=threads)


def require_decoder(decoder: DecoderName) -> None:
    """Raise what `open_reader` would raise, before anything expensive is done."""
    open_reader(decoder, image_size=16, threads=1).close()
