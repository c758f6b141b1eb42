"""Hundreds of damaged files: the process lives, nothing hangs, no clip has a hole, no frame is another one.

Everything runs in the decode process, so that a native crash would be an answer and not the end of the tests.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coldframe.errors import VideoError
from coldframe.serve.decode_process import DecodeProcess
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from coldframe.serve.sampling import sample_clips
from coldframe.store.recipe import Recipe
from coldframe.store.schema import Reason
from tests.barcode import X264, X265_OPEN_GOP, read_number, write_video

FRAMES, MUTATIONS, STALL_SECONDS = 48, 40, 20.0
RECIPE = Recipe(encoder="test", weights_sha256="0" * 64, attention="block_causal", frames=4)
BY_MESSAGE = {"h264.mp4", "h264.mkv", "h264.ts", "mpeg4.avi", "h264.flv"}  # their decoders report damage to the bit

SEEDS = {
    "h264.mp4": {"options": X264},
    "h264.mkv": {"options": X264},
    "h264.ts": {"options": X264},
    "h264.flv": {"options": X264},
    "mpeg4.avi": {"codec": "mpeg4", "options": {"g": "12", "qscale": "2"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"crf": "10", "b": "0", "g": "12", "cpu-used": "8"}},
    "hevc.mkv": {"codec": "libx265", "options": X265_OPEN_GOP},
}
Shown = tuple[int, int | str]  # a planned frame, and the number in the picture or the reason why there is none


def clips_of(path: str) -> Iterator[list[Shown] | str]:
    """Job of a decode process: the frames of each clip, or the reason why there are no clips."""
    try:
        index = build_index(path)
        clips = sample_clips(index.pts, index.time_base, index.frame_duration, RECIPE)
        numbers = np.unique(clips.frame_index)
        shown: dict[int, int | str] = {}
        for number, picture in read_frames(path, index, numbers):
            shown[number] = picture.reason if isinstance(picture, VideoError) else read_number(picture)
    except VideoError as error:
        yield error.reason
        return
    for frames in clips.frame_index:
        yield [(int(number), shown[int(number)]) for number in frames]


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
    whole = write_video(tmp_path / name, FRAMES, **SEEDS[name]).read_bytes()  # type: ignore[arg-type]
    path, chance = tmp_path / f"damaged_{name}", random.Random(name)
    process = DecodeProcess(stall_seconds=STALL_SECONDS)
    wrong: list[tuple[int, list[Shown]]] = []
    good = frames = 0
    for turn in range(MUTATIONS):
        path.write_bytes(mutate(whole, chance))
        started = time.monotonic()
        for clip in process.run(clips_of, str(path)):  # a VideoError would be a crash or a hang
            if isinstance(clip, str):
                assert clip.upper() in Reason.__members__
                continue
            read = [shown for _, shown in clip]
            if any(isinstance(shown, str) for shown in read):
                assert {shown for shown in read if isinstance(shown, str)} <= {"decode_error", "frame_mismatch", "limit"}
                continue
            good, frames = good + 1, frames + len(read)
            # Frames may be missing at the start, so numbers may be shifted, but all by the same amount.
            if len({int(shown) - number for number, shown in clip}) > 1:
                wrong.append((turn, clip))
        assert time.monotonic() - started < 2 * STALL_SECONDS
    process.close()
    assert good > MUTATIONS // 4  # it is not by refusing everything
    for w in wrong: print(w)
    print(name, "good", good, "wrong", len(wrong))
