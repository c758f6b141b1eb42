from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.serve.frames import read_frames
from coldframe.serve.kinds import look
from coldframe.serve.orientation import orientation, upright
from coldframe.serve.pts_index import build_index
from coldframe.store.schema import Flag
from tests.barcode import MATRICES, set_matrix, write_video


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("orientation") / "plain.mp4", 3)


def pictures(path: Path) -> list[NDArray[np.uint8]]:
    return [np.asarray(frame) for _, frame in read_frames(str(path), build_index(str(path)), range(3))]


def displayed(picture: NDArray[np.uint8], matrix: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    """Every pixel put where ISO/IEC 14496-12, 6.2.2 has it: x' = a x + c y, y' = b x + d y."""
    a, b, c, d = matrix
    y, x = np.mgrid[: picture.shape[0], : picture.shape[1]]
    column, row = a * x + c * y, b * x + d * y
    column, row = column - column.min(), row - row.min()
    found = np.zeros((row.max() + 1, column.max() + 1, 3), np.uint8)
    found[row, column] = picture
    return found


@pytest.mark.parametrize(("name", "matrix"), MATRICES.items(), ids=str)
def test_pictures_are_put_as_the_display_matrix_says(
    tmp_path: Path, plain: Path, name: int | str, matrix: tuple[int, int, int, int]
) -> None:
    turned = set_matrix(plain, tmp_path / "turned.mp4", name)
    for found, picture in zip(pictures(turned), pictures(plain), strict=True):
        np.testing.assert_array_equal(found, displayed(picture, matrix))
    index = build_index(str(turned))
    degrees = int(str(name).removeprefix("mirrored").strip() or 0)
    assert (index.rotation, index.mirrored) == (degrees, "mirrored" in str(name))
    assert (Flag.ROTATED in index.flags) == (name != 0)


def test_every_orientation_is_a_kind_of_its_own(tmp_path: Path, plain: Path) -> None:
    found = [next(look(str(set_matrix(plain, tmp_path / f"{name}.mp4", name)))).kind for name in MATRICES]
    assert len(set(found)) == len(MATRICES) == 8


@pytest.mark.parametrize(
    ("matrix", "turns"),
    [
        ((2, 0, 0, 2), 0),
        ((0, 2, -1, 0), 1),
        ((0.98, 0.17, -0.17, 0.98), 0),
        ((0.6, 0.8, -0.8, 0.6), 1),
        ((1, 0.5, 0, 1), 0),
        ((0, 0, 0, 0), 0),
        ((1, 1, 1, 1), 0),
    ],
    ids=["scaled", "scaled_90", "10", "53", "sheared", "zero", "singular"],
)
def test_other_matrices_give_the_nearest_quarter_turn(
    tmp_path: Path, plain: Path, matrix: tuple[float, float, float, float], turns: int
) -> None:
    turned = set_matrix(plain, tmp_path / "turned.mp4", matrix)
    for found, picture in zip(pictures(turned), pictures(plain), strict=True):
        np.testing.assert_array_equal(found, np.rot90(picture, k=-turns))
    with av.open(str(turned)) as container:
        assert orientation(next(container.decode(video=0))) == (turns, False)


def test_a_quarter_turn_clockwise_brings_the_left_column_to_the_top() -> None:
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    turned = upright(picture, 1, False)
    assert turned.shape == (3, 2, 3)
    assert turned[0].tolist() == [picture[1, 0].tolist(), picture[0, 0].tolist()]
    assert (upright(picture, 0, True) == picture[:, ::-1]).all()
    assert (upright(picture, 2, True) == picture[::-1]).all()
