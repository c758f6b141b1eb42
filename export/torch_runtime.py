"""Runtime `torch` on the CPU: the reference itself in float32, or one attention a frame in bfloat16."""

import numpy as np
import torch
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.export.encoder import Encoder
from coldframe.export.frame_attention import PerFrameEncoder
from coldframe.export.geometry import Geometry
from coldframe.export.host import check_threads, cpu_model
from coldframe.export.levjepa import LeVJEPA
from coldframe.export.pixels import IMAGENET_MEAN, IMAGENET_STD, Clips, check_clips
from coldframe.export.tokens import Tokens

TORCH_PRECISIONS = ("fp32", "bf16")


class TorchRuntime:
    """uint8 clips in, tokens out, through PyTorch.

    Args:
        model: the reference, in eval mode.
        geometry: sizes and layers of the export; None for those that the model was released with.
        precision: `fp32` runs the reference as it is, `bf16` its per-frame form with float32 sums (`frame_attention`).
        threads: threads for one call; None for one a usable core. PyTorch's count is global to the process:
            it is set for the call and put back.

    Raises:
        UsageError: a precision that this encoder, or this export of it, is not computed in.
    """

    backend = "torch"

    def __init__(
        self,
        model: Encoder,
        *,
        geometry: Geometry | None = None,
        precision: str = "fp32",
        threads: int | None = None,
    ) -> None:
        if precision not in TORCH_PRECISIONS:
            raise UsageError(f"torch computes in {' or '.join(TORCH_PRECISIONS)}, not in {precision}.")
        self._model = model
        self._geometry: Geometry = model.config.geometry() if geometry is None else geometry
        self.precision = precision
        self.threads = check_threads(threads)
        self._narrow = _per_frame(model, self._geometry) if precision == "bf16" else None

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)`."""
        model, geometry = self._model, self._geometry
        # PyTorch has no read-only tensors, so a read-only array is copied.
        checked = torch.from_numpy(np.require(check_clips(clips, geometry), requirements="W"))
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with torch.inference_mode():
                if self._narrow is not None:
                    narrow_cls, narrow_patch = self._narrow(checked)
                    return Tokens(cls=_owned(narrow_cls), patch=_owned(narrow_patch))
                pixels = normalise(checked, model.pixel_mean, model.pixel_std)
                cls, patch, layers, frame_cls = model.tokens(pixels, layers=geometry.layers)
        finally:
            torch.set_num_threads(before)
        return Tokens(
            cls=None if cls is None else _owned(cls),
            patch=_owned(patch),
            layers={layer: _owned(values) for layer, values in layers.items()},
            frame_cls=None if frame_cls is None else _owned(frame_cls),
        )

    def provenance(self) -> dict[str, str]:
        """What computes, for the record of a run."""
        return {
            "runtime": f"torch {torch.__version__}",
            "provider": "cpu",
            "threads": str(self.threads),
            "cpu": cpu_model(),
        }


def _per_frame(model: Encoder, geometry: Geometry) -> PerFrameEncoder:
    if not isinstance(model, LeVJEPA) or geometry != model.config.geometry():
        raise UsageError(
            f"torch computes {model.config.name} in bf16 at the released sizes of LeVJEPA only, without further layers."
        )
    return PerFrameEncoder(model, dtype=torch.bfloat16)


def _owned(values: torch.Tensor) -> NDArray[np.float32]:
    """A contiguous array with memory of its own."""
    array: NDArray[np.float32] = values.contiguous().clone().numpy()
    return array


def normalise(
    clips: torch.Tensor,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
) -> torch.Tensor:
    """uint8 `(B, T, H, W, 3)` in [0, 255] to normalised float32 `(B, 3, T, H, W)`."""
    return ((clips.float() / 255 - torch.tensor(mean)) / torch.tensor(std)).permute(0, 4, 1, 2, 3)
