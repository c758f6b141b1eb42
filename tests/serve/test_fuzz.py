"""Hundreds of damaged files: the process lives, nothing hangs, no clip has a hole, no frame is another one.

Everything runs in the decode process, so that a native crash would be an answer and not the end of the tests.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from coldframe.errors import VideoError
from coldframe.serve.clips import VideoCache, VideoClips, read_clips
from coldframe.serve.container import file_sha256
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.survey import survey
from coldframe.store.recipe import Recipe
from coldframe.store.schema import Flag, Reason
from tests.barcode import X264, X265_OPEN_GOP, read_number, write_video

FRAMES, SIDE, MUTATIONS, STALL_SECONDS = 48, 96, 40, 20.0  # square, so that the crop keeps every bar
RECIPE = Recipe(encoder="test", weights_sha256="0" * 64, attention="block_causal", frames=4)
FPS = 30
# What still passes, of about 30 clips; docs/decoding-cases.md says why: nothing in a WebM file checks its pictures.
STILL_WRONG = {"vp9.webm": 1}
CLUSTERS = {"cluster_time_limit": "400"}  # as a long file has many, all of whose pictures go with one flipped bit

SEEDS = {
    "h264.mp4": {"options": X264},
    "h264.mkv": {"options": X264, "muxer": CLUSTERS},
    "h264.ts": {"options": X264},
    "h264.flv": {"options": X264},
    "mpeg4.avi": {"codec": "mpeg4", "options": {"g": "12", "qscale": "2"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"crf": "10", "b": "0", "g": "12", "cpu-used": "8"}},
    "hevc.mkv": {"codec": "libx265", "options": X265_OPEN_GOP, "muxer": CLUSTERS},
    "mjpeg.avi": {"codec": "mjpeg", "pixels": "yuvj420p", "options": {"q": "2"}},
}
GAPS = Flag.VARIABLE_RATE | Flag.TRUNCATED | Flag.PTS_SYNTHESISED


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Where a clip's frames are by their timestamps, in frames from the first; what they show; and a gap untold."""

    at: list[int]
    shown: list[int]
    unflagged_gap: bool


def clips_of(path: str) -> Iterator[Clip | str]:
    """Job of a decode process: the frames of each clip, or the reason why it, or all of them, are not there."""
    sha256, _ = file_sha256(path)
    *_, found = survey(path, RECIPE)
    if found.clips is None:
        yield found.error.reason if found.error else "no reason"
        return
    table, index = found.clips.frame_index, found.index
    assert index is not None
    video = VideoClips(path=path, sha256=sha256, rows=np.arange(len(table)), frame_index=table)
    for row, clip in read_clips(video, VideoCache(), image_size=SIDE, threads=1):
        if isinstance(clip, VideoError):
            yield clip.reason
        else:
            at = np.rint(index.seconds[table[row]] * FPS).astype(int).tolist()
            pictures = [read_number(picture) for picture in clip]
            has_gap = len({b - a for a, b in pairwise(at) if a != b} - {4}) > 0
            yield Clip(at=at, shown=pictures, unflagged_gap=has_gap and not index.flags & GAPS)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """One of the things that disks, networks and recorders do to files."""
    changed = bytearray(data)
    at = chance.randrange(len(data))
    length = chance.randrange(1, 1 + len(data) // 8)
    kind = chance.randrange(6)
    if kind == 0:  # single bits
        for _ in range(chance.randrange(1, 30)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    elif kind == 1:  # the end is missing
        del changed[at:]
    elif kind == 2:  # a piece is missing
        del changed[at : at + length]
    elif kind == 3:  # a block of zeros
        changed[at : at + length] = bytes(len(changed[at : at + length]))
    elif kind == 4:  # a block of noise
        changed[at : at + length] = chance.randbytes(len(changed[at : at + length]))
    else:  # a piece twice
        changed[at:at] = changed[at : at + length]
    return bytes(changed)


@pytest.mark.parametrize("name", SEEDS)
def test_no_mutation_kills_hangs_or_deceives(tmp_path: Path, name: str) -> None:
    whole = write_video(tmp_path / name, FRAMES, size=(SIDE, SIDE), **SEEDS[name]).read_bytes()  # type: ignore[arg-type]
    path, chance = tmp_path / f"damaged_{name}", random.Random(name)
    process = DecodeProcess(stall_seconds=STALL_SECONDS)
    wrong: list[tuple[int, Clip]] = []
    good = 0
    for turn in range(MUTATIONS):
        path.write_bytes(mutate(whole, chance))
        started = time.monotonic()
        for clip in process.run(clips_of, str(path)):  # a VideoError would be a crash or a hang
            if isinstance(clip, str):
                assert clip.upper() in Reason.__members__
                continue
            good += 1
            assert not clip.unflagged_gap
            # Frames may be missing at the start, so numbers may be shifted, but all by the same amount.
            if len({shown - at for at, shown in zip(clip.at, clip.shown, strict=True)}) > 1:
                wrong.append((turn, clip))
        assert time.monotonic() - started < 2 * STALL_SECONDS
    process.close()
    assert good > MUTATIONS // 4  # it is not by refusing everything
    assert len(wrong) <= STILL_WRONG.get(name, 0), wrong
