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


def permute_sources(
    labels: NDArray[np.int64], components: NDArray[np.int64], rows: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """`labels` with those of `rows` replaced: each source gets the classes that another one holds.

    Sources that hold equally many classes exchange them as sets; which rows of a source get which class of its new set
    is drawn anew. For sources of one class that is an exchange of labels. If every source holds all classes, they are
    renamed within each; exchanging label vectors alone would change nothing then.
    """
    out = labels.copy()
    order = np.argsort(components[rows], kind="stable")
    _, starts = np.unique(components[rows][order], return_index=True)
    members = np.split(rows[order], starts[1:])
    sets = [np.unique(labels[mine]) for mine in members]
    sizes = np.array([len(held) for held in sets])
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        for one, other in zip(alike.tolist(), rng.permutation(alike).tolist(), strict=True):
            place = np.searchsorted(sets[one], labels[members[one]])
            out[members[one]] = rng.permutation(sets[other])[place]
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
