"""Single flipped bits and lost pieces that no decoder reports, in files whose container has a check."""

import random
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coldframe.errors import VideoError
from coldframe.serve.dali_files import Refusal, examine
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from tests.barcode import X264, X265_OPEN_GOP, read_number, write_video

FRAMES = 60
VP9 = {"crf": "10", "b": "0", "g": "12", "cpu-used": "8"}
KINDS: dict[str, Mapping[str, Any]] = {
    "vp9.mkv": {"codec": "libvpx-vp9", "options": VP9, "muxer": {"cluster_time_limit": "400"}},
    "hevc.mkv": {"codec": "libx265", "options": X265_OPEN_GOP, "muxer": {"cluster_time_limit": "400"}},
    "h264.mkv": {"options": X264, "muxer": {"cluster_time_limit": "400"}},
}


@pytest.mark.parametrize("name", KINDS)
def test_no_flipped_bit_of_a_cluster_changes_a_pixel(tmp_path: Path, name: str) -> None:
    whole = write_video(tmp_path / name, FRAMES, **KINDS[name])
    index = build_index(str(whole))
    clean = [frame for _, frame in read_frames(str(whole), index, range(FRAMES))]
    data, chance, answered = whole.read_bytes(), random.Random(0), 0
    first, last = data.find(b"\x1f\x43\xb6\x75"), data.rfind(b"\x1c\x53\xbb\x6b")  # first cluster to cues
    for turn in range(12):
        path = tmp_path / f"{turn}_{name}"
        changed = bytearray(data)
        changed[chance.randrange(first + 20, last)] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        try:
            found = build_index(str(path))
        except VideoError:
            continue
        assert found.damaged
        for number, frame in read_frames(str(path), found, range(len(found))):
            if not isinstance(frame, VideoError):
                number += FRAMES - len(found) if found.pts[0] != index.pts[0] else 0
                np.testing.assert_array_equal(frame, clean[number])
                answered += 1
    assert answered > 12 * FRAMES // 4


def test_a_lost_transport_packet_is_given_up_with_its_frame(tmp_path: Path) -> None:
    base = Fraction(1, 90000)
    data = write_video(tmp_path / "a.ts", FRAMES, time_base=base, options={"crf": "2", "g": "12"}).read_bytes()
    for at in range(60 * 188, 120 * 188, 5 * 188):
        path = tmp_path / "b.ts"
        path.write_bytes(data[:at] + data[at + 188 :])
        index = build_index(str(path))
        answers = [frame for _, frame in read_frames(str(path), index, range(len(index)))]
        shown = [None if isinstance(frame, VideoError) else read_number(frame) for frame in answers]
        times = np.rint(index.seconds * 30).astype(int).tolist()
        assert all(number in (None, time) for number, time in zip(shown, times, strict=True))
        assert shown.count(None) < 20


def test_an_avi_that_lost_a_piece_is_good_up_to_it(tmp_path: Path) -> None:
    options = {"g": "12", "qscale": "2"}
    path = write_video(tmp_path / "a.avi", FRAMES, codec="mpeg4", options=options, time_base=Fraction(1, 30))
    data = path.read_bytes()
    at = 0
    for _ in range(30):
        at = data.find(b"00dc", at + 4)
    following = data.find(b"00dc", at + 4)
    path.write_bytes(data[: at + 20] + data[following + 40 :])
    index = build_index(str(path))
    answers = [frame for _, frame in read_frames(str(path), index, range(len(index)))]
    shown = [None if isinstance(frame, VideoError) else read_number(frame) for frame in answers]
    good = [number for number in shown if number is not None]
    assert good == list(range(len(good)))
    assert 20 <= len(good) < 30
    assert shown[len(good) :] == [None] * (len(shown) - len(good))


def test_damaged_files_are_not_given_to_dali(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", FRAMES, **KINDS["vp9.mkv"])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = examine(str(path), build_index(str(path)), device="cpu", size=64)
    assert isinstance(found, Refusal)
    assert (found.reason, "container's checks" in found.detail) == ("damaged", True)
