from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from coldframe.errors import VideoError
from coldframe.serve.preprocess import resize_crop


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """Gradients, hard edges and noise: what resizing rules differ on."""
    chance = np.random.default_rng(height * 10000 + width)
    rows, columns = np.mgrid[:height, :width]
    frame = (
        np.stack([rows * 255 // max(1, height - 1), columns * 255 // max(1, width - 1), rows ^ columns], axis=2) % 256
    )
    noise = chance.integers(0, 256, frame.shape)
    return np.where((rows // 7 + columns // 5)[..., None] % 3 == 0, noise, frame).astype(np.uint8)


def by_pil(frame: NDArray[np.uint8], width: int, height: int, size: int) -> NDArray[np.uint8]:
    resized = Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(resized.crop((left, top, left + size, top + size)))


@pytest.mark.parametrize(
    ("height", "width", "new_height", "new_width"),
    [
        (720, 1280, 224, 398),  # 398.2
        (1280, 720, 398, 224),
        (96, 192, 224, 448),
        (144, 176, 224, 274),  # 273.8
        (479, 499, 224, 233),
        (32, 33, 224, 231),
        (64, 65, 224, 228),  # 227.5 rounds half to even
        (64, 67, 224, 234),  # 234.5 rounds half to even
        (2, 3, 224, 336),
        (1, 1, 224, 224),
        (300, 40, 1680, 224),
        (224, 400, 224, 400),
    ],
)
def test_resizing_is_pils_bicubic(height: int, width: int, new_height: int, new_width: int) -> None:
    frame = picture(height, width)
    ours = resize_crop(frame, 224)
    reference = by_pil(frame, new_width, new_height, 224)
    assert ours.shape == (224, 224, 3)
    assert ours.dtype == np.uint8
    assert ours.flags.c_contiguous
    difference = np.abs(ours.astype(int) - reference)
    assert difference.max() <= 2
    assert (difference > 1).mean() < 2e-4
    assert (difference > 0).mean() < 0.01


def test_the_picture_stays_upright_and_its_channels_in_order() -> None:
    frame = np.zeros((200, 300, 3), np.uint8)
    frame[:100, :, 0], frame[100:, :150, 1], frame[100:, 150:, 2] = 250, 250, 250
    small = resize_crop(frame, 64)
    assert small[8, 32].tolist() == [250, 0, 0]
    assert small[56, 8].tolist() == [0, 250, 0]
    assert small[56, 56].tolist() == [0, 0, 250]


def test_a_picture_of_the_right_size_keeps_its_bytes() -> None:
    frame = picture(224, 224)
    assert resize_crop(frame, 224).tobytes() == frame.tobytes()
    wide = picture(224, 301)
    assert resize_crop(wide, 224).tobytes() == wide[:, 38:262].tobytes()


def test_views_that_are_not_contiguous_give_the_same_picture() -> None:
    frame = picture(120, 200)
    assert (resize_crop(np.rot90(frame), 64) == resize_crop(np.rot90(frame).copy(), 64)).all()
    assert (resize_crop(frame[:, ::-1], 64) == resize_crop(frame[:, ::-1].copy(), 64)).all()


def test_a_thread_of_a_picture_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(VideoError, match=r"2 x 4000 .* 224 x 448000") as caught:
        resize_crop(np.zeros((4000, 2, 3), np.uint8), 224)
    assert caught.value.reason == "limit"
    assert resize_crop(np.zeros((4000, 20, 3), np.uint8), 224).shape == (224, 224, 3)


@pytest.mark.parametrize(
    ("height", "width", "new_height", "new_width"),
    [
        (720, 1280, 96, 171),  # 170.7: the height fits exactly
        (96, 97, 127, 128),  # 126.7: the width does
        (300, 400, 96, 128),  # the same shape: nothing is cut
        (1280, 720, 228, 128),  # 227.6
    ],
)
def test_a_picture_covers_an_input_that_is_not_square(height: int, width: int, new_height: int, new_width: int) -> None:
    frame = picture(height, width)
    ours = resize_crop(frame, (96, 128))
    resized = Image.fromarray(frame).resize((new_width, new_height), Image.Resampling.BICUBIC)
    left, top = (new_width - 128) // 2, (new_height - 96) // 2
    reference = np.asarray(resized.crop((left, top, left + 128, top + 96)))
    assert ours.shape == (96, 128, 3)
    assert np.abs(ours.astype(int) - reference).max() <= 2


@pytest.mark.parametrize("size", [32, 224])
def test_the_square_is_cut_out_of_pytorchs_whole_picture_bit_for_bit(size: int) -> None:
    chance = np.random.default_rng(size)
    for height, width in chance.integers(20, 500, (40, 2)).tolist():
        frame, short = picture(height, width), min(height, width)
        to = [round(Fraction(side * size, short)) for side in (height, width)]
        tensor = torch.from_numpy(frame).permute(2, 0, 1)[None]
        whole = torch.nn.functional.interpolate(tensor, size=to, mode="bicubic", align_corners=False, antialias=True)
        top, left = (to[0] - size) // 2, (to[1] - size) // 2
        expected = whole[0, :, top : top + size, left : left + size].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(resize_crop(frame, size), expected)
