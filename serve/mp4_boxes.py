"""MP4 boxes: the structure of MP4 and MOV files (ISO/IEC 14496-12), as far as FFmpeg does not tell of it."""

import os
from collections.abc import Iterator
from typing import BinaryIO

from coldframe.serve.heartbeat import beat

# What a file may begin with; QuickTime files have no ftyp.
_FIRST = (b"ftyp", b"styp", b"moof", b"mdat", b"moov", b"free", b"skip", b"wide", b"sidx")


def boxes(file: BinaryIO, name: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the content of each box called `name` between `at` and `end` begins and ends."""
    while at + 8 <= end:
        beat()
        file.seek(at)
        head = file.read(16)
        length, begin = int.from_bytes(head[:4], "big"), at + 8
        if length == 1:
            length, begin = int.from_bytes(head[8:16], "big"), at + 16
        after = end if length == 0 else at + length
        if after < begin:
            return
        if head[4:8] == name:
            yield begin, min(after, end)
        at = after


def track_table(file: BinaryIO, track: int, *names: bytes) -> bytes:
    """Content of the box at the path `names` below a track's `trak` box; empty if there is none."""
    size = os.fstat(file.fileno()).st_size
    for moov in boxes(file, b"moov", 0, size):
        for place in boxes(file, b"trak", *moov):
            if not any(_track_number(file, header) == track for header, _ in boxes(file, b"tkhd", *place)):
                continue
            places = [place]
            for name in names:
                places = [found for outer in places for found in boxes(file, name, *outer)]
            for begin, end in places:
                file.seek(begin)
                return file.read(end - begin)
    return b""


def _track_number(file: BinaryIO, begin: int) -> int:
    """The track of a `tkhd` box whose content begins at `begin` (8.3.2)."""
    file.seek(begin)
    head = file.read(24)
    at = 20 if head[:1] == b"\x01" else 12  # version 1 has times of 64 bits
    return int.from_bytes(head[at : at + 4], "big")


def why_unfinished(path: str) -> str | None:
    """What is wrong with an MP4 file that describes no track, and what to do; None for all others."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(8)[4:8] not in _FIRST or any(boxes(file, b"moov", 0, size)):
            return None
        if any(boxes(file, b"moof", 0, size)):
            return (
                "The MP4 file holds fragments without a moov box, which describes them. It is a piece of a stream: put "
                "the stream's initialisation segment in front of it."
            )
        return (
            "The MP4 file has no moov box, which describes its frames and is written last: recording or copying was "
            "not finished. Copy it again; if the original is like that, rebuild the box with a recovery tool and a "
            "whole file of the same camera, or record again."
        )


def frames_in_fragments(path: str, track: int) -> int:
    """How many frames the fragments of a track state (8.8); the same one twice in a row counts once.

    FFmpeg orders fragments by their times, and drops frames whose times are taken.
    """
    count, before = 0, b""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for moof in boxes(file, b"moof", 0, size):
            for begin, end in boxes(file, b"traf", *moof):
                if not any(_number_at(file, header + 4) == track for header, _ in boxes(file, b"tfhd", begin, end)):
                    continue
                file.seek(begin)
                content = file.read(end - begin)
                if content != before:
                    count += sum(_number_at(file, run + 4) for run, _ in boxes(file, b"trun", begin, end))
                before = content
    return count


def _number_at(file: BinaryIO, at: int) -> int:
    file.seek(at)
    return int.from_bytes(file.read(4), "big")
