"""A small rendered motion set: textures that stand still or pan, slowly or fast, with the blur of a real shutter.

It is drawn, not filmed. It shows that the thread from video to readout holds: the blur of a fast pan is visible even
to an encoder with random weights, so a readout that stays at chance on it is broken.
"""

import csv
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

PIXELS_PER_SECOND = {"fast": 720.0, "slow": 180.0, "still": 0.0}
MOTIONS = tuple(sorted(PIXELS_PER_SECOND))
WIDTH, HEIGHT, FPS = 128, 96, 30
FRAMES = 64  # one clip of 16 frames at 7.5 fps
SHUTTER_SECONDS = 0.5 / FPS  # the usual half of a frame interval
WAVES = 24


def render_motion_set(folder: Path, *, sources_per_motion: int, seed: int = 0) -> Path:
    """Write `3 * sources_per_motion` videos and a manifest with `path` and `label`; return the manifest's path.

    Each video is one source with its own texture, tint and direction; only the speed is shared within a label. The
    same arguments give the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(sources_per_motion * len(MOTIONS)):
        motion = MOTIONS[number % len(MOTIONS)]
        name = f"{motion}_{number // len(MOTIONS):02d}.mp4"
        _write_video(folder / name, _scene(PIXELS_PER_SECOND[motion], np.random.default_rng([seed, number])))
        rows.append((name, motion))
    manifest = folder / "motion.csv"
    with open(manifest, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return manifest


def _scene(speed: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(FRAMES, HEIGHT, WIDTH, 3) pictures of a texture of random waves that pans at `speed` pixels a second."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].reshape(2, -1).astype(np.float64)
    heading = rng.uniform(0, 2 * np.pi)
    velocity = speed * np.array([np.cos(heading), np.sin(heading)])  # pixels a second
    angles, wavelengths = rng.uniform(0, 2 * np.pi, WAVES), rng.uniform(4, 14, WAVES)
    waves = (2 * np.pi / wavelengths)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)  # radians a pixel
    turning = waves @ velocity  # radians a second
    # the mean of a moving wave over the open shutter is the same wave, weaker by a sinc
    strength = 50 * np.sinc(turning * SHUTTER_SECONDS / (2 * np.pi)) / np.sqrt(WAVES)
    texture = strength * np.exp(1j * (np.outer(x, waves[:, 0]) + np.outer(y, waves[:, 1])))  # (pixels, waves)
    phases = rng.uniform(0, 2 * np.pi, WAVES) - np.outer(np.arange(FRAMES) / FPS, turning)  # (frames, waves)
    shade = (np.exp(1j * phases) @ texture.T).real.reshape(FRAMES, HEIGHT, WIDTH, 1)
    pictures: NDArray[np.uint8] = np.clip(rng.uniform(118, 122, 3) + shade, 0, 255).astype(np.uint8)
    return pictures


def _write_video(path: Path, frames: NDArray[np.uint8]) -> None:
    with av.open(str(path), "w") as container:
        # one thread, because x264 output depends on the number of threads
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "18", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
