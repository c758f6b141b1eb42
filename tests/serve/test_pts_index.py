from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from coldframe.errors import VideoError
from coldframe.serve import packets as packets_module
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import PtsIndex, build_index
from coldframe.store.schema import Flag
from tests.barcode import X265_OPEN_GOP, cut, read_number, set_matrix, trim, write_video

DATA = Path(__file__).parents[1] / "data"
MPEG4 = {"bf": "2", "g": "12", "qscale": "2"}
VARIABLE = [33 * i for i in range(30)] + [990 + 100 * i for i in range(30)]

Writer = Callable[..., Path]


def indexed(path: Path) -> PtsIndex:
    return build_index(str(path))


def decoder_times(path: Path) -> list[float]:
    """Seconds of every frame that PyAV's plain loop gives, from the first: an independent count and clock."""
    with av.open(str(path)) as container:
        times = [frame.time for frame in container.decode(video=0)]
    return [time - times[0] for time in times]


def numbers_in(path: Path, index: PtsIndex) -> list[int]:
    frames = [frame for _, frame in read_frames(str(path), index, range(len(index)))]
    assert not [frame for frame in frames if isinstance(frame, VideoError)]
    return [read_number(frame) for frame in frames if not isinstance(frame, VideoError)]


WHOLE: dict[str, Mapping[str, Any]] = {
    "b.mp4": {},
    "b.mkv": {"time_base": Fraction(1, 1000)},
    "b.ts": {"time_base": Fraction(1, 90000)},
    "b.flv": {},
    "fragmented.mp4": {"muxer": {"movflags": "frag_keyframe+empty_moov"}},
    "late_start.mp4": {"pts": [2002 + 1001 * i for i in range(60)], "time_base": Fraction(1, 24000)},
    "open_gop.mp4": {"codec": "libx265", "options": X265_OPEN_GOP},
    "variable.mkv": {"pts": VARIABLE, "time_base": Fraction(1, 1000)},
    "variable.mp4": {"pts": VARIABLE, "time_base": Fraction(1, 1000)},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"crf": "10", "b": "0", "cpu-used": "8"}},
    "program.mpg": {
        "codec": "mpeg2video",
        "options": {"bf": "2", "b": "4000000"},
        "time_base": Fraction(1, 30),
    },
    "plain.avi": {"codec": "mpeg4", "options": {"g": "12", "qscale": "2"}},
    "anim.gif": {"codec": "gif", "pixels": "rgb8", "fps": 10, "time_base": Fraction(1, 100), "options": {}},
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_index_has_the_frames_and_times_that_the_decoder_gives(tmp_path: Path, name: str) -> None:
    path = write_video(tmp_path / name, 60, **WHOLE[name])
    index = indexed(path)
    assert index.seconds.tolist() == pytest.approx(decoder_times(path), abs=1e-9)
    assert numbers_in(path, index) == list(range(60))
    assert not index.synthesised
    assert (Flag.VARIABLE_RATE in index.flags) == ("variable" in name)
    assert not index.flags & (Flag.TRUNCATED | Flag.PTS_SYNTHESISED | Flag.INTERLACED | Flag.SAR_NOT_SQUARE)


@pytest.mark.parametrize(
    ("name", "container", "codec", "options", "rate"),
    [
        ("packed.avi", None, "mpeg4", MPEG4, 30),
        ("b.avi", None, "libx264", {"crf": "10", "bf": "2"}, 30),
        ("raw.h264", "h264", "libx264", {"crf": "10", "bf": "2"}, 25),  # FFmpeg's assumption: none is stated
        ("raw.h265", "hevc", "libx265", X265_OPEN_GOP, 30),
    ],
)
def test_files_without_presentation_times_are_numbered_by_decoding(
    tmp_path: Path, name: str, container: str | None, codec: str, options: Mapping[str, str], rate: int
) -> None:
    path = write_video(tmp_path / name, 60, codec=codec, options=options, container=container)
    index = indexed(path)
    assert numbers_in(path, index) == list(range(60))
    assert index.synthesised
    assert Flag.PTS_SYNTHESISED in index.flags
    assert index.seconds.tolist() == pytest.approx([i / rate for i in range(60)])
    assert index.fps == pytest.approx(rate)
    assert not index.seekable


