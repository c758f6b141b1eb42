"""Relabelling: sources exchange their labels, and how far a score then is from a readout that knows no class.

An exchange is a fair null only if it leaves alone what labels and features have in common for other reasons:

    rows that share a class in a source go on sharing one    windows of a source are alike, whatever they are called
    a source keeps how many classes it holds                 names move among sources that hold equally many

It cannot leave alone how long the sources of a class are. Where a rare class has long videos, exchanged train labels
are less balanced than the real ones and their scores spread less: a true null was rejected in 13 to 24 % of simulations
where 5 % are claimed, and in 10 to 12 % with the score in its own standard errors. Exchanging the labels of test
sources under one fixed head errs to the other side there, so the larger p of the two is taken (docs/LOG.md).
"""

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.source_counts import ANSWERED, HITS, TRUE, Counts


class Exchange:
    """Ways in which the sources of some rows can exchange their classes.

    Sources that hold equally many classes exchange them as sets; which rows of a source get which class of its new set
    is drawn anew. For sources of one class that is an exchange of labels. If every source holds all classes, they are
    renamed within each; exchanging label vectors alone would change nothing then.

    Args:
        labels, components: (n,) class and source of every row of a problem.
        rows: (m,) those whose labels are exchanged.
    """

    def __init__(self, labels: NDArray[np.int64], components: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        self._labels, self._rows = labels, rows
        pairs, place = np.unique(np.stack([components[rows], labels[rows]]), axis=1, return_inverse=True)
        _, source, held = np.unique(pairs[0], return_inverse=True, return_counts=True)
        # pairs are sorted by source, so the classes of a source lie together
        first = np.cumsum(held) - held
        self._groups = []
        for size in np.unique(held):
            alike = np.flatnonzero(held == size)
            sets = pairs[1][first[alike][:, None] + np.arange(size)]  # (sources, classes of each)
            of_row = source[place]
            mine = np.flatnonzero(held[of_row] == size)
            position = np.searchsorted(alike, of_row[mine])
            self._groups.append((mine, position, place[mine] - first[of_row[mine]], sets))

    def draw(self, rng: np.random.Generator, into: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """(n,) labels after one exchange; those of other rows are `into`'s, or the real ones."""
        out = (self._labels if into is None else into).copy()
        for mine, position, place, sets in self._groups:
            moved = rng.permuted(rng.permutation(sets), axis=1)
            out[self._rows[mine]] = moved[position, place]
        return out


def standardised_excess(counts: Counts) -> float:
    """Balanced accuracy above that of answers given without regard to the class, in standard errors over sources.

    A readout that knows no class answers class c with one probability q_c whatever is true, and its recalls sum to 1.
    q_c is the mean over sources of their share of such answers. What a source adds to the excess is then independent of
    the others and 0 on average, so the squares of these parts sum to its variance. 0 if every part is 0.

    Args:
        counts: (sources, 3, classes) from `source_counts`; sources without a row do not count.
    """
    held = counts[counts[:, TRUE].sum(axis=1) > 0]
    support = held[:, TRUE].sum(axis=0)
    present = support > 0
    blind = (held[:, ANSWERED] / held[:, ANSWERED].sum(axis=1, keepdims=True)).mean(axis=0)
    parts = ((held[:, HITS] - blind * held[:, TRUE])[:, present] / support[present]).sum(axis=1)
    error = float(np.sqrt(np.square(parts).sum()))
    return float(parts.sum() / error) if error > 1e-12 else 0.0
