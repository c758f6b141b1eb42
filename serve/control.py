"""Frame order of a control: the frames of a planned clip in another order, before they are encoded.

Only real frames move; the padding of a short clip stays where it is, so that `n_real` still says how long it is. The
plan, the decoded frames and every other setting are those of the ordinary extraction.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from coldframe.store.recipe import Control


def frame_order(control: Control, n_real: int, frames: int, window: str, *, first: int = 0) -> NDArray[np.int64]:
    """(frames,) which frame comes at each place.

    Args:
        control: `none`; `static` repeats the middle real frame; `reversed`; `shuffled` by a hash of `window`.
        n_real: real frames, at least 1; the rest is padding.
        frames: frames a clip.
        window: text that names the clip whatever its row, so that its shuffle never changes.
        first: the first real frame; above 0 where padding comes first.
    """
    order = np.arange(frames)
    real = slice(first, first + n_real)
    if control == "static":
        order[:] = first + n_real // 2
    elif control == "reversed":
        order[real] = order[real][::-1]
    elif control == "shuffled":
        seed = int.from_bytes(hashlib.sha256(window.encode()).digest()[:8], "little")
        order[real] = first + np.random.default_rng(seed).permutation(n_real)
    return order


def window_name(sha256: str, frame_index: NDArray[np.int32]) -> str:
    """Text that names a clip by its content: the video's digest and the frames."""
    return f"{sha256}:{','.join(map(str, frame_index.tolist()))}"
