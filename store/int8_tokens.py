"""Int8 tokens: the numbers of each token as whole ones from -127 to 127, and one scale that they are multiplied by.

Symmetric, so zero stays zero. The scale is a token's own, because the largest numbers of tokens differ by far more
than those inside one.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

LARGEST = 127
_SMALLEST_SCALE = np.finfo(np.float32).tiny  # below it, a float32 has too few digits for a quotient to be right
# above it, 127 times the scale would be infinite
_LARGEST_SCALE = np.nextafter(np.finfo(np.float32).max / np.float32(LARGEST), np.float32(0))
_BLOCK_BYTES = 1 << 18  # stays in the cache from the first pass over it to the last


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """How near stored tokens are to those that were given.

    Attributes:
        tokens: how many were compared.
        cosine_mean, cosine_worst: of a token before and after, in [-1, 1]; 1 where both are zero.
    """

    tokens: int
    cosine_mean: float
    cosine_worst: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def join(cls, parts: Iterable["Reconstruction | None"]) -> Self | None:
        """Of all tokens of `parts` together; None where there are none."""
        known = [part for part in parts if part is not None and part.tokens]
        if not known:
            return None
        tokens = sum(part.tokens for part in known)
        return cls(
            tokens=tokens,
            cosine_mean=sum(part.cosine_mean * part.tokens for part in known) / tokens,
            cosine_worst=min(part.cosine_worst for part in known),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Int8Tokens:
    """Tokens of n rows as they are stored.

    Attributes:
        values: (n, ..., dim) int8 in [-127, 127].
        scale: (n, ...) float32, a token's largest magnitude / 127, or 0 for a token of zeros; NaN for one that is not
            finite, or would not be when it is read.
        cosine: (n, ...) float32 of a token before and after; NaN where it was not quantised here.
        earlier: the same of rows that were taken over as stored.
    """

    values: NDArray[np.int8]
    scale: NDArray[np.float32]
    cosine: NDArray[np.float32]
    earlier: Reconstruction | None = None

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Self:
        """Room for tokens of `shape`, (n, ..., dim)."""
        scale = np.full(shape[:-1], np.nan, np.float32)
        return cls(values=np.zeros(shape, np.int8), scale=scale, cosine=scale.copy())

    @classmethod
    def of(cls, tokens: NDArray[np.float32]) -> Self:
        """`tokens`, (n, ..., dim), quantised."""
        made = cls.empty(tokens.shape)
        made.put(np.arange(len(tokens)), tokens)
        return made

    def put(self, at: NDArray[np.integer[Any]], tokens: NDArray[np.float32]) -> None:
        """Quantise `tokens` (m, ..., dim) into the m rows `at`."""
        for row, given in zip(at.tolist(), tokens, strict=True):
            _quantise(given, self.values[row], self.scale[row], self.cosine[row])

    def dequantised(self) -> NDArray[np.float32]:
        """(n, ..., dim) float32."""
        out = np.empty(self.values.shape, np.float32)
        dequantise(self.values, self.scale, out)
        return out

    def reconstruction(self, rows: NDArray[np.bool_]) -> Reconstruction | None:
        """Over the tokens of those `rows` (n,) that were quantised here, and of those that were taken over."""
        cosine = self.cosine[rows].reshape(-1)
        cosine = cosine[~np.isnan(cosine)]
        here = None
        if len(cosine):
            mean = float(cosine.mean(dtype=np.float64))
            here = Reconstruction(tokens=len(cosine), cosine_mean=mean, cosine_worst=float(cosine.min()))
        return Reconstruction.join([self.earlier, here])


def dequantise(values: NDArray[np.int8], scale: NDArray[np.float32], out: NDArray[np.floating[Any]]) -> None:
    """Write `values` (..., dim) times `scale` (...) to `out` (..., dim)."""
    np.multiply(values, scale[..., None], out=out, casting="same_kind", dtype=np.float32)


def usable_int8_rows(values: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(n,) whether a row of `values` (n, ..., dim) and `scale` (n, ...) is what quantising gives, and not all zero.

    A token's largest magnitude is 127 exactly, or its scale is 0 and so are all of its values.
    """
    peak = np.maximum(values.max(axis=-1), np.negative(values.min(axis=-1), dtype=np.int16))
    in_range = (scale >= _SMALLEST_SCALE) & (scale <= _LARGEST_SCALE)
    sound = np.where(scale == 0, peak == 0, in_range & (peak == LARGEST))
    tokens = tuple(range(1, scale.ndim))
    usable: NDArray[np.bool_] = sound.all(axis=tokens) & (scale > 0).any(axis=tokens)
    return usable


def blank_int8_rows(values: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(n,) whether a row is what a failed one must be: 0 in all values, NaN in all scales."""
    zeros = (values == 0).all(axis=tuple(range(1, values.ndim)))
    blank: NDArray[np.bool_] = zeros & np.isnan(scale).all(axis=tuple(range(1, scale.ndim)))
    return blank


def _quantise(
    tokens: NDArray[np.float32], values: NDArray[np.int8], scale: NDArray[np.float32], cosine: NDArray[np.float32]
) -> None:
    """Quantise `tokens` (..., dim) into the contiguous arrays `values` (..., dim), `scale` and `cosine` (...)."""
    dim = tokens.shape[-1]
    given, into = tokens.reshape(-1, dim), values.reshape(-1, dim)
    scales, cosines = scale.reshape(-1), cosine.reshape(-1)
    step = max(1, _BLOCK_BYTES // (4 * dim))
    for start in range(0, len(given), step):
        block = slice(start, start + step)
        scales[block], cosines[block] = _quantise_block(given[block], into[block])


def _quantise_block(
    tokens: NDArray[np.float32], values: NDArray[np.int8]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scale and cosine, each (m,), of `tokens` (m, dim), whose `values` are filled in."""
    peak = np.maximum(tokens.max(axis=1), -tokens.min(axis=1))
    scale = peak / np.float32(LARGEST)
    scale[scale < _SMALLEST_SCALE] = 0
    scale[scale > _LARGEST_SCALE] = np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = tokens / scale[:, None]
    unfit = ~(scale > 0)
    scaled[unfit] = 0
    whole = np.rint(scaled)  # halves to even
    values[...] = whole
    with np.errstate(invalid="ignore"):
        cosine = _dot(scaled, whole) / np.sqrt(_dot(scaled, scaled) * _dot(whole, whole))
    np.minimum(cosine, 1, out=cosine)
    cosine[unfit] = np.where(np.isnan(scale), np.nan, peak == 0)[unfit]
    return scale, cosine


def _dot(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    product: NDArray[np.float32] = np.einsum("ij,ij->i", left, right)
    return product
