"""StreamEncoder: frames in one at a time, each frame's tokens out at once, equal to encoding the whole clip.

Patches of frame t read frames 0..t and never [CLS], so they are final as soon as frame t is there; keys and
values of earlier frames are kept a block and never computed again. [CLS] reads everything, so "[CLS] so far" is
the [CLS] of the clip that ends with this frame: it is run through all blocks anew for every frame (one token,
1 / 197 of the work at 14 x 14 patches) and leaves nothing behind.

Cost of pushing frame t (from 0): the linear layers of one frame, and attention of its h*w + 1 tokens over
(t + 1) * h*w keys; over T frames that is what `PerFrameEncoder` computes, plus [CLS] T - 1 times. Memory: two
arrays of (T*h*w + 1) * D float32 a block, allocated once: 617 MB for LeVJEPA-L, 29 MB for nano.

A stream is one clip, from frame 0 to the encoder's last. There is no sliding window: positions are absolute and
each frame's tokens depend on all earlier ones, so dropping the oldest frame would change every token kept.
After the last frame: `reset()`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coldframe.errors import UsageError
from coldframe.export.frame_attention import PerFrameEncoder, attend
from coldframe.export.host import check_threads
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.tokens import Floats
from coldframe.export.torch_runtime import normalise


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameTokens:
    """Tokens after one frame. The arrays own their memory.

    Attributes:
        patch: `(h, w, D)` float32, this frame's patch tokens; final.
        cls: `(D,)` float32, [CLS] of the clip that ends with this frame.
        frame: number of this frame in its clip, from 0.
    """

    patch: Floats
    cls: Floats
    frame: int


class StreamEncoder:
    """Encodes a clip frame by frame in float32 on the CPU; see the module for cost and limits.

    Args:
        model: the reference (`load_reference`).
        threads: threads for one push; None for one a usable core. Not for use from two threads at once.
    """

    def __init__(self, model: LeVJEPA, *, threads: int | None = None) -> None:
        config = model.config
        self._encoder = PerFrameEncoder(model)
        # By the reference's convolution rather than a matrix product: where attention is sharp, the 4e-6 by which
        # the two round apart grow to 1.5e-5 at the output, and the stream is to be the clip within 1e-5.
        self._embed = model.encoder.patch_embed
        self._threads = check_threads(threads)
        kept = config.num_frames * self._encoder.frame_patches + 1
        shape = (2, config.depth, 1, config.num_heads, kept, config.head_dim)
        self._keys, self._values = torch.empty(shape)
        self._frames = 0

    @property
    def frames(self) -> int:
        """Frames pushed since the start or the last reset."""
        return self._frames

    def reset(self) -> None:
        """Start a new clip: the next frame is frame 0."""
        self._frames = 0

    def push(self, frame: Any) -> FrameTokens:
        """Encode the next frame.

        Args:
            frame: uint8 `(H, W, 3)` RGB in [0, 255] of the encoder's size; normalised inside.

        Raises:
            UsageError: another shape or dtype, or the clip is full. The stream is then as it was before.
        """
        limit = self._encoder.config.num_frames
        if self._frames == limit:
            raise UsageError(
                f"frame {limit} was pushed, but this encoder's clips have {limit} frames (0 to {limit - 1}). "
                "Call reset() to begin the next clip. A window that slides is not supported: it changes every token."
            )
        pixels = self._check(frame)
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                tokens = self._encode(pixels).numpy()
        finally:
            torch.set_num_threads(before)
        self._frames += 1
        grid = self._encoder.config.grid
        patch = tokens[:-1].reshape(grid, grid, -1).copy()
        return FrameTokens(patch=patch, cls=tokens[-1].copy(), frame=self._frames - 1)

    def _check(self, frame: Any) -> torch.Tensor:
        size = self._encoder.config.img_size
        wanted = f"wanted is a uint8 array ({size}, {size}, 3) of RGB in [0, 255]"
        if not isinstance(frame, np.ndarray):
            raise UsageError(f"the frame is a {type(frame).__name__}; {wanted}.")
        if frame.dtype != np.uint8:
            raise UsageError(f"the frame is {frame.dtype}; {wanted}. The encoder normalises by itself.")
        if frame.shape != (size, size, 3):
            raise UsageError(f"the frame has shape {frame.shape}; {wanted}.")
        # PyTorch has no read-only tensors, so a read-only array is copied.
        return torch.from_numpy(np.require(frame, requirements=["C", "W"]))[None, None]

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """`(h * w + 1, D)`: this frame's patch tokens and [CLS]."""
        encoder, frame = self._encoder, self._frames
        start = frame * encoder.frame_patches
        end = start + encoder.frame_patches
        turns = encoder.turns(frame, frame + 1)
        tokens = encoder.with_cls(self._embed(normalise(pixels)))
        for block, keys, values in zip(encoder.blocks, self._keys, self._values, strict=True):
            query, key, value = block.project(tokens, turns)
            # [CLS] lands where the next frame begins, which overwrites it: no patch ever reads it.
            keys[:, :, start : end + 1], values[:, :, start : end + 1] = key, value
            patches = attend(query[:, :, :-1], keys[:, :, :end], values[:, :, :end])
            cls = attend(query[:, :, -1:], keys[:, :, : end + 1], values[:, :, : end + 1])
            tokens = block.finish(tokens, torch.cat((patches, cls), dim=2))
        return encoder.norm(tokens)[0]
