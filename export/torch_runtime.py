"""Runtime `torch` on the CPU: the reference itself in float32, or one attention a frame in bfloat16."""

import numpy as np
import torch

from coldframe.errors import UsageError
from coldframe.export.host import check_threads, cpu_model
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.per_frame import PerFrameEncoder
from coldframe.export.pixels import IMAGENET_MEAN, IMAGENET_STD, Clips, check_clips
from coldframe.export.tokens import Tokens

TORCH_PRECISIONS = ("fp32", "bf16")


class TorchRuntime:
    """uint8 clips in, tokens out, through PyTorch.

    Args:
        model: the reference, in eval mode.
        precision: `fp32` runs the reference as it is, `bf16` its per-frame form with float32 sums (`per_frame`).
        threads: threads for one call; None for one a usable core. PyTorch's count is global to the process:
            it is set for the call and put back.
    """

    backend = "torch"

    def __init__(self, model: LeVJEPA, *, precision: str = "fp32", threads: int | None = None) -> None:
        if precision not in TORCH_PRECISIONS:
            raise UsageError(f"torch computes in {' or '.join(TORCH_PRECISIONS)}, not in {precision}.")
        self._model = model
        self.precision = precision
        self.threads = check_threads(threads)
        self._narrow = PerFrameEncoder(model, dtype=torch.bfloat16) if precision == "bf16" else None

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)`."""
        config = self._model.config
        # PyTorch has no read-only tensors, so a read-only array is copied.
        checked = torch.from_numpy(np.require(check_clips(clips, config), requirements="W"))
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with torch.inference_mode():
                if self._narrow is not None:
                    cls, patch = self._narrow(checked)
                    return Tokens(cls=cls.numpy(), patch=patch.contiguous().numpy())
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
