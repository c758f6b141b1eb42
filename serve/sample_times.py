"""Sample times: whether an MP4 or MOV track states when its frames are decoded, or nonsense in place of it.

Presentation times and edit lists count from decoding times. Where those do not advance, FFmpeg makes some up, and an
edit list then hides frames that should be shown: a file of 60 frames had 25.
"""

from typing import BinaryIO

import numpy as np

from coldframe.errors import VideoError
from coldframe.serve.mp4_boxes import track_table

_ENTRY = np.dtype([("count", ">u4"), ("delta", ">u4")])
# FFmpeg's `max_stts_delta`: larger ones, which are 10 s at 48 kHz below zero, it takes for negative and replaces.
_LARGEST_DELTA = 2**32 - 1 - 480000


def require_sample_times(path: str, track_id: int) -> None:
    """Raise `VideoError("unreadable")` if a frame of the track lasts less than no time, or most of them none.

    The last frame may last any time: nothing follows it. Fragments state their times elsewhere and are not looked at.
    """
    with open(path, "rb") as file:
        entries = _entries(file, track_id)
    if not len(entries):
        return
    count, delta = entries["count"].astype(np.int64), entries["delta"]
    count[-1] -= 1
    negative = int(count[delta > _LARGEST_DELTA].sum())
    none = int(count[delta == 0].sum())
    if negative > 0 or none > int(count.sum()) // 2:
        raise VideoError(
            "unreadable",
            f"The table stts states for {negative} of {int(count.sum()) + 1} frames that they last less than no time"
            f" and for {none} that they last none; each has to last some. Write the file anew with a frame rate.",
        )


def _entries(file: BinaryIO, track_id: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """The track's table of decoding times (ISO/IEC 14496-12, 8.6.1.2); empty if there is none."""
    body = track_table(file, track_id, b"mdia", b"minf", b"stbl", b"stts")
    body = body[8 : 8 + 8 * int.from_bytes(body[4:8], "big")]
    return np.frombuffer(body[: len(body) - len(body) % _ENTRY.itemsize], _ENTRY)
