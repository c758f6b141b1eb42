"""Frame cache: for encoders that take frames one by one, a frame that several clips share is encoded once."""

from collections import OrderedDict
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from coldframe.export.pixels import Clips
from coldframe.export.tokens import Floats, Tokens
from coldframe.serve.runtime import Runtime

KEPT_FRAMES = 256


class FrameTokens(NamedTuple):
    """Tokens of one frame: `patch` (h, w, D), and `cls` (D,) where the encoder has one vector a frame."""

    patch: Floats
    cls: Floats | None


class FrameCache:
    """A runtime of a per-frame encoder that remembers the last frames by their pixels.

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
        every = [tokens[key] for key in keys]
        vectors = [one.cls for one in every if one.cls is not None]
        return Tokens(
            patch=np.stack([one.patch for one in every]).reshape(batch, frames, *every[0].patch.shape),
            frame_cls=np.stack(vectors).reshape(batch, frames, -1) if vectors else None,
        )

    def _encode(self, pictures: Clips, frames: int) -> list[FrameTokens]:
        self.encoded += len(pictures)
        filled = np.concatenate((pictures, np.repeat(pictures[-1:], -len(pictures) % frames, axis=0)))
        tokens = self._runtime(filled.reshape(-1, frames, *pictures.shape[1:]))
        patch = tokens.patch.reshape(-1, *tokens.patch.shape[2:])[: len(pictures)]
        if not tokens.has_frame_cls:
            return [FrameTokens(values.copy(), None) for values in patch]
        vectors = tokens.frame_cls.reshape(-1, tokens.frame_cls.shape[-1])
        return [FrameTokens(values.copy(), vectors[place].copy()) for place, values in enumerate(patch)]

    def _remember(self, tokens: dict[bytes, FrameTokens], keys: list[bytes]) -> None:
        for key in keys:
            self._known[key] = tokens[key]
            self._known.move_to_end(key)
        while len(self._known) > self._kept_frames:
            self._known.popitem(last=False)
