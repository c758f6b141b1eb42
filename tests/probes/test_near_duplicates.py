import numpy as np
import pytest
from numpy.typing import NDArray

from coldframe.probes.category import Category
from coldframe.probes.near_duplicates import Windows, clusters, find_near_duplicates


def videos(
    count: int = 40, length: int = 8, dim: int = 32, inside: float = 0.5, seed: int = 0
) -> list[NDArray[np.float32]]:
    """Unrelated videos: a vector each, and windows around it."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=dim) + inside * rng.normal(size=(length, dim))).astype(np.float32) for _ in range(count)]


def windows(of_videos: list[NDArray[np.float32]], starts: dict[int, float] | None = None) -> Windows:
    video = np.repeat(np.arange(len(of_videos)), [len(one) for one in of_videos])
    start = np.concatenate([np.arange(len(one)) * 2.0 + (starts or {}).get(v, 0.0) for v, one in enumerate(of_videos)])
    components = Category.from_text([f"component {v:03}" for v in video])
    return Windows(features=np.concatenate(of_videos), video=video, components=components, start_s=start)


def copy_of(video: NDArray[np.float32], noise: float = 0.05) -> NDArray[np.float32]:
    """What another encoding of the same video gives."""
    return video + noise * np.random.default_rng(9).normal(size=video.shape).astype(np.float32)


def test_a_copy_is_confirmed_and_nothing_else() -> None:
    made = videos()
    found = find_near_duplicates(windows([*made, copy_of(made[7])]))
    assert [(pair.first, pair.second) for pair in found.confirmed()] == [(7, 40)]
    (pair,) = found.confirmed()
    assert (pair.windows, pair.offset_s) == (8, 0.0)
    assert pair.similarity > 0.95
    assert (found.compared, found.windows) == (328, 328)


@pytest.mark.parametrize("size", [1e-30, 1e36])
def test_copies_are_found_whatever_the_size_of_features(size: float) -> None:
    made = [(video * size).astype(np.float32) for video in (*videos(), copy_of(videos()[7]))]
    assert [(pair.first, pair.second) for pair in find_near_duplicates(windows(made)).confirmed()] == [(7, 40)]


def test_a_trimmed_copy_is_found_at_its_offset() -> None:
    made = videos()
    found = find_near_duplicates(windows([*made, copy_of(made[7])[3:]]))
    assert [(pair.first, pair.second, pair.windows, pair.offset_s) for pair in found.confirmed()] == [(7, 40, 5, 6.0)]


@pytest.mark.parametrize("inside", [0.1, 0.5, 3.0, 30.0])
def test_unrelated_videos_are_not_confirmed(inside: float) -> None:
    # Also where a video's own windows have nothing in common, so that any two windows are as alike as neighbours.
    for seed in range(3):
        assert find_near_duplicates(windows(videos(inside=inside, seed=seed))).confirmed() == []


def test_one_shared_window_is_suspected_only() -> None:
    made = videos()
    made[3][2] = made[30][5]
    found = find_near_duplicates(windows(made))
    assert found.confirmed() == []
    assert (found.pairs[0].first, found.pairs[0].second, found.pairs[0].windows) == (3, 30, 1)


def test_a_single_window_is_confirmed_by_its_frames() -> None:
    rng = np.random.default_rng(0)
    made = [*videos(), videos(count=1, length=1, seed=5)[0]]
    made.append(copy_of(made[40]))
    frames = rng.normal(size=(len(made) * 8, 16, 8)).astype(np.float32)
    frames[321] = frames[320] + 0.1 * rng.normal(size=(16, 8))
    assert find_near_duplicates(windows(made)).confirmed() == []
    found = find_near_duplicates(windows(made), lambda row: frames[row])
    assert [(pair.first, pair.second) for pair in found.confirmed()] == [(40, 41)]
    frames[321] = rng.normal(size=(16, 8))  # alike as a whole, other frames
    assert find_near_duplicates(windows(made), lambda row: frames[row]).confirmed() == []


def test_windows_of_one_component_are_not_compared() -> None:
    made = videos()
    both = windows([*made, copy_of(made[7])])
    names = ["component 007" if code == 40 else both.components.names[code] for code in both.components.codes]
    joined = Windows(
        features=both.features, video=both.video, components=Category.from_text(names), start_s=both.start_s
    )
    assert find_near_duplicates(joined).confirmed() == []


def test_large_stores_are_thinned_and_say_so() -> None:
    made = videos()
    found = find_near_duplicates(windows([*made, copy_of(made[7])]), max_windows=165)
    assert (found.compared, found.windows) == (164, 328)
    assert [(pair.first, pair.second, pair.windows) for pair in found.confirmed()] == [(7, 40, 4)]


def test_too_few_windows_to_say_what_is_unusual() -> None:
    found = find_near_duplicates(windows(videos(count=3, length=2)))
    assert (found.threshold, found.pairs) == (None, ())


def test_clusters_are_transitive() -> None:
    made = videos()
    found = find_near_duplicates(windows([*made, copy_of(made[7]), copy_of(made[7], 0.06)])).confirmed()
    names = clusters(found, 42)
    assert names[7] == names[40] == names[41] != ""
    assert [name for name in names if name] == [names[7]] * 3


def test_constant_features_do_not_divide_by_zero() -> None:
    found = find_near_duplicates(windows([np.ones((8, 4), np.float32) for _ in range(20)]))
    assert found.pairs == ()
