from pathlib import Path

import av
import numpy as np
import pytest

from coldframe.serve.decoder import Decoder, Landing
from tests.barcode import read_number, write_video


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"crf": "10", "g": "12", "bf": "2"}
    return write_video(tmp_path_factory.mktemp("decoder") / "a.mp4", 48, options=options)


def test_names_are_pts_or_packet_numbers_in_output_order(path: Path) -> None:
    with av.open(str(path)) as container:
        order = [packet.pts for packet in container.demux(video=0) if packet.size]
    for by_number in (False, True):
        with av.open(str(path)) as container:
            run = Decoder(container, container.streams.video[0], by_number=by_number).frames()
            names = [name for name, frame in run if frame is not None]
        pts = [order[name] for name in names] if by_number else names
        assert pts == [1000 * i for i in range(48)]


def test_frames_that_nobody_wants_may_be_left_out_but_wanted_ones_are_right(path: Path) -> None:
    wanted = set(range(0, 48000, 7000))
    with av.open(str(path)) as container:
        run = Decoder(container, container.streams.video[0], wanted=wanted).frames()
        shown = {
            name: read_number(np.asarray(frame.to_ndarray(format="rgb24"), np.uint8))
            for name, frame in run
            if frame is not None
        }
    assert {name: shown[name] for name in wanted} == {name: name // 1000 for name in wanted}
    assert len(shown) < 48


def test_a_run_ends_where_the_seek_went_astray(path: Path) -> None:
    with av.open(str(path)) as container:
        keys = {p.pts: p.size for p in container.demux(video=0) if p.is_keyframe and p.pts is not None}
    for latest, sizes, count in (
        (12000, keys, 36),
        (11999, keys, 0),  # the key frame is later than what is wanted
        (12000, {**keys, 12000: 1}, 0),  # another packet has this pts
    ):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            container.seek(12000, stream=stream)
            run = Decoder(container, stream).frames(landing=Landing(latest_pts=latest, key_bytes=sizes))
            assert len([name for name, frame in run if frame is not None]) == count


def test_leading_pictures_of_a_landing_are_not_handed_out(tmp_path: Path) -> None:
    # These could be decoded, but in most streams they cannot, and not every decoder notices.
    options = {"x265-params": "keyint=30:min-keyint=30:scenecut=0:bframes=3:open-gop=0:radl=2:log-level=none:crf=8"}
    path = write_video(tmp_path / "a.mp4", 90, codec="libx265", options=options)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [(p.pts, p.is_keyframe) for p in container.demux(stream) if p.size and p.pts is not None]
        second = [at for at, (_, is_key) in enumerate(packets) if is_key][1]
        key = packets[second][0]
        assert min(pts for pts, _ in packets[second:]) < key  # the file has leading pictures
        container.seek(key, stream=stream)
        run = Decoder(container, stream).frames()
        assert [name for name, frame in run if frame is not None] == sorted(p for p, _ in packets if p >= key)


def test_what_comes_before_the_key_frame_is_given_up(path: Path) -> None:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        container.seek(6000, stream=stream, any_frame=True)
        run = list(Decoder(container, stream).frames())
    given_up = sorted(name for name, frame in run if frame is None)
    assert given_up
    assert max(given_up) < 12000
    assert [name for name, frame in run if frame is not None] == [1000 * i for i in range(12, 48)]
