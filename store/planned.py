"""Planned: a store's plan as it was made, read back from its arrays."""

import numpy as np

from coldframe.store.layout import VIDEO_FIELDS
from coldframe.store.plan import Clips, Plan, Videos
from coldframe.store.schema import Reason
from coldframe.store.store import Store


def read_plan(store: Store) -> Plan:
    """The plan of `store`. Its `plan_id` is the store's, unless a plan array is not what it was when it was written."""
    builtin = {name: store.video_column(name) for name in VIDEO_FIELDS}
    columns = {name: store.video_column(name) for name in store.video_columns if name not in VIDEO_FIELDS}
    video, n_real = store.column("video"), store.column("n_real")
    # a row is known to fail before it is decoded exactly where its video, or its annotation in it, gives no clip
    of_video = np.asarray(builtin["reason"])[video]
    without_clip = np.where(of_video == Reason.NONE, Reason.NO_WINDOW, of_video)
    reason = np.where(n_real == 0, without_clip, Reason.NONE).astype(np.uint8)
    clips = Clips(
        video=video,
        start_s=store.column("clip_start_s"),
        end_s=store.column("clip_end_s"),
        frame_index=store.column("frame_index"),
        frame_pts_s=store.column("frame_pts_s"),
        n_real=n_real,
        flags=store.column("flags"),
        reason=reason,
        annotations={name: store.annotation_column(name) for name in store.annotation_columns},
    )
    return Plan(recipe=store.recipe, videos=Videos(**builtin, columns=columns), clips=clips)  # type: ignore[arg-type]
