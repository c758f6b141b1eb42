"""Token digest: whether every epoch of a training saw the same tokens.

A store can be rewritten while it is read, and an array that waits in memory can be changed in place by whoever used it
last. Either gives a plausible curve. So the tokens of every row are summed up before they are used (crc32c, 32 bits a
row, made to find accidents and no forger), and an epoch whose sums are not those of the first ends the training.
"""

import hashlib
from dataclasses import dataclass, field

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError
from coldframe.probes.token_view import TokenBatch


@dataclass(kw_only=True, eq=False)
class TokenDigest:
    """Sums of the epoch under way and of the first one.

    Attributes:
        store: name of the store, for the error.
        rows: (n,) rows of an epoch, ascending.
    """

    store: str
    rows: NDArray[np.int64]
    _first: NDArray[np.uint32] | None = field(default=None, init=False)
    _now: NDArray[np.uint32] = field(init=False)

    def __post_init__(self) -> None:
        self._now = np.zeros(len(self.rows), np.uint32)

    def add(self, batch: TokenBatch) -> None:
        """Sum up the tokens and the mask of a batch; call it before anything works on them."""
        for i, place in enumerate(np.searchsorted(self.rows, batch.rows).tolist()):
            checksum = google_crc32c.value(batch.mask[i].tobytes())
            for tokens in batch.maps:
                checksum = google_crc32c.extend(checksum, tokens[i])
            self._now[place] = checksum

    def end_epoch(self) -> str:
        """sha256, in hexadecimal, over all rows and their sums; it does not depend on the order of the batches.

        Raises:
            StoreError: a row's tokens are not those of the first epoch.
        """
        if self._first is None:
            self._first = self._now.copy()
        changed = np.flatnonzero(self._first != self._now)
        if len(changed):
            raise StoreError(
                f"the tokens of {len(changed)} of {len(self.rows)} rows changed while heads were trained on them, "
                f"first row {self.rows[changed[0]]}. Nothing may write to {self.store} meanwhile. "
                f"Run: coldframe verify {self.store}"
            )
        whole = hashlib.sha256(self.rows.tobytes() + self._now.tobytes()).hexdigest()
        self._now = np.zeros(len(self.rows), np.uint32)
        return whole
