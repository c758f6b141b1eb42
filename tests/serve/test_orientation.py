from pathlib import Path

import av
import numpy as np
import pytest

from coldframe.serve.orientation import orientation, upright
from tests.barcode import set_matrix, write_video


@pytest.mark.parametrize(
    ("name", "turns", "mirrored"),
    [(0, 0, False), (90, 1, False), (180, 2, False), (270, 3, False), ("mirrored", 0, True)],
    ids=str,
)
def test_display_matrices_are_read_as_clockwise_turns(
    tmp_path: Path, name: int | str, turns: int, mirrored: bool
) -> None:
    plain = write_video(tmp_path / "plain.mp4", 3)
    with av.open(str(set_matrix(plain, tmp_path / "turned.mp4", name))) as container:
        assert orientation(next(container.decode(video=0))) == (turns, mirrored)


def test_a_quarter_turn_clockwise_brings_the_left_column_to_the_top() -> None:
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    turned = upright(picture, 1, False)
    assert turned.shape == (3, 2, 3)
    assert turned[0].tolist() == [picture[1, 0].tolist(), picture[0, 0].tolist()]
    assert (upright(picture, 0, True) == picture[:, ::-1]).all()
    assert (upright(picture, 2, True) == picture[::-1]).all()
