"""Videos to measure decoding on, made here: nothing is downloaded, and everybody measures the same pictures."""

from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.serve.container import pyav

WIDTH, HEIGHT, FPS = 1280, 720, 30


def write_moving(path: Path, frames: int, *, b_frames: int = 3) -> None:
    """720p H.264 as sites make it: x264's defaults (B-frames, a key frame every 250), motion and grain.

    Without `b_frames`, as many cameras record, every frame is needed to decode those behind it.
    """
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (40, 64, 3)).astype(np.float32)
    scene = np.kron(coarse, np.ones((32, 32, 1), np.float32))  # (1280, 2048, 3)
    for axis in (0, 1):
        for _ in range(3):
            scene = (scene + np.roll(scene, 8, axis) + np.roll(scene, -8, axis)) / 3
    grain = rng.normal(0, 4, (HEIGHT + 64, WIDTH + 64, 1)).astype(np.float32)
    av = pyav()
    with av.open(str(path), "w") as output:
        options = {"preset": "veryfast", "crf": "23", "bf": str(b_frames)}
        stream = output.add_stream("libx264", rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(frames):
            picture = _picture(scene, grain, number)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())


def _picture(scene: NDArray[np.float32], grain: NDArray[np.float32], number: int) -> NDArray[np.uint8]:
    down, right = (number * 3) % (scene.shape[0] - HEIGHT), (number * 5) % (scene.shape[1] - WIDTH)
    at = (number * 37) % 64
    moved = scene[down : down + HEIGHT, right : right + WIDTH] + grain[at : at + HEIGHT, at : at + WIDTH]
    return moved.clip(0, 255).astype(np.uint8)


def repeat(source: Path, target: Path, times: int) -> None:
    """Copy the packets of `source` `times` over, one after the other, without decoding."""
    av = pyav()
    with av.open(str(source)) as reading:
        stream = reading.streams.video[0]
        packets = [(bytes(p), p.pts, p.dts, p.is_keyframe) for p in reading.demux(stream) if p.size]
        pts = sorted(pts for _, pts, _, _ in packets)
        length = pts[-1] + pts[1] - 2 * pts[0]
        with av.open(str(target), "w") as writing:
            copy = writing.add_stream_from_template(stream)
            for turn in range(times):
                for data, shown_at, decoded_at, is_key in packets:
                    packet = av.Packet(data)
                    packet.stream, packet.time_base, packet.is_keyframe = copy, stream.time_base, is_key
                    packet.pts, packet.dts = shown_at + turn * length, decoded_at + turn * length
                    writing.mux(packet)
