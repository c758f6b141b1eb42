"""Files as corpora hold them and no list names: each gives every picture at its place, or says why not."""

import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import PtsIndex, build_index
from coldframe.store.schema import Flag
from tests.barcode import X264, draw, read_number, write_video

COUNT = 40
MPEG2: dict[str, Any] = {
    "codec": "mpeg2video",
    "options": {"g": "12", "bf": "2", "b": "8000000"},
    "time_base": Fraction(1, 30),
}
VP9: dict[str, Any] = {"codec": "libvpx-vp9", "options": {"crf": "10", "b": "0", "g": "12", "cpu-used": "8"}}
DV: dict[str, Any] = {"codec": "dvvideo", "options": {}, "size": (720, 576), "fps": 25, "time_base": Fraction(1, 25)}
HDR = "log-level=none:crf=8:colorprim=9:colormatrix=9:transfer="
WHOLE: dict[str, dict[str, Any]] = {
    "program.mpg": {**MPEG2, "container": "mpeg"},
    "program.vob": {**MPEG2, "container": "vob"},
    "raw.m2v": {**MPEG2, "container": "mpeg2video"},
    "camera.m2ts": {"container": "mpegts", "muxer": {"mpegts_m2ts_mode": "1", "output_ts_offset": "3600"}},
    "uneven.mp4": {
        "options": {"g": "250", "bf": "3", "crf": "10"},
        "pts": [33 * i + i // 7 * 140 for i in range(COUNT)],
    },
    "uneven.ts": {
        "options": {"g": "250", "bf": "3", "crf": "10"},
        "pts": [33 * i + i // 7 * 140 for i in range(COUNT)],
    },
    "raw.hevc": {"codec": "libx265", "options": {"x265-params": "log-level=none:crf=8:bframes=3"}},
    "raw.ivf": {**VP9, "container": "ivf"},
    "fragment_a_frame.mp4": {"muxer": {"movflags": "frag_every_frame+empty_moov"}},
    "cmaf.mp4": {"muxer": {"movflags": "cmaf+frag_keyframe"}},
    "live.webm": {**VP9, "muxer": {"live": "1"}},
    "alpha.webm": {**VP9, "pixels": "yuva420p"},
    "alpha.mov": {"codec": "prores_ks", "pixels": "yuva444p10le", "options": {}},
    "argb.mov": {"codec": "qtrle", "pixels": "argb", "options": {}},
    "gray16.mkv": {"codec": "ffv1", "pixels": "gray16le", "options": {}},
    "bgr.avi": {"codec": "rawvideo", "pixels": "bgr24", "options": {}},
    "slow_motion.mp4": {"fps": 120},
    "pq.mp4": {"codec": "libx265", "pixels": "yuv420p10le", "options": {"x265-params": HDR + "16"}},
    "hlg.mp4": {"codec": "libx265", "pixels": "yuv420p10le", "options": {"x265-params": HDR + "18"}},
    "tape.dv": {**DV, "container": "dv"},
    "tape.avi": DV,
}


def numbers(path: Path, index: PtsIndex) -> Iterator[int | str]:
    for _, frame in read_frames(str(path), index, range(len(index))):
        yield frame.reason if isinstance(frame, VideoError) else read_number(frame)


@pytest.mark.parametrize("name", WHOLE)
def test_every_picture_is_at_its_place(tmp_path: Path, name: str) -> None:
    fields = dict(WHOLE[name])
    base = Fraction(1, 1000) if "pts" in fields else fields.pop("time_base", None)
    path = write_video(tmp_path / name, COUNT, time_base=base, **fields)
    index = build_index(str(path))
    assert list(numbers(path, index)) == list(range(COUNT))
    fps = fields.get("fps", 30)
    times = [number / 1000 for number in fields["pts"]] if "pts" in fields else [i / fps for i in range(COUNT)]
    if Flag.PTS_SYNTHESISED not in index.flags:
        assert index.seconds.tolist() == pytest.approx(times, abs=2e-3)
    for number in (COUNT - 1, 25, 3):  # by a seek of its own
        ((_, frame),) = read_frames(str(path), index, [number])
        assert not isinstance(frame, VideoError)
        assert read_number(frame) == number


@pytest.mark.parametrize("disposal", [0, 1, 2])
def test_gif_pictures_are_put_together(tmp_path: Path, disposal: int) -> None:
    path = tmp_path / "a.gif"
    first, *others = [Image.fromarray(draw(number)).convert("P", palette=Image.Palette.ADAPTIVE) for number in range(9)]
    first.save(path, save_all=True, append_images=others, duration=[100] * 9, disposal=disposal, optimize=False)
    index = build_index(str(path))
    assert list(numbers(path, index)) == list(range(9))
    assert index.seconds.tolist() == pytest.approx([number / 10 for number in range(9)])


def in_one_track(parts: list[Path], target: Path) -> Path:
    """Packets of one file after the other, in the first one's track, at 30 frames a second."""
    with av.open(str(target), "w") as writing:
        track, begin = None, 0
        for part in parts:
            with av.open(str(part)) as reading:
                track = track or writing.add_stream_from_template(reading.streams.video[0])
                packets = [packet for packet in reading.demux(video=0) if packet.size]
                first = packets[0].dts
                for packet in packets:
                    assert first is not None
                    assert packet.pts is not None
                    assert packet.dts is not None
                    packet.pts, packet.dts = packet.pts - first + begin, packet.dts - first + begin
                    packet.stream = track
                    writing.mux(packet)
            begin += 3000 * len(packets)
    return target


@pytest.mark.parametrize("suffix", [".mkv", ".flv", ".h264"])
def test_h264_that_changes_its_size_gives_every_picture(tmp_path: Path, suffix: str) -> None:
    a = write_video(tmp_path / "a.ts", 24)
    b = write_video(tmp_path / "b.ts", 24, first=24, size=(240, 120))
    path = in_one_track([a, b], tmp_path / f"both{suffix}")
    assert list(numbers(path, build_index(str(path)))) == list(range(48))


def test_pictures_lost_at_a_seam_leave_the_others_at_their_places(tmp_path: Path) -> None:
    # Counters of the two recordings do not fit, so the frames that were being sent are not trusted: B-frames, whose
    # loss is told after the frame that is shown behind them. The timeline restarts, so decoding numbers the frames.
    path = tmp_path / "both.ts"
    parts = [write_video(tmp_path / f"{first}.ts", 24, first=first) for first in (0, 24)]
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    found = list(numbers(path, build_index(str(path))))
    assert len(found) == 48
    assert 0 < found.count("decode_error") < 6
    assert all(shown in (place, "decode_error") for place, shown in enumerate(found))


@pytest.mark.parametrize("name", ["a.mkv", "a.webm", "a.mp4", "a.avi"])
def test_zeros_behind_the_end_are_no_damage(tmp_path: Path, name: str) -> None:
    path = write_video(tmp_path / name, COUNT, **VP9 if name.endswith("webm") else {})
    path.write_bytes(path.read_bytes() + bytes(1 << 16))  # as downloaders reserve their space
    assert list(numbers(path, build_index(str(path)))) == list(range(COUNT))


@pytest.mark.parametrize("share", [0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7])
@pytest.mark.parametrize("length", [2, 200, 1 << 20])
@pytest.mark.parametrize("group", ["12", "12:open-gop=1", "MPEG-4"])
def test_b_frames_in_an_avi_are_at_their_places_or_lost_with_their_group(
    tmp_path: Path, share: float, length: int, group: str
) -> None:
    # No times, so only whole groups of pictures can be counted. The index at the end is gone with long zeros.
    mpeg4: dict[str, Any] = {"codec": "mpeg4", "options": {"bf": "2", "g": "12", "b": "8000000"}}
    h264 = {"options": {"crf": "10", "x264-params": f"keyint={group}:bframes=2"}}
    path = write_video(tmp_path / "a.avi", COUNT, time_base=Fraction(1, 30), **mpeg4 if group == "MPEG-4" else h264)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.pos]
    at = round(places[0] + share * (places[-1] - places[0]))
    data[at : at + length] = bytes(len(data[at : at + length]))
    path.write_bytes(data)
    found = list(numbers(path, build_index(str(path))))
    assert share < 0.7 or found.count("decode_error") < len(found)
    assert [(place, shown) for place, shown in enumerate(found) if shown not in (place, "decode_error")] == []


@pytest.mark.parametrize("change", ["cut", "zeros"])
def test_an_avi_cut_or_emptied_at_any_packet_gives_nothing_wrong(tmp_path: Path, change: str) -> None:
    whole = write_video(tmp_path / "whole.avi", COUNT, time_base=Fraction(1, 30))
    data, path = whole.read_bytes(), tmp_path / "a.avi"
    with av.open(str(whole)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.pos]
    for number in range(14, COUNT - 1):
        begin, end = places[number] + 8, places[number + 1]  # behind the chunk's head
        path.write_bytes(data[:begin] if change == "cut" else data[:begin] + bytes(end - begin) + data[end:])
        found = list(numbers(path, build_index(str(path))))
        assert [(place, shown) for place, shown in enumerate(found) if shown not in (place, "decode_error")] == []


@pytest.mark.parametrize("name", ["a.mkv", "a.ts", "a.mp4", "a.flv", "a.avi"])
def test_a_download_that_stopped_in_reserved_space_gives_nothing_wrong(tmp_path: Path, name: str) -> None:
    muxer = {".mp4": {"movflags": "+faststart"}, ".mkv": {"cluster_time_limit": "300"}}.get(Path(name).suffix, {})
    path = write_video(tmp_path / name, COUNT, muxer=muxer)
    data = path.read_bytes()
    kept = len(data) * (5 if name == "a.avi" else 6) // 10  # half of an AVI with B-frames is its index
    path.write_bytes(data[:kept] + bytes(len(data) - kept))
    found = list(numbers(path, build_index(str(path))))
    good = [shown for shown in found if shown != "decode_error"]
    assert 1 < len(good) < COUNT
    assert all(shown in (place, "decode_error") for place, shown in enumerate(found))


def _lie_about_durations(data: bytes) -> bytes:
    changed = bytearray(data)
    for box, offset in ((b"mvhd", 20), (b"tkhd", 24), (b"mdhd", 20)):
        at = data.find(box) + offset
        changed[at : at + 4] = struct.pack(">I", 0x7FFFFFFF)
    return bytes(changed)


def _second_moov(data: bytes) -> bytes:
    at = data.find(b"moov") - 4
    return data + data[at : at + int.from_bytes(data[at : at + 4], "big")]


@pytest.mark.parametrize(
    "change", [_lie_about_durations, _second_moov, bytes], ids=["durations", "two_moov", "renamed"]
)
def test_headers_and_names_that_lie_change_nothing(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "named.avi"
    path.write_bytes(change(write_video(tmp_path / "a.mp4", COUNT).read_bytes()))
    index = build_index(str(path))
    assert list(numbers(path, index)) == list(range(COUNT))
    assert index.duration_s == pytest.approx(COUNT / 30, abs=1e-3)


def test_an_avi_header_without_a_rate_is_not_needed(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", COUNT, codec="mpeg4", options={"g": "12", "b": "8000000"})
    data = bytearray(path.read_bytes())
    at = data.find(b"avih") + 8
    data[at : at + 4] = bytes(4)  # dwMicroSecPerFrame; the stream's own header has the rate as well
    path.write_bytes(data)
    index = build_index(str(path))
    assert list(numbers(path, index)) == list(range(COUNT))
    assert index.fps == pytest.approx(30, rel=1e-3)


def test_sound_before_pictures_in_an_avi(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as output:
        sound = output.add_stream("pcm_s16le", rate=8000, layout="mono")
        video = output.add_stream("mjpeg", rate=25, options={"q": "2"})
        video.width, video.height, video.pix_fmt = 192, 96, "yuvj420p"
        for number in range(COUNT):
            heard = av.AudioFrame.from_ndarray(np.zeros((1, 320), np.int16), format="s16", layout="mono")
            heard.sample_rate, heard.pts = 8000, 320 * number
            output.mux(sound.encode(heard))
            seen = av.VideoFrame.from_ndarray(draw(number), format="rgb24")
            seen.pts, seen.time_base = number, Fraction(1, 25)
            output.mux(video.encode(seen))
        output.mux(video.encode())
    index = build_index(str(path))
    assert list(numbers(path, index)) == list(range(COUNT))
    assert index.seconds[-1] == pytest.approx((COUNT - 1) / 25)


@pytest.mark.parametrize(("name", "reason"), [("a.mkv", "unreadable"), ("a.mp4", "no_frames")])
def test_a_file_without_a_frame_says_so(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / name
    muxer = {"movflags": "empty_moov"} if name == "a.mp4" else {}
    with av.open(str(path), "w", options=muxer) as output:
        stream = output.add_stream("libx264", rate=30, options=dict(X264))
        stream.width, stream.height, stream.pix_fmt = 192, 96, "yuv420p"
        output.start_encoding()
    with pytest.raises(VideoError) as caught:
        build_index(str(path))
    assert caught.value.reason == reason


def test_a_photo_named_as_a_video_is_told_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    Image.fromarray(draw(5)).save(path, format="JPEG")
    with pytest.raises(VideoError, match="Allowed are MP4/MOV, Matroska/WebM"):
        build_index(str(path))


def test_times_before_zero_in_matroska(tmp_path: Path) -> None:
    whole, path = write_video(tmp_path / "a.mp4", COUNT), tmp_path / "early.mkv"
    with av.open(str(whole)) as reading, av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for packet in reading.demux(video=0):
            if packet.pts is not None and packet.dts is not None:
                packet.pts, packet.dts, packet.stream = packet.pts - 15000, packet.dts - 15000, stream
                writing.mux(packet)
    index = build_index(str(path))
    assert list(numbers(path, index)) == list(range(COUNT))
    assert index.seconds.tolist() == pytest.approx([number / 30 for number in range(COUNT)], abs=2e-3)
