"""Integrity: which packets of a stream their container shows to be damaged, by checks that FFmpeg does not make.

Decoders of most codecs turn damaged data into plausible pictures, and demuxers pass over checksums and over pieces
that are missing. Matroska (CRC-32 of clusters), MPEG-TS (continuity counters), Ogg (CRC of pages) and AVI (the index)
hold something to compare with; MP4, FLV, program streams and most WebM files do not.
"""

import numpy as np
from numpy.typing import NDArray

from coldframe.serve.avi_index import trusted_chunks
from coldframe.serve.damage import damaged_packets
from coldframe.serve.matroska import cluster_damage
from coldframe.serve.ogg import page_damage
from coldframe.serve.transport_stream import packet_loss


def find_damaged(
    path: str, container_format: str, *, stream_index: int, stream_id: int, pos: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(n,) which packets the container shows to be damaged.

    Args:
        path: the file.
        container_format: FFmpeg's name of the demuxer.
        stream_index: FFmpeg's number of the stream.
        stream_id: the container's own number of it; the PID in a transport stream.
        pos: (n,) where each packet begins in the file, in file order; -1 if unknown.
    """
    names = container_format.split(",")
    with open(path, "rb") as file:
        if "matroska" in names:
            return damaged_packets(cluster_damage(file), pos)
        if "mpegts" in names:
            return damaged_packets(packet_loss(file, stream_id), pos)
        if "ogg" in names and len(pos) and pos[0] >= 0:
            return damaged_packets(page_damage(file, int(pos[0])), pos)
        if "avi" in names:
            return np.arange(len(pos)) >= trusted_chunks(file, stream_index, pos)
    return np.zeros(len(pos), np.bool_)
