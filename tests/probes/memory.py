"""A token store in memory, so that probes are tested without files."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.features import TokenStore
from coldframe.store.recipe import Recipe
from coldframe.store.schema import Status, TokenGeometry


@dataclass(kw_only=True)
class MemoryStore:
    recipe: Recipe
    encoder: dict[str, Any]
    columns: dict[str, NDArray[Any]]
    videos: dict[str, Any]
    geometry: TokenGeometry
    tokens: NDArray[np.float32]
    patches: NDArray[np.float32] | None = None
    baselines: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    name: str = "/stores/memory.zarr"

    @property
    def recipe_id(self) -> str:
        return self.recipe.recipe_id

    @property
    def video_columns(self) -> Sequence[str]:
        return list(self.videos)

    def video_column(self, name: str) -> Any:
        return self.videos[name]

    def column(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def ok_rows(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.columns["status"] == Status.OK)

    def cls(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.tokens[rows]

    @property
    def unit_rows(self) -> int:
        return 16

    def patch(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        assert self.patches is not None
        return self.patches[rows]

    def stored_into(self, array: str, rows: NDArray[np.int64], rooms: Sequence[NDArray[Any]]) -> None:
        assert self.patches is not None
        assert array == "patch"
        for room, row in zip(rooms, rows.tolist(), strict=True):
            room[...] = self.patches[row]

    def baseline(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.baselines[name][rows]


def memory_store(
    labels: Sequence[Any],
    tokens: NDArray[Any],
    *,
    windows: int = 4,
    more: Mapping[str, Any] | None = None,
    untrained: bool = False,
) -> MemoryStore:
    """Every video has `windows` rows of `tokens` (videos * windows, dim), and a source of its own."""
    count = len(labels)
    store: TokenStore = MemoryStore(
        recipe=Recipe(encoder="levjepa-tiny", weights_sha256="00", attention="block_causal", frames=16),
        encoder={"name": "levjepa-tiny", "untrained": untrained, "licence": "MIT"},
        columns={
            "status": np.full(count * windows, Status.OK, dtype=np.uint8),
            "n_real": np.full(count * windows, 16, dtype=np.int16),
            "flags": np.zeros(count * windows, dtype=np.uint32),
            "video": np.repeat(np.arange(count, dtype=np.int32), windows),
            "clip_start_s": np.tile(np.arange(windows, dtype=np.float64) * 16 / 7.5, count),
            "frame_index": np.tile(np.arange(windows, dtype=np.int32), count)[:, None] * 64 + np.arange(16) * 4,
        },
        videos={
            "path": [f"/videos/{v}.mp4" for v in range(count)],
            "sha256": [hashlib.sha256(f"video {v}".encode()).hexdigest() for v in range(count)],
            "source": [f"source {v}" for v in range(count)],
            "label": labels,
            **(more or {}),
        },
        geometry=TokenGeometry(dim=tokens.shape[1], time=0, rows=0, cols=0),
        tokens=tokens.astype(np.float32),
    )
    assert isinstance(store, MemoryStore)
    return store


def separable_store(
    *, videos: int = 30, windows: int = 4, classes: Sequence[str] = ("jump", "run", "walk"), **more: Any
) -> MemoryStore:
    """Every class has a mean of its own, far from the others compared with the spread of its videos."""
    rng = np.random.default_rng(5)
    labels = [classes[v % len(classes)] for v in range(videos)]
    means = rng.normal(size=(len(classes), 16)) * 3
    of_video = means[np.arange(videos) % len(classes)] + rng.normal(size=(videos, 16)) * 0.3
    tokens = np.repeat(of_video, windows, axis=0) + rng.normal(size=(videos * windows, 16)) * 0.3
    return memory_store(labels, tokens, windows=windows, **more)


def windows_of_random_videos() -> MemoryStore:
    """Field case 48: 60 videos of 20 windows, a random label a video, tokens that show only the video."""
    rng = np.random.default_rng(48)
    labels = [f"class {code}" for code in rng.permutation(np.arange(60) % 4)]
    tokens = np.repeat(rng.normal(size=(60, 64)), 20, axis=0) + 0.3 * rng.normal(size=(1200, 64))
    return memory_store(labels, tokens, windows=20)
