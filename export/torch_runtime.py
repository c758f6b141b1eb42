"""Runtime `torch`: the reference itself on the CPU, in float32."""

import numpy as np
import torch

from coldframe.export.host import check_threads, cpu_model
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.pixels import IMAGENET_MEAN, IMAGENET_STD, Clips, check_clips
from coldframe.export.tokens import Tokens


class TorchRuntime:
    """uint8 clips in, tokens out, through PyTorch.

    Args:
        model: the reference, in eval mode.
        threads: threads for one call; None for one a usable core. PyTorch's count is global to the process:
            it is set for the call and put back.
    """

    backend = "torch"
    precision = "fp32"

    def __init__(self, model: LeVJEPA, *, threads: int | None = None) -> None:
        self._model = model
        self.threads = check_threads(threads)

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)`."""
        config = self._model.config
        # PyTorch has no read-only tensors, so a read-only array is copied.
        checked = torch.from_numpy(np.require(check_clips(clips, config), requirements="W"))
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with torch.inference_mode():
                hidden = self._model(pixel_values=normalise(checked)).last_hidden_state.numpy()
        finally:
            torch.set_num_threads(before)
        grid = (len(hidden), config.num_frames, config.grid, config.grid, config.embed_dim)
        return Tokens(cls=hidden[:, 0].copy(), patch=np.ascontiguousarray(hidden[:, 1:]).reshape(grid))

    def provenance(self) -> dict[str, str]:
        """What computes, for the record of a run."""
        return {
            "runtime": f"torch {torch.__version__}",
            "provider": "cpu",
            "threads": str(self.threads),
            "cpu": cpu_model(),
        }


def normalise(clips: torch.Tensor) -> torch.Tensor:
    """uint8 `(B, T, H, W, 3)` in [0, 255] to ImageNet-normalised float32 `(B, 3, T, H, W)`."""
    mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    return ((clips.float() / 255 - mean) / std).permute(0, 4, 1, 2, 3)
