import numpy as np

from coldframe.serve.damage import Damage, damaged_packets

POS = np.array([100, 200, 300, 400])


def hit(*damages: Damage, pos: "np.typing.NDArray[np.int64]" = POS) -> list[int]:
    return np.flatnonzero(damaged_packets(damages, pos)).tolist()


def test_packets_that_begin_in_a_damage_are_hit() -> None:
    assert hit(Damage(start=200, end=400)) == [1, 2]
    assert hit(Damage(start=201, end=301)) == [2]
    assert hit(Damage(start=0, end=100), Damage(start=400, end=401)) == [3]


def test_the_packet_before_is_hit_where_the_damage_reaches_back_or_swallowed_all() -> None:
    assert hit(Damage(start=201, end=301, reaches_back=True)) == [1, 2]
    assert hit(Damage(start=210, end=290)) == [1]
    assert hit(Damage(start=500, end=900)) == [3]
    assert hit(Damage(start=0, end=50, reaches_back=True)) == []


def test_file_order_and_unknown_places_do_not_matter() -> None:
    assert hit(Damage(start=200, end=301), pos=np.array([400, -1, 300, 200])) == [2, 3]
    assert hit(Damage(start=0, end=9)) == []
    assert hit(pos=np.empty(0, np.int64)) == []
