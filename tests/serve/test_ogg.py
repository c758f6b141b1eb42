import random
from pathlib import Path

import pytest

from coldframe.serve.ogg import page_damage
from tests.barcode import write_video


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    options = {"b": "2000000", "g": "12", "deadline": "realtime", "cpu-used": "8"}
    path = write_video(tmp_path_factory.mktemp("ogg") / "a.ogv", 40, codec="libvpx", options=options)
    return path.read_bytes()


def found(folder: Path, data: bytes | bytearray, first_pos: int) -> list[tuple[int, int]]:
    (folder / "a.ogv").write_bytes(data)
    with open(folder / "a.ogv", "rb") as file:
        damages = list(page_damage(file, first_pos))
    assert all(damage.reaches_back for damage in damages)
    return [(damage.start, damage.end) for damage in damages]


def pages(data: bytes) -> list[int]:
    starts = [at for at in range(len(data)) if data[at : at + 4] == b"OggS"]
    return [*starts, len(data)]


def test_whole_and_cut_files_have_no_damage(tmp_path: Path, whole: bytes) -> None:
    starts = pages(whole)
    assert len(starts) > 20
    assert found(tmp_path, whole, starts[2]) == []
    assert found(tmp_path, whole[: starts[12] + 30], starts[2]) == []


def test_any_flipped_bit_damages_its_page(tmp_path: Path, whole: bytes) -> None:
    starts, chance = pages(whole), random.Random(0)
    for _ in range(40):
        number = chance.randrange(3, len(starts) - 2)
        data = bytearray(whole)
        data[chance.randrange(starts[number], starts[number + 1])] ^= 1 << chance.randrange(8)
        # the number that is missing shows at the next page, in the same place
        assert set(found(tmp_path, data, starts[2])) == {(starts[number], starts[number + 1])}


def test_missing_pages_are_damage_though_every_page_is_whole(tmp_path: Path, whole: bytes) -> None:
    starts = pages(whole)
    data = whole[: starts[8]] + whole[starts[11] :]
    assert found(tmp_path, data, starts[2]) == [(starts[8], starts[8])]


def test_damage_in_a_page_of_another_stream_is_none_here(tmp_path: Path, whole: bytes) -> None:
    starts = pages(whole)
    page = bytearray(whole[starts[3] : starts[4]])
    page[14:18] = b"else"
    import zlib

    page[22:26] = bytes(4)
    crc = 0
    for byte in page:  # RFC 3533, 6: polynomial 0x04c11db7, from 0, most significant bit first
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc & 1 << 31 else 0)) & 0xFFFFFFFF
    assert crc != zlib.crc32(page)
    page[22:26] = crc.to_bytes(4, "little")
    bad = bytearray(page)
    bad[-1] ^= 1
    assert found(tmp_path, whole[: starts[8]] + page + whole[starts[8] :], starts[2]) == []
    assert found(tmp_path, whole[: starts[8]] + page + bad + whole[starts[8] :], starts[2]) == []
