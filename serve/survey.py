"""Survey: what planning must know of one file, found in one pass over its bytes and packets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coldframe.errors import VideoError
from coldframe.serve.container import file_sha256
from coldframe.serve.pts_index import PtsIndex, build_index
from coldframe.serve.sampling import SampledClips, sample_clips
from coldframe.serve.windows import Annotation, sample_windows
from coldframe.store.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """One file after hashing and indexing; `index` and `clips` are None where `error` tells why."""

    sha256: str = ""
    bytes: int = 0
    index: PtsIndex | None = None
    clips: SampledClips | None = None
    error: VideoError | None = None


def survey(path: str, recipe: Recipe, annotations: Sequence[Annotation] = ()) -> Iterator[Survey]:
    """Yield the survey of `path` twice if it can be hashed: without the index, and with it or the reason why not.

    The last one counts. The first one is what is left if the process dies over the index. Clips are those of
    `annotations`, in their order, unless the recipe's window is `grid`.
    """
    try:
        sha256, size = file_sha256(path)
    except VideoError as error:
        yield Survey(error=error)
        return
    yield Survey(sha256=sha256, bytes=size)
    try:
        index = build_index(path)
        times = (index.pts, index.time_base, index.frame_duration)
        clips = sample_clips(*times, recipe) if recipe.window == "grid" else sample_windows(*times, recipe, annotations)
    except VideoError as error:
        yield Survey(sha256=sha256, bytes=size, error=error)
        return
    yield Survey(sha256=sha256, bytes=size, index=index, clips=clips)
