import random
from io import BytesIO
from pathlib import Path

import pytest

from coldframe.serve.damage import Damage
from coldframe.serve.matroska import cluster_damage, segment_end
from tests.barcode import write_video

CLUSTER = b"\x1f\x43\xb6\x75"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matroska")
    muxer = {"cluster_time_limit": "400"}
    write_video(path / "a.mkv", 60, muxer=muxer)
    write_video(path / "live.mkv", 60, muxer={**muxer, "live": "1"})
    webm = {"codec": "libvpx-vp9", "options": {"b": "0", "cpu-used": "8"}}
    write_video(path / "a.webm", 60, muxer=muxer, **webm)  # type: ignore[arg-type]
    return path


def damages(path: Path, data: bytes | bytearray) -> list[Damage]:
    target = path.with_suffix(".damaged")
    target.write_bytes(data)
    with open(target, "rb") as file:
        return list(cluster_damage(file))


def clusters(data: bytes) -> list[int]:
    """Where clusters begin; no picture of these files holds their four bytes by chance."""
    found, at = [], data.find(CLUSTER)
    while at >= 0:
        found.append(at)
        at = data.find(CLUSTER, at + 1)
    return found


@pytest.mark.parametrize("name", ["a.mkv", "live.mkv", "a.webm"])
def test_whole_and_cut_files_have_no_damage(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    assert len(clusters(data)) >= 4
    assert damages(folder / name, data) == []
    for share in (0.3, 0.55, 0.8):
        assert damages(folder / name, data[: int(share * len(data))]) == []


@pytest.mark.parametrize("name", ["a.mkv", "live.mkv"])
def test_any_flipped_bit_damages_its_cluster_and_no_other(folder: Path, name: str) -> None:
    whole, chance = (folder / name).read_bytes(), random.Random(0)
    starts = clusters(whole)
    for _ in range(40):
        number = chance.randrange(len(starts) - 1)
        at = chance.randrange(starts[number] + 12, starts[number + 1])
        data = bytearray(whole)
        data[at] ^= 1 << chance.randrange(8)
        assert damages(folder / name, data) == [Damage(start=starts[number], end=starts[number + 1])]


@pytest.mark.parametrize("name", ["a.mkv", "a.webm"])
@pytest.mark.parametrize("change", [-40, 40])
def test_a_piece_missing_or_inserted_damages_its_cluster(folder: Path, name: str, change: int) -> None:
    whole = (folder / name).read_bytes()
    starts = clusters(whole)
    at = starts[1] + 60
    data = whole[:at] + (whole[at - change : at] if change > 0 else b"") + whole[at + max(0, -change) :]
    assert damages(folder / name, data) == [Damage(start=starts[1], end=starts[2] + change)]


def test_a_flipped_cluster_id_hides_one_cluster(folder: Path) -> None:
    data = bytearray((folder / "a.webm").read_bytes())
    starts = clusters(bytes(data))
    data[starts[2]] ^= 0x80
    (damage,) = damages(folder / "a.webm", data)
    assert damage.start in (starts[1], starts[2])
    assert damage.end == starts[3]


def test_the_end_is_told_if_it_was_written(folder: Path) -> None:
    with open(folder / "a.mkv", "rb") as file:
        assert segment_end(file) == (folder / "a.mkv").stat().st_size
    with open(folder / "live.mkv", "rb") as file:
        assert segment_end(file) is None
    for junk in (b"", b"\x1a\x45\xdf\xa3", bytes(100), b"RIFF" * 20):
        assert segment_end(BytesIO(junk)) is None
