"""Token view: which tokens of a store's rows a head reads, and a batch of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.features import TokenStore
from coldframe.store.real_frames import real_steps


def held_dtype(store: TokenStore) -> type[np.floating[Any]]:
    """In which dtype tokens are handed out: as stored if that is float16, else float32."""
    return np.float16 if store.recipe.dtype == "float16" else np.float32


class ShardedStore(TokenStore, Protocol):
    """A token store that says which rows share a shard, and writes stored tokens to where they are wanted."""

    @property
    def unit_rows(self) -> int: ...
    def stored_into(self, array: str, rows: NDArray[np.int64], rooms: Sequence[NDArray[Any]]) -> None: ...


class FrameStore(Protocol):
    """A store that keeps one vector a frame."""

    def frame_cls(self, rows: NDArray[np.int64]) -> NDArray[np.float32]: ...


@dataclass(frozen=True, kw_only=True)
class TokenView:
    """Which tokens of a row a head reads: its patch tokens, or one vector a frame where a store keeps that alone.

    Attributes:
        cls: whether [CLS] comes first.
        layers: earlier blocks, counted from 0, each a map of its own before the encoder's output.
    """

    cls: bool = False
    layers: tuple[int, ...] = ()

    @property
    def maps(self) -> int:
        return len(self.layers) + 1

    def check(self, store: TokenStore) -> None:
        """Refuse a store that does not hold these tokens.

        Raises:
            UsageError: no patch tokens, no [CLS], or a layer that is not there.
        """
        geometry = store.geometry
        if not geometry.keeps_patches and not geometry.has_frame_cls:
            raise UsageError(
                f"an attentive probe needs patch tokens; this store's token tier is {store.recipe.tokens!r}. "
                "Extract with the tier full, cls+grid7 or cls+mean, or fit a linear probe."
            )
        if self.cls and not getattr(geometry, "has_cls", True):
            raise UsageError("this head reads [CLS], which this store's encoder does not give. Use another preset.")
        stored = tuple(getattr(geometry, "layers", ()))
        missing = [layer for layer in self.layers if layer not in stored]
        if missing:
            kept = ", ".join(map(str, stored)) or "none"
            raise UsageError(
                f"this head reads the layers {', '.join(map(str, self.layers))} beside the encoder's output; the "
                f"store keeps {kept}. Export the encoder with these layers and extract into a new store."
            )

    def time_of_tokens(self, store: TokenStore) -> NDArray[np.int64]:
        """(L,) time step of each token, -1 for [CLS]."""
        geometry = store.geometry
        steps = np.repeat(np.arange(geometry.time), geometry.rows * geometry.cols if geometry.keeps_patches else 1)
        return np.concatenate([[-1], steps]) if self.cls else steps

    def row_bytes(self, store: TokenStore) -> int:
        """Bytes of one row's tokens in a batch."""
        width = np.dtype(held_dtype(store)).itemsize
        return width * store.geometry.dim * len(self.time_of_tokens(store)) * self.maps


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenBatch:
    """Tokens of some rows.

    Attributes:
        rows: (n,) int64 rows of the store.
        maps: one (n, L, dim) of `held_dtype` a feature map, early layers first; [CLS] leads where the view has it.
        mask: (n, L) bool, False for tokens of frames that only repeat the last real one; [CLS] is always True.
        time: (L,) time step of each token, -1 for [CLS].
    """

    rows: NDArray[np.int64]
    maps: tuple[NDArray[Any], ...]
    mask: NDArray[np.bool_]
    time: NDArray[np.int64]


def token_mask(store: TokenStore, rows: NDArray[np.int64], view: TokenView) -> NDArray[np.bool_]:
    """(n, L) True for tokens of real frames and for [CLS]. A token of several frames counts if one of them is real."""
    n_real, flags = store.column("n_real")[rows], store.column("flags")[rows]
    real = real_steps(n_real, flags, frames=store.recipe.frames, steps=store.geometry.time)
    time = view.time_of_tokens(store)
    return np.where(time < 0, True, real[:, np.maximum(time, 0)])
