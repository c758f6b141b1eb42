"""What every runtime takes: uint8 clips.

Normalisation belongs to the encoder, so that it cannot be done twice or forgotten.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.export.geometry import Geometry, HasGeometry, as_geometry

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Clips = NDArray[np.uint8]


def check_clips(clips: Any, geometry: Geometry | HasGeometry) -> Clips:
    """Return `clips`, contiguous, if they are uint8 `(B, T, H, W, 3)` with the encoder's T, H and W.

    Raises:
        UsageError: anything else; axes are checked by position, never guessed from sizes.
    """
    shape = as_geometry(geometry)
    sizes = (shape.frames, shape.height, shape.width, 3)
    wanted = f"wanted is a uint8 array (B, {', '.join(map(str, sizes))}) of RGB in [0, 255]"
    if not isinstance(clips, np.ndarray):
        raise UsageError(f"clips is a {type(clips).__name__}; {wanted}.")
    if clips.dtype != np.uint8:
        raise UsageError(f"clips is {clips.dtype}; {wanted}. The encoder normalises by itself.")
    if clips.ndim != 5:
        raise UsageError(f"clips has shape {clips.shape}; {wanted}, five axes.")
    named = zip(("T", "H", "W", "the colour axis"), clips.shape[1:], sizes, strict=True)
    wrong = [f"{axis} is {given}, not {right}" for axis, given, right in named if given != right]
    if wrong:
        raise UsageError(f"clips has shape {clips.shape}: {', '.join(wrong)}; {wanted}.")
    if not len(clips):
        raise UsageError(f"clips is empty; {wanted} with B from 1.")
    return np.ascontiguousarray(clips)
