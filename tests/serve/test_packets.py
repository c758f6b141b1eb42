from pathlib import Path

import numpy as np
import pytest

from coldframe.errors import VideoError
from coldframe.serve.packets import Packets, read_packets
from tests.barcode import write_sound, write_video


def packets(pts: list[int], keys: set[int], hidden: set[int]) -> Packets:
    numbers = np.arange(len(pts))
    filler = np.zeros(len(pts), np.int64)
    return Packets(
        pts=np.array(pts),
        dts=filler,
        duration=filler,
        bytes=filler,
        key=np.isin(numbers, list(keys)),
        hidden=np.isin(numbers, list(hidden)),
        pos=filler,
        damaged=np.zeros(len(pts), np.bool_),
    )


def test_hidden_early_and_leading_packets_are_not_shown() -> None:
    # Decode order: two early packets, the key frame, its two leading pictures, a hidden one, two more.
    some = packets([11, 4, 7, 5, 6, 8, 9, 10], keys={2}, hidden={5})
    assert some.shown(()).tolist() == [2, 6, 7]
    assert some.shown([5]).tolist() == [2, 3, 6, 7]


def test_without_key_frames_everything_is_shown() -> None:
    assert packets([3, 1, 2], keys=set(), hidden={1}).shown(()).tolist() == [0, 2]


def test_every_packet_of_the_stream_is_listed_in_file_order(tmp_path: Path) -> None:
    stream, found = read_packets(str(write_video(tmp_path / "a.mp4", 30)))
    assert sorted(found.pts.tolist()) == [1000 * i for i in range(30)]
    assert (np.diff(found.dts) > 0).all()
    assert (np.diff(found.pts) < 0).any()
    assert found.pts[found.key].tolist() == [0, 12000, 24000]
    assert stream.reorders
    assert stream.codec == "h264"


def test_hidden_reference_frames_of_vp8_are_known_by_their_tag(tmp_path: Path) -> None:
    import av

    source = write_video(tmp_path / "a.webm", 20, codec="libvpx", options={"b": "1000000", "cpu-used": "8"})
    path = tmp_path / "b.webm"
    with av.open(str(source)) as reading, av.open(str(path), "w") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for number, packet in enumerate(reading.demux(video=0)):
            if packet.size:
                data = bytearray(bytes(packet))
                if number == 7:
                    data[0] &= ~0x10
                copy = av.Packet(bytes(data))
                copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
                copy.is_keyframe, copy.stream = packet.is_keyframe, stream
                writing.mux(copy)
    _, found = read_packets(str(path))
    assert np.flatnonzero(found.hidden).tolist() == [7]


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    with pytest.raises(VideoError) as caught:
        read_packets(str(write_sound(tmp_path / "a.mp4")))
    assert caught.value.reason == "no_video"
