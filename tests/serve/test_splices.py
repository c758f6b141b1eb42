"""Recordings that were joined where a group of pictures is open: what refers to pictures left out is no good."""

from fractions import Fraction
from pathlib import Path

import av
import pytest

from coldframe.errors import VideoError
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from tests.barcode import read_number, write_video

TICK = Fraction(1, 90_000)
CODECS = {
    "libx265": {"x265-params": "keyint=12:bframes=3:log-level=none:crf=8"},
    "libx264": {"crf": "10", "x264-params": "keyint=12:bframes=3:open-gop=1"},
}


def spliced(folder: Path, codec: str, suffix: str) -> Path:
    """40 frames, and behind them 60 from 40 on without their first group: its second key frame has leading pictures."""
    path, begin, track = folder / f"both{suffix}", 0, None
    with av.open(str(path), "w") as writing:
        for first, count, skipped in ((0, 40, 0), (40, 60, 1)):
            source = folder / f"{first}{suffix}"
            write_video(source, count, first=first, codec=codec, options=CODECS[codec], time_base=TICK)
            with av.open(str(source)) as reading:
                track = track or writing.add_stream_from_template(reading.streams.video[0])
                packets = [packet for packet in reading.demux(video=0) if packet.size]
                starts = [place for place, packet in enumerate(packets) if packet.is_keyframe]
                packets = packets[starts[skipped] :]
                before = packets[0].dts
                for packet in packets:
                    assert None not in (before, packet.pts, packet.dts)
                    packet.pts, packet.dts = packet.pts - before + begin, packet.dts - before + begin  # type: ignore[operator]
                    packet.stream = track
                    writing.mux(packet)
            begin += len(packets) * round(1 / 30 / (packets[0].time_base or TICK))
    return path


@pytest.mark.parametrize("suffix", [".ts", ".mp4"])
@pytest.mark.parametrize("codec", CODECS)
def test_frames_of_both_parts_are_right_or_lost(tmp_path: Path, codec: str, suffix: str) -> None:
    path = spliced(tmp_path, codec, suffix)
    index = build_index(str(path))
    left_out = 100 - len(index)
    expected = [*range(40), *range(40 + left_out, 100)]

    def shown(wanted: list[int]) -> list[int | str]:
        answers = [frame for _, frame in read_frames(str(path), index, wanted)]
        return [frame.reason if isinstance(frame, VideoError) else read_number(frame) for frame in answers]

    every = shown(list(range(len(index))))
    assert all(found == expected[place] or isinstance(found, str) for place, found in enumerate(every))
    assert every[:36] == expected[:36]
    assert every[-24:] == expected[-24:]  # behind the next key frame at the latest
    apart = [shown([place])[0] for place in range(len(index))]
    assert all(found == expected[place] or isinstance(found, str) for place, found in enumerate(apart))
