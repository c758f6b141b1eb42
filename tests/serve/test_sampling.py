import time
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coldframe.serve.sampling import SampledClips, sample_clips
from coldframe.store.recipe import Recipe
from coldframe.store.schema import Flag


def recipe(**fields: object) -> Recipe:
    return Recipe(**{"encoder": "e", "weights_sha256": "w", "attention": "a", "frames": 16, **fields})  # type: ignore[arg-type]


def even(count: int, fps: Fraction, time_base: Fraction) -> tuple[NDArray[np.int64], int]:
    """Rounded pts of `count` frames and the typical step."""
    pts = np.array([round(i / fps / time_base) for i in range(count)], dtype=np.int64)
    return pts, round(1 / fps / time_base)


@pytest.mark.parametrize(
    ("fps", "ids"),
    [
        # Nearest frame to k / 7.5 s, worked out by hand: k * fps / 7.5, halves to the earlier frame.
        (Fraction(24), [0, 3, 6, 10, 13, 16, 19, 22, 26, 29, 32, 35, 38, 42, 45, 48]),
        (Fraction(25), [0, 3, 7, 10, 13, 17, 20, 23, 27, 30, 33, 37, 40, 43, 47, 50]),
        (Fraction(30000, 1001), list(range(0, 64, 4))),
        (Fraction(30), list(range(0, 64, 4))),
        (Fraction(50), [0, 7, 13, 20, 27, 33, 40, 47, 53, 60, 67, 73, 80, 87, 93, 100]),
        (Fraction(60000, 1001), list(range(0, 128, 8))),
        (Fraction(60), list(range(0, 128, 8))),
        (Fraction(5), [0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 10]),
    ],
    ids=str,
)
@pytest.mark.parametrize("time_base", [Fraction(1, 90000), Fraction(1, 1000)], ids=str)
def test_a_clip_spans_two_seconds_at_every_rate(fps: Fraction, ids: list[int], time_base: Fraction) -> None:
    pts, duration = even(6 * round(fps), fps, time_base)
    clips = sample_clips(pts, time_base, duration, recipe())
    assert clips.frame_index[0].tolist() == ids
    assert clips.end_s[0] - clips.start_s[0] == pytest.approx(16 / 7.5, abs=1e-12)
    span = clips.frame_pts_s[0, -1] - clips.frame_pts_s[0, 0]
    assert abs(span - 2.0) <= 1 / fps
    assert bool(clips.flags[0] & Flag.UPSAMPLED) == (fps == 5)


def test_variable_rate_takes_the_nearest_time() -> None:
    times = [33 * i for i in range(30)] + [990 + 100 * i for i in range(30)]
    clips = sample_clips(np.array(times), Fraction(1, 1000), 67, recipe(fps=5, frames=20))
    expected = [min(range(60), key=lambda i: (abs(times[i] - 200 * k), i)) for k in range(20)]
    assert clips.frame_index[0].tolist() == expected
    assert expected[:8] == [0, 6, 12, 18, 24, 30, 32, 34]
    assert clips.frame_pts_s[0].tolist() == pytest.approx([times[i] / 1000 for i in expected])


@pytest.mark.parametrize("count", [1, 2, 3, 8, 15, 16, 17, 20])
def test_short_videos_keep_their_grid_and_repeat_the_last_frame(count: int) -> None:
    pts, duration = even(count, Fraction(30), Fraction(1, 30000))
    clips = sample_clips(pts, Fraction(1, 30000), duration, recipe())
    real = [4 * k for k in range(16) if 4 * k < count]
    # 3 frames: the grid's second time is 4 frames away, frame 3 would end at 3.5. 4 / 30 s is not covered.
    assert clips.frame_index.tolist() == [real + [real[-1]] * (16 - len(real))]
    assert clips.n_real.tolist() == [len(real)]
    assert clips.flags.tolist() == [Flag.PADDED]


def test_one_frame_more_does_not_change_the_first_clip() -> None:
    pts, duration = even(17 * 4, Fraction(30), Fraction(1, 30000))
    shorter = sample_clips(pts[:64], Fraction(1, 30000), duration, recipe())
    longer = sample_clips(pts[:65], Fraction(1, 30000), duration, recipe())
    assert (len(shorter), len(longer)) == (1, 2)
    assert shorter.frame_index[0].tolist() == longer.frame_index[0].tolist()
    assert longer.n_real.tolist() == [16, 1]


