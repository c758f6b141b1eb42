"""Edit list: how an MP4 or MOV file says that its pictures are to be played (ISO/IEC 14496-12, 8.6.6).

FFmpeg plays every edit at rate 1, and one that is empty as the beginning of the video, unless it is the first.
"""

import numpy as np

from coldframe.errors import VideoError
from coldframe.serve.mp4_boxes import track_table

_RATE_1 = 1 << 16
_NO_MEDIA = -1
_ENTRIES = {
    0: np.dtype([("length", ">u4"), ("media_time", ">i4"), ("rate", ">i4")]),
    1: np.dtype([("length", ">u8"), ("media_time", ">i8"), ("rate", ">i4")]),
}


def require_plain_edits(path: str, track: int) -> None:
    """Raise `VideoError("unreadable")` if an edit has another rate than 1 (0 freezes a picture), or is empty later on.

    What FFmpeg gives for them are other pictures than those that belong to the times.
    """
    with open(path, "rb") as file:
        table = track_table(file, track, b"edts", b"elst")
    entry = _ENTRIES.get(table[0] if table else 0)
    if entry is None or len(table) < 8:
        return
    body = table[8 : 8 + entry.itemsize * int.from_bytes(table[4:8], "big")]
    edits = np.frombuffer(body[: len(body) - len(body) % entry.itemsize], entry)
    is_empty = edits["media_time"] == _NO_MEDIA
    later = np.arange(len(edits)) >= np.append(np.flatnonzero(~is_empty), len(edits))[0]
    other = np.unique(edits["rate"][~is_empty & (edits["rate"] != _RATE_1)]) / _RATE_1
    if not len(other) and not (is_empty & later).any():
        return
    what = f"plays at rates {', '.join(f'{rate:g}' for rate in other)}" if len(other) else "has a pause"
    raise VideoError(
        "unreadable",
        f"The edit list {what}; rate 1 without pauses is allowed, since FFmpeg gives other pictures for other lists. "
        "Render the edits: write the file anew with the program that made it.",
    )
