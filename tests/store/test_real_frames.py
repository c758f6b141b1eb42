"""Which frames are real, by looking at each frame of each step."""

import numpy as np
import pytest

from coldframe.store.real_frames import first_real, real_steps
from coldframe.store.schema import Flag


@pytest.mark.parametrize(("frames", "steps"), [(16, 16), (16, 8), (4, 1), (8, 4)])
@pytest.mark.parametrize("front", [False, True])
def test_a_step_is_real_if_one_of_its_frames_is(frames: int, steps: int, front: bool) -> None:
    n_real = np.arange(1, frames + 1)
    flags = np.full(frames, (Flag.PADDED_FRONT | Flag.PADDED).value if front else 0, np.uint32)
    found = real_steps(n_real, flags, frames=frames, steps=steps)
    for count, first, row in zip(n_real, first_real(n_real, flags, frames), found, strict=True):
        real = [first <= frame < first + count for frame in range(frames)]
        assert first == (frames - count if front else 0)
        assert row.tolist() == [any(real[s * frames // steps : (s + 1) * frames // steps]) for s in range(steps)]
