"""Frame cache: for encoders that take frames one by one, a frame that several clips share is encoded once."""

from collections import OrderedDict
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from coldframe.export.pixels import Clips
from coldframe.export.tokens import Tokens
from coldframe.serve.runtime import Runtime

FrameTokens = NDArray[np.float32]
KEPT_FRAMES = 256


class FrameCache:
    """A runtime of a per-frame encoder without [CLS] that remembers the last frames by their pixels.

    Frames are told apart by a digest of their bytes, so an answer can never belong to another picture. New frames
    are packed into whole clips, because that is what a graph takes; what fills up the last clip is thrown away.
    """

    def __init__(self, runtime: Runtime, kept_frames: int = KEPT_FRAMES) -> None:
        self._runtime = runtime
        self._kept_frames = kept_frames
        self._known: OrderedDict[bytes, FrameTokens] = OrderedDict()
        self.encoded = 0

    @property
    def backend(self) -> str:
        return self._runtime.backend

    @property
    def precision(self) -> str:
        return self._runtime.precision

    @property
    def threads(self) -> int:
        return self._runtime.threads

    def provenance(self) -> dict[str, str]:
        return self._runtime.provenance()

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)`; `encoded` counts the frames that were new."""
        batch, frames = clips.shape[:2]
        pictures = np.ascontiguousarray(clips).reshape(batch * frames, *clips.shape[2:])
        keys = [blake2b(picture.data, digest_size=16).digest() for picture in pictures]
        tokens = {key: self._known[key] for key in keys if key in self._known}
        new = {key: place for place, key in enumerate(keys) if key not in tokens}
        if new:
            found = self._encode(pictures[list(new.values())], frames)
            tokens |= dict(zip(new, found, strict=True))
        self._remember(tokens, keys)
        return Tokens(patch=np.stack([tokens[key] for key in keys]).reshape(batch, frames, *tokens[keys[0]].shape))

    def _encode(self, pictures: Clips, frames: int) -> list[FrameTokens]:
        self.encoded += len(pictures)
        filled = np.concatenate((pictures, np.repeat(pictures[-1:], -len(pictures) % frames, axis=0)))
        patch = self._runtime(filled.reshape(-1, frames, *pictures.shape[1:])).patch
        return [values.copy() for values in patch.reshape(-1, *patch.shape[2:])[: len(pictures)]]

    def _remember(self, tokens: dict[bytes, FrameTokens], keys: list[bytes]) -> None:
        for key in keys:
            self._known[key] = tokens[key]
            self._known.move_to_end(key)
        while len(self._known) > self._kept_frames:
            self._known.popitem(last=False)
