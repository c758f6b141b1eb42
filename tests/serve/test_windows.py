"""Which frames the clip of an annotation has: by hand for known cases, and by a search over exact times for others."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.serve.sampling import SampledClips
from coldframe.serve.windows import Annotation, sample_windows
from coldframe.store.recipe import Recipe
from coldframe.store.schema import Flag


def recipe(window: str = "before_start", anticipation_s: float = 1.0, *, fps: float = 8, frames: int = 16) -> Recipe:
    fields: dict[str, Any] = {"window": window, "anticipation_s": 0.0 if window == "inside" else anticipation_s}
    return Recipe(encoder="e", weights_sha256="w", attention="a", frames=frames, hop_frames=frames, fps=fps, **fields)


def action(start: str, stop: str, name: str = "a") -> Annotation:
    return Annotation(id=name, video="v", start_s=Fraction(start), stop_s=Fraction(stop))


def even(count: int, fps: Fraction | int) -> tuple[NDArray[np.int64], Fraction, int]:
    """Times of `count` evenly spaced frames, in ticks of 1/90000 s."""
    base = Fraction(1, 90000)
    return np.array([round(i / Fraction(fps) / base) for i in range(count)], np.int64), base, round(1 / fps / base)


def sample(times: tuple[NDArray[np.int64], Fraction, int], which: Recipe, *actions: Annotation) -> SampledClips:
    return sample_windows(*times, which, actions)


# start 1000, stop 1400 at 50 fps, 1 s ahead: the last frame must be below 950, where the released anchor gives 1344
FIFTY = even(1500, 50)


def test_the_window_ends_before_the_action_starts() -> None:
    clips = sample(FIFTY, recipe(frames=32), action("20", "28"))
    # on display at 19 - (32 - k) / 8 s, in fiftieths: 950 - 6.25 (32 - k), rounded down
    assert clips.frame_index[0].tolist() == [int(950 - 6.25 * (32 - k)) for k in range(32)]
    assert clips.frame_index[0, -1] == 943
    assert (clips.start_s[0], clips.end_s[0]) == (15.0, 19.0)
    assert clips.n_real[0] == 32
    assert clips.flags[0] == 0


def test_the_released_anchor_shows_the_action_and_has_a_name_of_its_own() -> None:
    clips = sample(FIFTY, recipe("before_stop", frames=32), action("20", "28"))
    assert clips.frame_index[0, -1] == 1343
    assert (clips.frame_pts_s[0] > 20).all()


@pytest.mark.parametrize("rate", [Fraction(60000, 1001), Fraction(30000, 1001), Fraction(50), Fraction(5)], ids=str)
@pytest.mark.parametrize("base", [Fraction(1, 90000), Fraction(1, 1000)], ids=str)
def test_no_frame_lies_behind_the_end_at_any_rate(rate: Fraction, base: Fraction) -> None:
    pts = np.array([round(i / rate / base) for i in range(int(30 * rate))], np.int64)
    starts = [f"20.{i:02d}" for i in range(0, 100, 7)]
    actions = [Annotation(id=s, video="v", start_s=Fraction(s), stop_s=Fraction(s) + 3) for s in starts]
    clips = sample_windows(pts, base, round(1 / rate / base), recipe(fps=7.5), actions)
    for row, start in enumerate(starts):
        ticks = [int(pts[i]) * base for i in clips.frame_index[row]]
        assert max(ticks) <= Fraction(start) - 1
        assert max(ticks) > Fraction(start) - 1 - Fraction(2, 15) - 1 / rate  # and is the freshest that the grid allows


def test_seconds_count_and_not_frame_numbers() -> None:
    """At 59.94 fps frame 60 t is late by t / 1000: by 0.6 s after ten minutes."""
    times = even(40000, Fraction(60000, 1001))
    clips = sample(times, recipe(), action("600", "603"))
    last = int(clips.frame_index[0, -1])
    assert last == int((599 - Fraction(1, 8)) * Fraction(60000, 1001))
    assert last < 60 * 598.9 - 30


def test_a_window_that_begins_before_the_video_repeats_the_first_frame_in_front() -> None:
    clips = sample(even(300, 30), recipe(fps=7.5), action("2", "3"))
    # positions 1 - (16 - k) / 7.5 s: those from k = 9 on, at 0.0667 s, lie in the video
    assert clips.n_real[0] == 7
    assert clips.frame_index[0].tolist() == [0] * 9 + [2, 6, 10, 14, 18, 22, 26]
    assert clips.flags[0] == Flag.PADDED | Flag.PADDED_FRONT
    assert clips.start_s[0] == pytest.approx(1 - 16 / 7.5)


@pytest.mark.parametrize("start", ["0.3", "0", "1", "1.13"])
def test_too_early_an_action_has_no_window(start: str) -> None:
    clips = sample(even(300, 30), recipe(fps=7.5), action(start, "3"))
    assert clips.n_real[0] == 0
    assert clips.frame_index[0].tolist() == [-1] * 16
    assert np.isnan(clips.frame_pts_s[0]).all()
    assert np.isnan([clips.start_s[0], clips.end_s[0]]).all()


@pytest.mark.parametrize(
    ("window", "start", "stop", "is_there"),
    [
        ("before_start", "9.9", "30", True),
        ("before_start", "10", "30", False),  # the video ends at 10 s
        ("before_stop", "8", "11", True),
        ("before_stop", "8", "11.01", False),
        ("inside", "9.9", "10.5", True),
        ("inside", "9.9", "30", False),  # its middle, where the window is, lies behind the end
        ("inside", "10", "30", False),
    ],
)
def test_annotations_past_the_end_have_no_window(window: str, start: str, stop: str, is_there: bool) -> None:
    clips = sample(even(300, 30), recipe(window, fps=7.5), action(start, stop))
    assert bool(clips.n_real[0]) == is_there


def test_inside_takes_the_middle_of_a_long_action_and_pads_a_short_one() -> None:
    long, short, tiny = action("2", "8"), action("2", "3"), action("2.01", "2.02")
    clips = sample(even(300, 30), recipe("inside", fps=7.5), long, short, tiny)
    assert (clips.start_s[0], clips.n_real[0]) == (pytest.approx(5 - 8 / 7.5), 16)
    assert clips.frame_index[1].tolist() == [60, 64, 68, 72, 76, 80, 84, 88] + [88] * 8
    assert clips.n_real[1] == 8
    assert clips.flags[1] == Flag.PADDED
    assert clips.n_real[2] == 0  # no frame begins in it


def test_slow_video_repeats_frames_and_is_flagged() -> None:
    clips = sample(even(100, 5), recipe(fps=7.5), action("10", "11"))
    assert clips.flags[0] == Flag.UPSAMPLED


@given(
    steps=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    start=st.integers(0, 1500),
    length=st.integers(0, 900),
    ahead=st.sampled_from([0.0, 0.25, 1.0]),
    window=st.sampled_from(["before_start", "before_stop", "inside"]),
)
def test_frames_are_those_of_a_plain_search(
    steps: list[int], start: int, length: int, ahead: float, window: str
) -> None:
    """Hundredths of a second as ticks; every rule applied to each frame in turn."""
    pts, base = np.cumsum([0, *steps]), Fraction(1, 100)
    one = Annotation(id="a", video="v", start_s=Fraction(start, 100), stop_s=Fraction(start + length, 100))
    clips = sample_windows(pts, base, 4, recipe(window, ahead, fps=7.5, frames=8), [one])
    end, span, step = (int(pts[-1]) + 4) * base, Fraction(16, 15), Fraction(2, 15)
    anchor = one.stop_s if window == "before_stop" else one.start_s
    begin = anchor - Fraction(str(ahead)) - span
    allowed = [i for i, tick in enumerate(pts) if tick * base <= begin + span]
    if window == "inside":
        begin = max(one.start_s, (one.start_s + one.stop_s - span) / 2)
        allowed = [i for i, tick in enumerate(pts) if one.start_s <= tick * base < one.stop_s]
    real, frames = [], []
    for k in range(8):
        at = begin + k * step
        before = [i for i in allowed if pts[i] * base <= at] or allowed[:1]
        frames.append(before[-1] if before else -1)
        real.append(at < min(one.stop_s, end) if window == "inside" else at >= 0)
    past = one.start_s >= end or (window != "inside" and begin + span > end)
    if past or not any(real) or not allowed:
        assert clips.n_real[0] == 0
        return
    if window == "inside":
        frames = [frame if real[k] else frames[sum(real) - 1] for k, frame in enumerate(frames)]
    assert clips.frame_index[0].tolist() == frames
    assert clips.n_real[0] == sum(real)


def test_a_recipe_says_what_its_window_is_and_older_ones_keep_their_id() -> None:
    assert recipe().to_dict()["window"] == "before_start"
    assert recipe().to_dict()["anticipation_s"] == 1.0
    assert recipe() != recipe("before_stop")
    plain = Recipe(encoder="e", weights_sha256="w", attention="a", frames=16)
    assert not {"window", "anticipation_s"} & set(plain.to_dict())
    assert all(Recipe.from_dict(each.to_dict()) == each for each in (plain, recipe(), recipe("inside")))
    cases: list[tuple[dict[str, object], str]] = [
        ({"window": "behind"}, "allowed are grid, before_start, before_stop, inside"),
        ({"anticipation_s": float("nan"), "window": "before_start"}, "anticipation is nan s"),
        ({"anticipation_s": -1.0, "window": "before_start"}, "allowed is 0 to 3600 seconds"),
        ({"anticipation_s": 1.0}, "a window 'grid' has none"),
        ({"window": "inside", "hop_frames": 4}, "each annotation makes one clip"),
    ]
    for fields, said in cases:
        with pytest.raises(UsageError, match=said):
            Recipe(**{"encoder": "e", "weights_sha256": "w", "attention": "a", "frames": 16, **fields})  # type: ignore[arg-type]
