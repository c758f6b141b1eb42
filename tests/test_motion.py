"""The rendered motion set is reproducible, and what its labels say is true of the pictures."""

import csv
from pathlib import Path

import numpy as np

from coldframe.motion import MOTIONS, render_motion_set
from coldframe.serve.frames import read_frames
from coldframe.serve.pts_index import build_index


def frames_of(path: Path) -> np.ndarray:
    index = build_index(str(path))
    answers = read_frames(str(path), index, np.arange(len(index.pts)))
    return np.stack([frame for _, frame in answers if isinstance(frame, np.ndarray)]).astype(np.float64)


def test_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (render_motion_set(tmp_path / name, sources_per_motion=1) for name in ("a", "b"))
    for file in first.parent.iterdir():
        assert file.read_bytes() == (second.parent / file.name).read_bytes()


def test_labels_are_true_of_the_pictures(tmp_path: Path) -> None:
    manifest = render_motion_set(tmp_path, sources_per_motion=2)
    change: dict[str, list[float]] = {motion: [] for motion in MOTIONS}
    detail: dict[str, list[float]] = {motion: [] for motion in MOTIONS}
    with open(manifest, newline="") as file:
        for row in csv.DictReader(file):
            frames = frames_of(tmp_path / row["path"])
            assert len(frames) == 64
            change[row["label"]].append(float(np.abs(np.diff(frames, axis=0)).mean()))
            detail[row["label"]].append(float(frames[10].std()))
    assert max(change["still"]) < 1 < min(change["slow"])
    assert max(detail["fast"]) < min(detail["still"])  # blurred by the shutter
