import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from coldframe.errors import MissingDependency, VideoError
from coldframe.serve.container import decoder_version, file_sha256, open_container, video_streams
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from tests.barcode import cut, read_number, write_sound, write_video

CANARY_FRAMES = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("container")
    write_video(path / "canary.mp4", CANARY_FRAMES)
    return path


def reason(path: str | Path) -> str:
    with pytest.raises(VideoError) as caught:
        build_index(os.fspath(path))
    return caught.value.reason


@pytest.mark.parametrize(
    "name",
    [
        "a%03d.mp4",
        "a:b.mp4",
        "http:x.mp4",
        "concat:canary.mp4",
        "a\nb.mp4",
        "-i.mp4",
        "b'\".mp4",
        "\udcff\udcfe.mp4",
    ],
    ids=ascii,
)
def test_any_file_name_is_opened_as_the_file_it_names(folder: Path, name: str) -> None:
    path = folder / "names" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((folder / "canary.mp4").read_bytes())
    index = build_index(str(path))
    assert [read_number(frame) for _, frame in read_frames(str(path), index, [0, 29])] == [0, 29]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "ffconcat version 1.0\nfile canary.mp4\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{folder}/canary.mp4\n#EXT-X-ENDLIST\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
        "a=rtpmap:96 H264/90000\n",
        "<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011' type='static'></MPD>",
        "just some words, many times over\n" * 50,
    ],
    ids=["concat", "hls", "sdp", "dash", "text"],
)
def test_a_text_file_named_mp4_reaches_no_other_file(folder: Path, text: str) -> None:
    (folder / "evil.mp4").write_text(text.format(folder=folder))
    assert reason(folder / "evil.mp4") == "unreadable"


def test_each_kind_of_useless_file_has_its_own_reason(folder: Path) -> None:
    (folder / "empty.mp4").write_bytes(b"")
    os.mkfifo(folder / "pipe.mp4")
    write_video(folder / "head.mp4", 10)
    cut(folder / "head.mp4", folder / "no_moov.mp4", 0.3)
    assert reason(folder / "missing.mp4") == "not_found"
    assert reason(f"{folder}/canary.mp4\0.txt") == "not_found"
    assert reason(folder / "empty.mp4") == "empty_file"
    assert reason(folder / "pipe.mp4") == "unreadable"
    assert reason(folder) == "unreadable"
    assert reason(folder / "no_moov.mp4") == "unreadable"
    assert reason(write_sound(folder / "sound.mp4")) == "no_video"


def test_a_cover_picture_is_not_a_video(folder: Path) -> None:
    import av
    from av.stream import Disposition

    path = folder / "cover.mp4"
    with av.open(str(path), "w") as output:
        sound = output.add_stream("aac", rate=8000, layout="mono")
        cover = output.add_stream("png", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "rgb24"
        cover.disposition = Disposition.attached_pic
        output.mux(cover.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        silence = np.zeros((1, 1024), np.float32)
        frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 8000, 0
        output.mux(sound.encode(frame))
        output.mux(sound.encode())
    with open_container(str(path)) as container:
        assert len(container.streams.video) == 1
        with pytest.raises(VideoError, match="cover pictures do not count"):
            video_streams(container)


def test_the_file_is_closed_when_the_user_of_the_container_raises(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), open_container(str(folder / "canary.mp4")):
            raise ZeroDivisionError
    assert len(os.listdir("/proc/self/fd")) == before


def test_digest_and_size_are_those_of_the_bytes(folder: Path) -> None:
    data = os.urandom((1 << 20) + 17)
    (folder / "bytes").write_bytes(data)
    assert file_sha256(str(folder / "bytes")) == (hashlib.sha256(data).hexdigest(), len(data))
    with pytest.raises(VideoError) as caught:
        file_sha256(str(folder / "missing"))
    assert caught.value.reason == "not_found"


def test_without_pyav_the_error_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoder_version().startswith("PyAV ")
    monkeypatch.setitem(sys.modules, "av", None)
    for call in (lambda: build_index(str(folder / "canary.mp4")), decoder_version):
        with pytest.raises(MissingDependency, match=r"coldframe\[cpu\]"):
            call()