def rewrite(source: Path, target: Path, change: "Callable[[int, av.Packet[Any]], None]") -> Path:
    """Copy packets after `change(number, packet)`."""
    with av.open(str(source)) as reading, av.open(str(target), "w") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for number, packet in enumerate(reading.demux(video=0)):
            if packet.size:
                change(number, packet)
                packet.stream = stream
                writing.mux(packet)
    return target


def test_b_frames_with_decoding_times_for_presentation_times(tmp_path: Path) -> None:
    def forget_order(number: int, packet: "av.Packet[Any]") -> None:
        packet.pts = packet.dts = 1000 * number

    source = write_video(tmp_path / "a.mp4", 60)
    index = indexed(rewrite(source, tmp_path / "no_ctts.mp4", forget_order))
    assert numbers_in(tmp_path / "no_ctts.mp4", index) == list(range(60))
    assert index.synthesised


@pytest.mark.parametrize("start_s", [0, 100], ids=["same times", "earlier times"])
def test_a_timeline_that_restarts(tmp_path: Path, start_s: int) -> None:
    # Two recordings in one file, as a receiver that was restarted appends them.
    base = Fraction(1, 90000)
    pts = [90000 * start_s + 3000 * i for i in range(30)]
    first = write_video(tmp_path / "a.ts", 30, time_base=base, pts=pts)
    second = write_video(tmp_path / "b.ts", 40, time_base=base, first=30)
    path = tmp_path / "both.ts"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    index = indexed(path)
    found = [
        "lost" if isinstance(frame, VideoError) else read_number(frame)
        for _, frame in read_frames(str(path), index, range(70))
    ]
    # FFmpeg calls the packet at the seam corrupt; what it gives up keeps its place.
    assert [a for a, b in zip(found, range(70), strict=True) if a != b] in ([], ["lost"], ["lost"] * 2)
    assert found[:28] + found[30:] == [*range(28), *range(30, 70)]
    assert index.synthesised
    assert index.seconds.tolist() == pytest.approx([i / 30 for i in range(70)])


def test_a_short_step_back_in_time_is_a_restart_too(tmp_path: Path) -> None:
    options = {"crf": "10", "g": "12", "bf": "0"}
    later = [5000 + 33 * i for i in range(20)]
    first = write_video(tmp_path / "a.flv", 20, pts=later, time_base=Fraction(1, 1000), options=options)
    second = write_video(tmp_path / "b.flv", 20, time_base=Fraction(1, 1000), options=options, first=20)
    path = tmp_path / "both.flv"
    path.write_bytes(first.read_bytes() + second.read_bytes()[13:])  # without its file header
    index = indexed(path)
    assert numbers_in(path, index) == list(range(40))
    assert index.synthesised


@pytest.mark.parametrize("fps", [40, Fraction(30000, 1001), 60])
@pytest.mark.parametrize("base", [1000, 90000])
def test_rounding_to_ticks_is_not_a_variable_rate(tmp_path: Path, fps: Fraction | int, base: int) -> None:
    suffix = "mkv" if base == 1000 else "ts"
    index = indexed(write_video(tmp_path / f"a.{suffix}", 60, fps=fps, time_base=Fraction(1, base)))
    assert Flag.VARIABLE_RATE not in index.flags
    assert index.fps == pytest.approx(float(fps), rel=2e-3)


