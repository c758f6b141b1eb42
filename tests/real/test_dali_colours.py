"""Real VP8, VP9 and MJPEG through DALI on the CPU and through PyAV, against a float64 conversion of their planes."""

from pathlib import Path

import numpy as np
import pytest

from tests.serve.test_dali_colour import apart, require_each_is_what_it_is, squares

# path: frames, share of values that differ by more than 3 levels between the two
FILES: dict[str, tuple[list[int], float]] = {
    "mimetype/webm.webm": ([0, 80, 160], 0.05),  # VP8: red and yellow toys, hardly larger than the squares
    "vide/ocean.webm": ([0, 50], 0.0),  # VP8, grey
    "python3-mecavideo/balle1-vp9.avi": ([0, 150], 0.03),  # VP9
    "pd-extendedview/diver.mov": ([0, 20], 0.0),  # MJPEG 4:2:2
}


@pytest.mark.parametrize("name", FILES)
def test_readers_differ_in_how_chroma_is_spread_and_in_nothing_else(real_videos: Path, name: str) -> None:
    frames, share = FILES[name]
    found = squares(real_videos / name, frames)
    require_each_is_what_it_is(found)
    assert (np.abs(apart(found["dali"], found["pyav"])) > 3).mean() <= share
