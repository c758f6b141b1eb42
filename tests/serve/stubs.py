"""Jobs for a decode process that do what native decoders do on bad days. They run in the child."""

import gc
import os
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import VideoError
from coldframe.serve.clips import Answer, VideoClips, read_in_child
from coldframe.serve.heartbeat import beat
from coldframe.serve.kinds import Looked, look
from coldframe.serve.survey import Survey, survey
from coldframe.serve.windows import Annotation
from coldframe.store.recipe import Recipe

_leak: list[bytes] = []


def count_to(count: int) -> Iterator[int]:
    yield from range(count)


def pictures(count: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    for number in range(count):
        yield number, np.full((16, 224, 224, 3), number, np.uint8)


def hang_after(count: int) -> Iterator[int]:
    yield from range(count)
    while True:
        pass


def hang_deaf(count: int) -> Iterator[int]:
    """As native code that holds the interpreter lock: no Python thread or signal handler runs."""
    import ctypes

    yield os.getpid()
    ctypes.PyDLL(None).sleep(600)


def get_on_slowly(seconds: float) -> Iterator[int]:
    """No answer for long, but packets are decoded all the while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        beat()
    yield 1


def abort_after(count: int) -> Iterator[int]:
    yield from range(count)
    os.abort()


def segfault() -> Iterator[int]:
    os.kill(os.getpid(), signal.SIGSEGV)
    yield 1


def leak(size: int) -> Iterator[int]:
    _leak.append(os.urandom(1) * size)
    yield os.getpid()


def leak_for_ever() -> Iterator[int]:
    while True:
        _leak.append(os.urandom(1) * (16 << 20))
        beat()
        if not _leak:
            yield 0


def refuse() -> Iterator[int]:
    yield 1
    raise VideoError("no_frames", "Nothing to see.")


def defect() -> Iterator[int]:
    yield 1
    raise KeyError("a defect, not a bad video")


def process_number() -> Iterator[int]:
    yield os.getpid()


def holdings() -> Iterator[tuple[int, int, int]]:
    """Open files, threads and resident bytes."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    yield len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident


def read_badly(video: VideoClips, image_size: int) -> Iterator[Answer]:
    for number, answer in enumerate(read_in_child(video, image_size)):
        if video.path.endswith("02.mp4") and number == 1:
            while True:
                pass
        if video.path.endswith("03.mp4") and number == 1:
            os.abort()
        yield answer


def fail_on_15(video: VideoClips, image_size: int) -> Iterator[Answer]:
    if video.path.endswith("15.mp4"):
        raise RuntimeError("a defect, not a bad video")
    yield from read_in_child(video, image_size)


def survey_badly(path: str, recipe: Recipe, annotations: Sequence[Annotation]) -> Iterator[Survey]:
    if path.endswith("02.mp4"):
        while True:
            pass
    if path.endswith("03.mp4"):
        os.abort()
    yield from survey(path, recipe, annotations)


def page_faults_of_pictures(count: int) -> Iterator[int]:
    """Pages that the kernel had to hand out while 2.7 MB at a time were written to and freed again."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(count):
        held = [np.full((720, 1280, 3), number, np.uint8) for _ in range(4)]
        del held
    yield resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def look_badly(path: str) -> Iterator[Looked]:
    if path.endswith("0.mp4"):
        while True:
            pass
    if path.endswith("1.mp4"):
        os.abort()
    yield from look(path)
