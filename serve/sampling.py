"""Sampling: which frames make up which clip. Integers and fractions only, so that no platform rounds
otherwise."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coldframe.store.recipe import Recipe
from coldframe.store.schema import Flag

# 30000/1001 written as a decimal number is meant as the fraction, and so are all rates in use.
_LARGEST_DENOMINATOR = 100_000


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledClips:
    """Clips of one video in time order; `T` is the recipe's number of frames.

    Where annotations make them, one without a window has times NaN, frame indices -1 and `n_real` 0.

    Attributes:
        start_s, end_s: (n,) float64 window in seconds from the first presentable frame, half-open.
        frame_index: (n, T) int32 presentation index of each frame, counted from 0; repeats where padded.
        frame_pts_s: (n, T) float64 seconds from the first presentable frame.
        n_real: (n,) int16 frames that are not padding, at least 1.
        flags: (n,) uint32, `PADDED`, `PADDED_FRONT` and `UPSAMPLED`.
    """

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    frame_index: NDArray[np.int32]
    frame_pts_s: NDArray[np.float64]
    n_real: NDArray[np.int16]
    flags: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.start_s)


def sample_clips(pts: NDArray[np.int64], time_base: Fraction, frame_duration: int, recipe: Recipe) -> SampledClips:
    """Clips of a video by the recipe's rule.

    `grid`: position k is at k / fps from the first frame and takes the frame with the nearest pts, ties to
    the earlier. It is covered up to half a frame duration after the last frame. Clip i holds positions i *
    hop to i * hop + T - 1, for every i whose first position is covered; positions behind the last covered
    one repeat it.

    `stride`: every step-th frame, step = max(1, round(mean rate / fps)) half to even; clip i starts at
    frame i * hop * step; indices behind the last frame repeat it.

    Args:
        pts: (N,) int64 ticks, strictly increasing, N >= 1.
        time_base: seconds a tick.
        frame_duration: typical distance of two frames in ticks.
        recipe: gives `sampling`, `fps`, `frames` and `hop_frames`.
    """
    fps = exact_fps(recipe)
    if recipe.sampling == "stride":
        return _by_stride(pts, time_base, frame_duration, fps, recipe.frames, recipe.hop_frames)
    return _by_grid(pts, time_base, frame_duration, fps, recipe.frames, recipe.hop_frames)


def exact_fps(recipe: Recipe) -> Fraction:
    """The clip frame rate that is meant by the recipe's decimal number."""
    return Fraction(recipe.fps).limit_denominator(_LARGEST_DENOMINATOR)


def _by_grid(
    pts: NDArray[np.int64], time_base: Fraction, duration: int, fps: Fraction, frames: int, hop: int
) -> SampledClips:
    ticks = pts - pts[0]
    step = 1 / (fps * time_base)  # ticks between two grid positions
    covered = int((2 * int(ticks[-1]) + duration) // (2 * step)) + 1
    # Position k takes the frame after as many midpoints as lie before k * step: s / 2 < k * step for the
    # sums s of neighbouring ticks, and since s is an integer, s < ceil(2 k step).
    nearest = np.searchsorted(ticks[:-1] + ticks[1:], _ceil_multiples(2 * step, covered), side="left")

    first = np.arange(-(-covered // hop), dtype=np.int64) * hop
    position = first[:, None] + np.arange(frames)
    real = position < covered
    index = nearest[np.minimum(position, covered - 1)]
    repeats = ((index[:, 1:] == index[:, :-1]) & real[:, 1:]).any(axis=1)
    return _clips(
        start_s=_seconds(first, 1 / fps),
        end_s=_seconds(first + frames, 1 / fps),
        index=index,
        ticks=ticks,
        time_base=time_base,
        real=real,
        repeats=repeats,
    )


def _by_stride(
    pts: NDArray[np.int64], time_base: Fraction, duration: int, fps: Fraction, frames: int, hop: int
) -> SampledClips:
    ticks = pts - pts[0]
    last = len(pts) - 1
    mean_step = Fraction(int(ticks[-1]), last) if last else Fraction(duration)  # ticks a frame
    rate = 1 / (mean_step * time_base) if mean_step else fps
    step = max(1, round(rate / fps))

    first = np.arange(-(-len(pts) // (hop * step)), dtype=np.int64) * (hop * step)
    wanted = first[:, None] + np.arange(frames) * step
    start_s = _seconds(ticks[first], time_base)
    return _clips(
        start_s=start_s,
        end_s=start_s + float(frames * step / rate),
        index=np.minimum(wanted, last),
        ticks=ticks,
        time_base=time_base,
        real=wanted <= last,
        repeats=np.zeros(len(first), np.bool_),
    )


def _clips(
    *,
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    index: NDArray[np.int64],
    ticks: NDArray[np.int64],
    time_base: Fraction,
    real: NDArray[np.bool_],
    repeats: NDArray[np.bool_],
) -> SampledClips:
    n_real = real.sum(axis=1)
    flags = np.where(n_real < real.shape[1], Flag.PADDED.value, 0) | np.where(repeats, Flag.UPSAMPLED.value, 0)
    return SampledClips(
        start_s=start_s,
        end_s=end_s,
        frame_index=index.astype(np.int32),
        frame_pts_s=_seconds(ticks[index], time_base),
        n_real=n_real.astype(np.int16),
        flags=flags.astype(np.uint32),
    )


def _ceil_multiples(step: Fraction, count: int) -> NDArray[np.int64]:
    """(count,) ceil(k * step), exact."""
    number, divisor = step.numerator, step.denominator
    if number * count < 2**62:
        return -(-np.arange(count, dtype=np.int64) * number // divisor)
    return np.array([-(-k * number // divisor) for k in range(count)], dtype=np.int64)


def _seconds(ticks: NDArray[np.int64], unit: Fraction) -> NDArray[np.float64]:
    return ticks.astype(np.float64) * unit.numerator / unit.denominator