def test_a_lossless_trim_has_only_its_presentable_frames(tmp_path: Path) -> None:
    source = write_video(tmp_path / "long.mp4", 120, options={"crf": "10", "g": "60", "bf": "2"})
    path = trim(source, tmp_path / "trim.mp4", 1.5, 1.9)
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames > 50  # what the header says
    index = indexed(path)
    assert numbers_in(path, index) == list(range(45, 57))
    assert index.seconds[0] == 0


@pytest.mark.parametrize("suffix", ["mkv", "ts", "mp4"])
@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8])
def test_a_cut_file_ends_before_the_first_hole(tmp_path: Path, suffix: str, share: float) -> None:
    muxer = {"movflags": "+faststart"} if suffix == "mp4" else {}
    whole = write_video(tmp_path / f"whole.{suffix}", 120, muxer=muxer)
    path = cut(whole, tmp_path / f"cut.{suffix}", share)
    index = indexed(path)
    assert Flag.TRUNCATED in index.flags
    assert Flag.VARIABLE_RATE not in index.flags
    assert 20 < len(index) < 119
    assert numbers_in(path, index) == list(range(len(index)))
    assert np.diff(index.seconds).max() < 1.5 / 30


def test_a_live_file_that_was_cut_ends_before_the_first_hole(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "live.mkv", 120, muxer={"live": "1"})
    assert Flag.TRUNCATED not in indexed(whole).flags
    for share in (0.55, 0.6, 0.65, 0.7):
        path = cut(whole, tmp_path / "cut.mkv", share)
        index = indexed(path)
        assert numbers_in(path, index) == list(range(len(index)))


def test_a_long_last_frame_of_a_whole_file_is_kept(tmp_path: Path) -> None:
    times = [33 * i for i in range(59)] + [33 * 70]
    index = indexed(write_video(tmp_path / "a.mkv", 60, pts=times, time_base=Fraction(1, 1000)))
    assert len(index) == 60
    assert Flag.TRUNCATED not in index.flags


@pytest.mark.parametrize("count", [1, 2, 3, 5, 15, 16, 17])
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_short_files(tmp_path: Path, count: int, suffix: str) -> None:
    path = write_video(tmp_path / f"a.{suffix}", count)
    index = indexed(path)
    assert numbers_in(path, index) == list(range(count))
    assert index.frame_duration * index.time_base == pytest.approx(1 / 30, abs=1e-3)


def test_missing_header_fields_do_not_matter(tmp_path: Path) -> None:
    path = write_video(tmp_path / "live.webm", 40, codec="libvpx-vp9", options={"cpu-used": "8"}, muxer={"live": "1"})
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.frames, stream.duration) == (0, None)
    assert numbers_in(path, indexed(path)) == list(range(40))


def test_aspect_and_interlacing_are_flagged(tmp_path: Path) -> None:
    wide = write_video(tmp_path / "wide.mp4", 10, aspect=Fraction(4, 3))
    fields = {"crf": "10", "flags": "+ildct+ilme", "x264-params": "tff=1"}
    interlaced = write_video(tmp_path / "fields.ts", 40, fps=25, time_base=Fraction(1, 90000), options=fields)
    assert Flag.SAR_NOT_SQUARE in indexed(wide).flags
    assert (indexed(wide).width, indexed(wide).height) == (192, 96)
    assert Flag.INTERLACED in indexed(interlaced).flags
    assert len(indexed(interlaced)) == 40


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotation_is_clockwise(tmp_path: Path, degrees: int) -> None:
    plain = write_video(tmp_path / "plain.mp4", 10)
    index = indexed(set_matrix(plain, tmp_path / "turned.mp4", degrees))
    assert (index.rotation, index.width, index.height) == (degrees, 192, 96)
    assert (Flag.ROTATED in index.flags) == (degrees != 0)


def test_a_phone_clip() -> None:
    index = indexed(DATA / "pens.mp4")
    assert (len(index), index.rotation, index.width, index.height, index.codec) == (64, 90, 176, 144, "h264")
    assert Flag.COLOUR_UNTAGGED not in index.flags