def test_clips_overlap_by_the_hop() -> None:
    pts, duration = even(300, Fraction(30), Fraction(1, 30000))
    clips = sample_clips(pts, Fraction(1, 30000), duration, recipe(hop_frames=4))
    assert clips.start_s[:3].tolist() == pytest.approx([0, 4 / 7.5, 8 / 7.5])
    assert clips.frame_index[1, :4].tolist() == [16, 20, 24, 28]
    assert len(clips) == 19  # 75 positions are covered


@pytest.mark.parametrize(
    ("fps", "step"),
    [
        (Fraction(24), 3),
        (Fraction(30000, 1001), 4),
        (Fraction(60), 8),
        (Fraction(5), 1),
        (Fraction(75, 4), 2),
    ],
    ids=str,
)
def test_stride_is_the_reference_notebooks_rule(fps: Fraction, step: int) -> None:
    # 18.75 / 7.5 is 2.5, which Python rounds to 2.
    pts, duration = even(200, fps, Fraction(1, 90000))
    clips = sample_clips(pts, Fraction(1, 90000), duration, recipe(sampling="stride"))
    assert clips.frame_index.tolist() == [
        [min(start + j * step, 199) for j in range(16)] for start in range(0, 200, 16 * step)
    ]
    assert clips.start_s.tolist() == pytest.approx([float(s / fps) for s in range(0, 200, 16 * step)], abs=1e-4)
    assert clips.end_s[0] == pytest.approx(float(16 * step / fps), abs=1e-4)
    assert clips.n_real[-1] == len(range(16 * step * (len(clips) - 1), 200, step))


def test_ten_hours_take_a_moment() -> None:
    pts = np.arange(36000 * 30, dtype=np.int64) * 1001
    before = time.process_time()
    clips = sample_clips(pts, Fraction(1, 30000), 1001, recipe())
    assert time.process_time() - before < 2
    assert len(clips) == -(-int(36036 * 7.5) // 16)


@pytest.mark.parametrize("time_base", [Fraction(1, 10**9), Fraction(1, 90000), Fraction(417, 78125)], ids=str)
def test_fine_time_bases_and_odd_rates_are_exact(time_base: Fraction) -> None:
    # Ticks in nanoseconds times the rate's denominator do not fit into 64 bits.
    pts, duration = even(50, Fraction(24000, 1001), time_base)
    pts += 3600 * 24 * 10**9
    clips = sample_clips(pts, time_base, duration, recipe(fps=29.97002997, frames=4, hop_frames=3))
    assert clips.frame_index.tolist() == by_loop(pts, time_base, duration, Fraction(30000, 1001), 4, 3)[0]


def by_loop(
    pts: NDArray[np.int64], time_base: Fraction, duration: int, fps: Fraction, frames: int, hop: int
) -> tuple[list[list[int]], list[int]]:
    """The rule of the grid, one position at a time."""
    times = [Fraction(int(p - pts[0])) * time_base for p in pts]
    index, real = [], []
    start = 0
    while start == 0 or start / fps <= times[-1] + duration * time_base / 2:
        row: list[int] = []
        covered = 0
        for k in range(start, start + frames):
            t = k / fps
            if k == start or t <= times[-1] + duration * time_base / 2:
                row.append(min(range(len(times)), key=lambda i: (abs(times[i] - t), i)))
                covered += 1
            else:
                row.append(row[-1])
        index.append(row)
        real.append(covered)
        start += hop
    return index, real


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.integers(1, 400), max_size=30),
    start=st.integers(-1000, 10**12),
    duration=st.integers(0, 400),
    time_base=st.sampled_from([Fraction(1, 1000), Fraction(1, 90), Fraction(1001, 30000)]),
    fps=st.sampled_from([Fraction(15, 2), Fraction(1), Fraction(30000, 1001), Fraction(8)]),
    frames=st.integers(1, 6),
    hop=st.integers(1, 8),
)
def test_the_grid_equals_a_loop_over_fractions(
    steps: list[int], start: int, duration: int, time_base: Fraction, fps: Fraction, frames: int, hop: int
) -> None:
    pts = np.cumsum([start, *steps]).astype(np.int64)
    clips = sample_clips(pts, time_base, duration, recipe(fps=float(fps), frames=frames, hop_frames=hop))
    index, real = by_loop(pts, time_base, duration, fps, frames, hop)
    assert clips.frame_index.tolist() == index
    assert clips.n_real.tolist() == real
    check_flags(clips)


def check_flags(clips: SampledClips) -> None:
    for row, real, flags in zip(clips.frame_index.tolist(), clips.n_real.tolist(), clips.flags.tolist(), strict=True):
        repeats = any(a == b for a, b in pairwise(row[:real]))
        expected = (Flag.PADDED if real < len(row) else 0) | (Flag.UPSAMPLED if repeats else 0)
        assert flags == expected
