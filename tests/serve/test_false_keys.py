"""Containers that call every frame a key frame, or the wrong ones: no picture is decoded from a grey one."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import pytest

from coldframe.errors import VideoError
from coldframe.serve.dali_files import Refusal, examine
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from tests.barcode import X264, flip_bits, read_number, write_video

COUNT = 60
FILES: dict[str, tuple[str, dict[str, str]]] = {
    "a.mp4": ("mpeg4", {"g": "12", "bf": "2", "qscale": "2"}),
    "b.mp4": ("libx264", X264),
    "c.mkv": ("libx265", {"x265-params": "keyint=12:bframes=2:log-level=none:crf=8"}),
    "d.avi": ("flv", {"g": "12", "b": "4000000"}),
    "e.mkv": ("msmpeg4", {"g": "12", "b": "4000000"}),
    "f.avi": ("wmv2", {"g": "12", "b": "4000000"}),
    "g.webm": ("libvpx", {"crf": "4", "b": "4000000", "g": "12", "cpu-used": "8"}),
    "i.mp4": ("libx265", {"x265-params": "keyint=12:bframes=0:log-level=none:crf=8"}),
    "h.mp4": ("mpeg2video", {"g": "12", "bf": "2", "b": "4000000"}),
}


def marked(path: Path, is_key: Callable[[int], bool], *, count: int = COUNT) -> Path:
    """A video with other key frames according to its container; MP4 with every one loses the table of them."""
    codec, options = FILES[path.name]
    base = None if codec.startswith("libx") else Fraction(1, 30)
    source = write_video(path.with_name("plain" + path.suffix), count, codec=codec, options=options, time_base=base)
    with av.open(str(source)) as reading, av.open(str(path), "w") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for number, packet in enumerate(packet for packet in reading.demux(video=0) if packet.size):
            packet.is_keyframe, packet.stream = packet.is_keyframe or is_key(number), stream
            writing.mux(packet)
    return path


def numbers(path: Path, *, apart: bool = False) -> list[int | str]:
    """What each frame shows; `apart` reads every one by itself."""
    index = build_index(str(path))
    wanted = [[number] for number in range(len(index))] if apart else [list(range(len(index)))]
    answers = [frame for group in wanted for _, frame in read_frames(str(path), index, group)]
    return [frame.reason if isinstance(frame, VideoError) else read_number(frame) for frame in answers]


@pytest.mark.parametrize("name", FILES)
def test_frames_of_a_file_where_all_are_called_key_frames(tmp_path: Path, name: str) -> None:
    path = marked(tmp_path / name, lambda number: True)
    assert numbers(path) == list(range(COUNT))
    assert numbers(path, apart=True) == list(range(COUNT))


@pytest.mark.parametrize("name", FILES)
def test_lies_that_begin_late_give_no_wrong_picture(tmp_path: Path, name: str) -> None:
    path = marked(tmp_path / name, lambda number: number > 13)
    assert numbers(path) == list(range(COUNT))
    apart = numbers(path, apart=True)
    assert all(shown in (place, "decode_error") for place, shown in enumerate(apart))
    assert name == "c.mkv" or "decode_error" not in apart  # HEVC between two open groups


def test_decoders_that_do_not_tell_what_a_picture_is_get_no_seek(tmp_path: Path) -> None:
    # Packets of this encoder are all called key frames, and none of its frames says that it refers to others.
    path = write_video(tmp_path / "a.mov", COUNT, codec="rpza", pixels="rgb555le", options={"g": "12"})
    assert not build_index(str(path)).seekable
    assert numbers(path, apart=True) == list(range(COUNT))
    intra = write_video(tmp_path / "b.mov", 9, codec="v210", pixels="yuv422p10le", options={})
    assert build_index(str(intra)).seekable


def test_dali_does_not_start_from_such_frames(tmp_path: Path) -> None:
    path = marked(tmp_path / "i.mp4", lambda number: True)
    refused = examine(str(path), build_index(str(path)), device="gpu", size=32)
    assert isinstance(refused, Refusal)
    assert refused.reason == "key_frames"


@pytest.mark.parametrize("seed", range(4))
def test_behind_damage_only_a_true_key_frame_is_trusted(tmp_path: Path, seed: int) -> None:
    path = flip_bits(marked(tmp_path / "a.mp4", lambda number: True), tmp_path / "damaged.mp4", seed=seed, bits=20)
    found = numbers(path)
    assert all(shown in (place, "decode_error") for place, shown in enumerate(found))
    assert 0 < found.count("decode_error") < COUNT


def test_key_frames_that_come_out_last_are_looked_at_too(tmp_path: Path) -> None:
    # Threads hold pictures back, here until the stream ends.
    path = marked(tmp_path / "a.mp4", lambda number: number > 13)
    index = build_index(str(path))
    for place in range(COUNT - 8, COUNT):
        ((_, frame),) = read_frames(str(path), index, [place], threads=8)
        assert isinstance(frame, VideoError) or read_number(frame) == place