def test_the_moving_stream_is_chosen_among_several(tmp_path: Path) -> None:
    path = tmp_path / "two.mkv"
    source = write_video(tmp_path / "a.mp4", 30)
    with av.open(str(source)) as reading, av.open(str(path), "w") as writing:
        still = writing.add_stream("ffv1", rate=30)
        still.width, still.height, still.pix_fmt = 640, 480, "yuv420p"
        video = writing.add_stream_from_template(reading.streams.video[0])
        picture = av.VideoFrame(640, 480, "yuv420p")
        picture.pts = 0
        writing.mux(still.encode(picture))
        writing.mux(still.encode())
        for packet in reading.demux(video=0):
            if packet.size:
                packet.stream = video
                writing.mux(packet)
    index = indexed(path)
    assert (index.stream_index, index.codec) == (1, "h264")
    assert numbers_in(path, index) == list(range(30))


def test_three_frames_over_ten_hours_are_too_much(tmp_path: Path) -> None:
    path = write_video(tmp_path / "bomb.mp4", 3, pts=[0, 1, 36000], time_base=Fraction(1, 1))
    with pytest.raises(VideoError, match="3 frames span") as caught:
        indexed(path)
    assert caught.value.reason == "limit"


def test_too_many_frames_or_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", 30)
    monkeypatch.setattr(packets_module, "MAX_FRAMES", 29)
    with pytest.raises(VideoError, match="more than 29 frames"):
        indexed(path)
    monkeypatch.undo()
    monkeypatch.setattr("coldframe.serve.container.MAX_PIXELS", 192 * 96 - 1)
    with pytest.raises(VideoError, match="192 x 96") as caught:
        indexed(path)
    assert caught.value.reason == "limit"


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"crf": "10", "g": "30", "x264-params": "open-gop=1:bframes=3"}),
        ("libx265", X265_OPEN_GOP),
        ("mpeg2video", {"bf": "2", "g": "15", "b": "4000000"}),
    ],
    ids=["h264", "hevc", "mpeg2"],
)
def test_a_recording_that_begins_between_key_frames_starts_at_the_first(
    tmp_path: Path, codec: str, options: Mapping[str, str]
) -> None:
    # As a tuner writes it: the first packets, and the first key frame's leading pictures, refer to what was
    # never recorded.
    whole = write_video(tmp_path / "a.ts", 100, time_base=Fraction(1, 30), codec=codec, options=options)
    path = tmp_path / "late.ts"
    path.write_bytes(whole.read_bytes()[188 * 40 :])
    index = indexed(path)
    frames = [frame for _, frame in read_frames(str(path), index, range(len(index)))]
    lost = {at for at, frame in enumerate(frames) if isinstance(frame, VideoError)}
    # H.264 reports an error where the first frames say that older ones, never seen, are to be forgotten.
    assert max(lost, default=0) < (30 if codec == "libx264" else 1)
    first = 100 - len(index)
    assert 10 <= first <= 60
    assert all(isinstance(f, VideoError) or read_number(f) == first + at for at, f in enumerate(frames))
    assert Flag.TRUNCATED in index.flags


@pytest.mark.parametrize(("suffix", "base"), [("ts", Fraction(1, 90_000)), ("mkv", Fraction(1, 1000))])
def test_short_remnants_of_a_cut_file_keep_no_frame_behind_the_hole(
    suffix: str, base: Fraction, tmp_path: Path
) -> None:
    """So few packets that every picture is decoded to find their order."""
    whole = write_video(tmp_path / f"w.{suffix}", 60, time_base=base)
    left = []
    for share in np.arange(0.44, 0.97, 0.04):
        index = build_index(str(cut(whole, tmp_path / f"c.{suffix}", float(share))))
        assert np.diff(index.seconds).max() < 1.5 / 30, share
        left.append(len(index))
    assert 3 < min(left) < max(left) < 60
