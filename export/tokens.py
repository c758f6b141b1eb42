"""What every runtime gives: tokens as numpy arrays."""

from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError

Floats = NDArray[np.float32]
_LAYER_PREFIX = "patch_l"


class Tokens:
    """Output tokens of a batch of clips, after the final norm. The arrays own their memory.

    Attributes:
        patch: `(B, T, h, w, D)` float32; token (t, y, x) stands for patch row y and column x of frame (or
            tubelet) t.
        layers: the same of each further block that was asked for, by its number counted from 0.
        has_cls: whether the encoder has a [CLS] token.
        has_frame_cls: whether it has one vector a frame.
    """

    def __init__(
        self,
        *,
        patch: Floats,
        cls: Floats | None = None,
        layers: Mapping[int, Floats] | None = None,
        frame_cls: Floats | None = None,
    ) -> None:
        self.patch = patch
        self.layers = dict(layers or {})
        self._cls = cls
        self._frame_cls = frame_cls
        given = [patch, *self.layers.values(), *(one for one in (cls, frame_cls) if one is not None)]
        assert all(array.dtype == np.float32 for array in given), [array.dtype for array in given]
        assert patch.ndim == 5, patch.shape
        assert all(array.shape == patch.shape for array in self.layers.values()), "layers are not shaped as patch"
        if cls is not None:
            shapes = f"cls {cls.shape} and patch {patch.shape} do not belong together"
            assert cls.shape == (patch.shape[0], patch.shape[-1]), shapes
        if frame_cls is not None:
            shapes = f"frame_cls {frame_cls.shape} and patch {patch.shape} do not belong together"
            assert frame_cls.shape == (*patch.shape[:2], patch.shape[-1]), shapes

    @classmethod
    def from_outputs(cls, outputs: Mapping[str, Floats]) -> Self:
        """From arrays named as `Geometry.outputs` names them."""
        layers = {
            int(name.removeprefix(_LAYER_PREFIX)): values
            for name, values in outputs.items()
            if name.startswith(_LAYER_PREFIX)
        }
        return cls(patch=outputs["patch"], cls=outputs.get("cls"), layers=layers, frame_cls=outputs.get("frame_cls"))

    @property
    def has_cls(self) -> bool:
        return self._cls is not None

    @property
    def cls(self) -> Floats:
        """`(B, D)` float32.

        Raises:
            UsageError: the encoder has no [CLS] token; the first patch is none.
        """
        if self._cls is None and self.has_frame_cls:
            raise UsageError("This encoder has one vector a frame and none a clip. Use the mean of frame_cls.")
        if self._cls is None:
            raise UsageError(
                "This encoder has no [CLS] token. Use the mean of its patch tokens: patch.mean((1, 2, 3))."
            )
        return self._cls

    @property
    def has_frame_cls(self) -> bool:
        return self._frame_cls is not None

    @property
    def frame_cls(self) -> Floats:
        """`(B, T, D)` float32, one vector a frame.

        Raises:
            UsageError: the encoder has none.
        """
        if self._frame_cls is None:
            raise UsageError(
                "This encoder has no vector a frame. Use the mean of its patch tokens: patch.mean((2, 3))."
            )
        return self._frame_cls

    @property
    def vectors(self) -> Floats | None:
        """What stands for a whole clip or frame: `cls` or `frame_cls`, or None where the encoder has patches alone."""
        return self._frame_cls if self._cls is None else self._cls

    def __len__(self) -> int:
        return len(self.patch)

    def __repr__(self) -> str:
        cls = f"cls={self._cls.shape}, " if self._cls is not None else ""
        cls += f"frame_cls={self._frame_cls.shape}, " if self._frame_cls is not None else ""
        layers = f", layers={sorted(self.layers)}" if self.layers else ""
        return f"Tokens({cls}patch={self.patch.shape}{layers}, float32)"
