from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.serve.avi_index import trusted_chunks
from tests.barcode import write_video

FRAMES = 40


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"g": "12", "qscale": "2"}
    path = tmp_path_factory.mktemp("avi") / "a.avi"
    return write_video(path, FRAMES, codec="mpeg4", options=options, time_base=Fraction(1, 30))


def positions(path: Path) -> NDArray[np.int64]:
    with av.open(str(path)) as container:
        return np.array([packet.pos for packet in container.demux(video=0) if packet.size], np.int64)


def trusted(path: Path, pos: NDArray[np.int64] | None = None, *, stream: int = 0) -> int:
    with open(path, "rb") as file:
        return trusted_chunks(file, stream, positions(path) if pos is None else pos)


def test_whole_files_are_trusted_and_without_a_promised_index_not_their_last_chunk(tmp_path: Path, whole: Path) -> None:
    assert trusted(whole) == FRAMES
    assert trusted(whole, stream=3) == FRAMES
    data = whole.read_bytes()
    (tmp_path / "none.avi").write_bytes(data[: data.rfind(b"idx1")])
    assert trusted(tmp_path / "none.avi") == len(positions(tmp_path / "none.avi")) - 1 > FRAMES // 2
    at = data.find(b"avih") + 20
    (tmp_path / "none.avi").write_bytes(data[:at] + bytes(4) + data[at + 4 : data.rfind(b"idx1")])
    assert trusted(tmp_path / "none.avi") == len(positions(tmp_path / "none.avi")) > FRAMES // 2


@pytest.mark.parametrize("change", [-500, -6, 700])
def test_a_missing_or_doubled_piece_ends_the_trust_before_it(tmp_path: Path, whole: Path, change: int) -> None:
    data, pos = whole.read_bytes(), positions(whole)
    at = int(pos[20]) + 30
    path = tmp_path / "b.avi"
    path.write_bytes(data[:at] + (data[at - change : at] if change > 0 else b"") + data[at + max(0, -change) :])
    assert trusted(path) == 20


def test_one_wrong_entry_is_the_indexs_own_damage(whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    entry = data.rfind(b"idx1") + 8 + 16 * 20
    data[entry + 9] ^= 1
    (tmp_path / "c.avi").write_bytes(data)
    assert trusted(tmp_path / "c.avi") == FRAMES


def test_chunks_behind_the_index_are_trusted_only_in_files_that_have_several(whole: Path, tmp_path: Path) -> None:
    pos = positions(whole)
    more = np.append(pos, pos[-1] + 5000)
    assert trusted(whole, more) == FRAMES - 1
    data = whole.read_bytes()
    end = 8 + int.from_bytes(data[4:8], "little")
    (tmp_path / "d.avi").write_bytes(data[:end] + b"RIFF\x04\0\0\0AVIX")
    assert trusted(tmp_path / "d.avi", more) == FRAMES + 1
