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
    """

    def __init__(self, *, patch: Floats, cls: Floats | None = None, layers: Mapping[int, Floats] | None = None) -> None:
        self.patch = patch
        self.layers = dict(layers or {})
        self._cls = cls
        given = [patch, *self.layers.values(), *([] if cls is None else [cls])]
        assert all(array.dtype == np.float32 for array in given), [array.dtype for array in given]
        assert patch.ndim == 5, patch.shape
        assert all(array.shape == patch.shape for array in self.layers.values()), "layers are not shaped as patch"
        if cls is not None:
            shapes = f"cls {cls.shape} and patch {patch.shape} do not belong together"
            assert cls.shape == (patch.shape[0], patch.shape[-1]), shapes

    @classmethod
    def from_outputs(cls, outputs: Mapping[str, Floats]) -> Self:
        """From arrays named as `Geometry.outputs` names them."""
        layers = {
            int(name.removeprefix(_LAYER_PREFIX)): values
            for name, values in outputs.items()
            if name.startswith(_LAYER_PREFIX)
        }
        return cls(patch=outputs["patch"], cls=outputs.get("cls"), layers=layers)

    @property
    def has_cls(self) -> bool:
        return self._cls is not None

    @property
    def cls(self) -> Floats:
        """`(B, D)` float32.

        Raises:
            UsageError: the encoder has no [CLS] token; the first patch is none.
        """
        if self._cls is None:
            raise UsageError(
                "This encoder has no [CLS] token. Use the mean of its patch tokens: patch.mean((1, 2, 3))."
            )
        return self._cls

    def __len__(self) -> int:
        return len(self.patch)

    def __repr__(self) -> str:
        cls = f"cls={self._cls.shape}, " if self._cls is not None else ""
        layers = f", layers={sorted(self.layers)}" if self.layers else ""
        return f"Tokens({cls}patch={self.patch.shape}{layers}, float32)"
