import random
from fractions import Fraction
from pathlib import Path

import av
import pytest

from coldframe.errors import VideoError
from coldframe.serve.damage import Damage
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index
from coldframe.serve.transport_stream import layout, packet_loss
from coldframe.store.schema import Flag
from tests.barcode import read_number, write_video

PID, STEP = 256, 188


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("transport")
    options = {"crf": "10", "g": "12", "bf": "2"}
    path = write_video(folder / "a.ts", 60, time_base=Fraction(1, 90000), options=options)
    with av.open(str(path)) as container:
        assert container.streams.video[0].id == PID
    return path.read_bytes()


def losses(folder: Path, data: bytes | bytearray) -> list[Damage]:
    path = folder / "some.ts"
    path.write_bytes(data)
    with open(path, "rb") as file:
        return list(packet_loss(file, PID))


def of_pid(data: bytes) -> list[int]:
    """Where packets of the stream begin."""
    places = range(0, len(data), STEP)
    return [at for at in places if int.from_bytes(data[at + 1 : at + 3], "big") & 0x1FFF == PID and data[at + 3] & 0x10]


def test_a_whole_stream_has_lost_nothing(tmp_path: Path, whole: bytes) -> None:
    assert len(of_pid(whole)) > 60
    assert losses(tmp_path, whole) == []
    assert losses(tmp_path, whole[: 40 * STEP + 50]) == []  # a cut is no loss
    assert losses(tmp_path, b"") == losses(tmp_path, bytes(1000)) == []


@pytest.mark.parametrize("count", [1, 2, 15])
def test_missing_packets_are_a_loss_between_their_neighbours(tmp_path: Path, whole: bytes, count: int) -> None:
    places = of_pid(whole)
    gone = places[30 : 30 + count]
    data = b"".join(whole[at : at + STEP] for at in range(0, len(whole), STEP) if at not in gone)
    (loss,) = losses(tmp_path, data)
    assert loss.reaches_back
    assert loss.start == places[29] + 1
    left = [at for at in range(gone[0], places[30 + count]) if at % STEP == 0 and at not in gone]
    behind = gone[0] + len(left) * STEP
    is_start = data[behind + 1] & 0x40
    assert loss.end == behind + (not is_start)


def test_sixteen_missing_packets_show_in_no_counter(tmp_path: Path, whole: bytes) -> None:
    # The documented limit: if this fails, docs/decoding-cases.md promises too little.
    gone = of_pid(whole)[30:46]
    data = b"".join(whole[at : at + STEP] for at in range(0, len(whole), STEP) if at not in gone)
    assert losses(tmp_path, data) == []


def test_a_packet_sent_twice_and_an_announced_jump_are_no_loss(tmp_path: Path, whole: bytes) -> None:
    places = of_pid(whole)
    twice = whole[: places[30] + STEP] + whole[places[30] :]
    assert losses(tmp_path, twice) == []
    # an adaptation field of one byte with the discontinuity indicator, without payload, before the jump
    jump = bytes((0x47, PID >> 8, PID & 0xFF, 0x20, 183, 0x80)) + bytes(182)
    announced = whole[: places[30]] + jump + whole[places[31] :]
    assert losses(tmp_path, announced) == []
    assert len(losses(tmp_path, whole[: places[30]] + whole[places[31] :])) == 1


def test_a_packet_marked_as_wrong_is_a_loss(tmp_path: Path, whole: bytes) -> None:
    places = of_pid(whole)
    data = bytearray(whole)
    data[places[30] + 1] |= 0x80
    (loss,) = losses(tmp_path, data)
    assert loss.start == places[29] + 1
    assert loss.end >= places[30]


@pytest.mark.parametrize("step", [188, 192, 204])
def test_bytes_that_are_missing_put_the_stream_out_of_step(tmp_path: Path, whole: bytes, step: int) -> None:
    places = of_pid(whole)
    packets = [whole[at : at + STEP] for at in range(0, len(whole), STEP)]
    front, back = (4 if step == 192 else 0), (16 if step == 204 else 0)
    data = b"".join(bytes(front) + packet + bytes(back) for packet in packets)
    with open(tmp_path / "b.ts", "wb+") as file:
        file.write(data)
        assert layout(file) == (step, front)
    assert losses(tmp_path, data) == []
    at = places[30] // STEP * step + 60
    found = losses(tmp_path, data[:at] + data[at + 77 :])
    assert found
    assert all(loss.start <= at + 2 * step and loss.end >= at - step for loss in found)


def test_losses_are_found_in_any_place_of_a_long_file(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The state between two reads of the file is what can go wrong.
    monkeypatch.setattr("coldframe.serve.transport_stream._PACKETS_A_READ", 7)
    assert losses(tmp_path, whole) == []
    places = of_pid(whole)
    for number in random.Random(0).sample(range(1, len(places) - 1), 20):
        data = whole[: places[number]] + whole[places[number] + STEP :]
        (loss,) = losses(tmp_path, data)
        assert loss.start == places[number - 1] + 1


@pytest.mark.parametrize("program", [1, 2], ids=["another_pid", "another_program"])
def test_pictures_that_go_on_elsewhere_are_not_all(tmp_path: Path, program: int) -> None:
    # Tables that change in mid-file, as between two broadcasts: the first stream is read, and is not the whole.
    first = write_video(tmp_path / "a.ts", 40)
    tables = {"mpegts_start_pid": "0x200", "mpegts_service_id": str(program), "output_ts_offset": "1.33333"}
    tables |= {"mpegts_pmt_start_pid": "0x1100"} if program == 2 else {}
    second = write_video(tmp_path / "b.ts", 40, first=40, muxer=tables)
    path = tmp_path / "both.ts"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    index = build_index(str(path))
    answers = read_frames(str(path), index, range(len(index)))
    assert [None if isinstance(frame, VideoError) else read_number(frame) for _, frame in answers] == list(range(40))
    assert program == 2 or Flag.TRUNCATED in index.flags  # FFmpeg does not know a second program as pictures
