"""Stores without videos: rows of one video that does not exist, for benches of what comes after encoding."""

from pathlib import Path

import numpy as np

from coldframe.store import Clips, Plan, Recipe, Status, Store, TokenGeometry, Videos, create_store
from coldframe.store.schema import Tokens


def empty_store(path: Path, clips: int, geometry: TokenGeometry, tokens: Tokens = "full") -> Store:
    """A new store for `clips` rows of the tier `tokens` of `geometry`, none of them written."""
    return create_store(path, synthetic_plan(clips, tokens), geometry=geometry, encoder={"name": "bench"})


def synthetic_plan(clips: int, tokens: Tokens = "full") -> Plan:
    """Clips of one video; a plan of more clips begins with those of a smaller one."""
    frames = np.arange(16)[None] + 16 * np.arange(clips)[:, None]
    return Plan(
        recipe=Recipe(encoder="bench", weights_sha256="0" * 64, attention="block_causal", frames=16, tokens=tokens),
        videos=_one_video(16 * clips),
        clips=Clips(
            video=np.zeros(clips, np.int32),
            start_s=frames[:, 0] / 7.5,
            end_s=(frames[:, 0] + 16) / 7.5,
            frame_index=frames.astype(np.int32),
            frame_pts_s=frames / 7.5,
            n_real=np.full(clips, 16, np.int16),
            flags=np.zeros(clips, np.uint32),
            reason=np.zeros(clips, np.uint8),
        ),
    )


def _one_video(frames: int) -> Videos:
    return Videos(
        path=["/bench.mp4"],
        sha256=["0" * 64],
        source=["bench"],
        duplicates=["[]"],
        bytes=np.zeros(1, np.int64),
        codec=["h264"],
        width=np.full(1, 224, np.int32),
        height=np.full(1, 224, np.int32),
        rotation=np.zeros(1, np.int32),
        fps=np.full(1, 7.5),
        frames=np.full(1, frames, np.int32),
        duration_s=np.full(1, frames / 7.5),
        promised_s=np.full(1, np.nan),
        status=np.full(1, Status.OK, np.uint8),
        reason=np.zeros(1, np.uint8),
        error=[""],
        flags=np.zeros(1, np.uint32),
    )
