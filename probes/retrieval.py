"""Retrieval: every window as a query against all others, without the windows of its own source.

Definitions, for a query with R relevant (same label) among n eligible windows, ranked by cosine:

    hit@k      1 if one of the first k is relevant ("Recall@k" in much of the literature)
    recall@k   relevant among the first k / R
    AP         (1 / R) sum over relevant of the share of relevant ones down to their rank, over the whole ranking

Excluded windows leave both the ranking and R. A query with R = 0 is invalid: it is counted and not averaged. Micro is
the mean over valid queries, macro the mean over classes of the mean over the class's valid queries. Equal cosines are
ordered by a hash of content and start, never by row, because row numbers know the source; where they matter, the
best and the worst order are reported too.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError, UsageError
from coldframe.probes.bootstrap import Interval, cluster_bootstrap
from coldframe.probes.category import Category
from coldframe.probes.source_counts import HITS, TRUE, balanced_accuracy, top1

_BLOCK_BYTES = 128 << 20
_TIES_MATTER = 0.001  # share of queries


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric over all valid queries.

    Attributes:
        micro, macro: means as defined above.
        micro_interval, macro_interval: cluster bootstrap over the sources of the queries.
        chance: micro, of a random ranking of the same eligible windows.
        best, worst: micro if all ties were decided well or badly; None if ties hardly occur.
    """

    micro: float
    macro: float
    micro_interval: Interval
    macro_interval: Interval
    chance: float
    best: float | None
    worst: float | None


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Retrieval within one set of windows.

    Attributes:
        scores: by name: `hit@1`, `recall@5`, `mAP`, ...
        queries, invalid: windows, and those without a relevant eligible window.
        invalid_classes: their classes.
        tied: share of valid queries where a relevant window ties with an irrelevant one.
        same_source_excluded: whether windows of the query's own source were left out.
        nearest_same_source: share of queries whose nearest other window is of the same source.
    """

    scores: dict[str, Score]
    queries: int
    invalid: int
    invalid_classes: tuple[str, ...]
    tied: float
    same_source_excluded: bool
    nearest_same_source: float


def retrieve(
    features: NDArray[np.float32],
    labels: Category,
    sources: Category,
    identities: Sequence[str],
    *,
    ks: Sequence[int] = (1, 5),
    exclude_same_source: bool = True,
    on_rows: Callable[[int], object] = lambda count: None,
) -> Retrieval:
    """Rank all windows for each window.

    Args:
        features: (n, dim) float32, finite and not zero.
        labels, sources: class and leak component of each window.
        identities: (n) text that names each window whatever its row, such as content digest and start.
        ks: cut-offs.
        exclude_same_source: leave out windows of the query's component; a query never finds itself.
        on_rows: called with the number of queries after each block.

    Raises:
        UsageError: fewer eligible windows than the largest cut-off, or no valid query.
        StoreError: a vector without a direction.
    """
    order = np.array(sorted(range(len(features)), key=lambda row: _hash(identities[row])), dtype=np.int64)
    unit, label, source = _unit(features)[order], labels.codes[order], sources.codes[order]
    answers = []
    same_source = 0
    for block in _blocks(len(unit)):
        cosine = (unit[block] @ unit.T).astype(np.float32)
        cosine[np.arange(len(cosine)), np.arange(block.start, block.stop)] = -np.inf
        same_source += int(np.count_nonzero(source[cosine.argmax(axis=1)] == source[block]))
        if exclude_same_source:
            cosine[source[block][:, None] == source[None, :]] = -np.inf
        for row, values in enumerate(cosine, start=block.start):
            answers.append(_answer(values, label == label[row], ks))
        on_rows(block.stop - block.start)
    table = np.array(answers)  # (n, 3 orders, metrics + chances)
    valid = np.isfinite(table[:, 0, 0])
    if not valid.any():
        raise UsageError(
            "no query has a relevant window of another source: each class lives in one source. Retrieval cannot be "
            "measured on these labels."
        )
    tied = float((np.ptp(table[valid], axis=1) > 0).any(axis=1).mean())
    names = [*(f"hit@{k}" for k in ks), *(f"recall@{k}" for k in ks), "mAP"]
    return Retrieval(
        scores={
            name: _score(table[valid, :, i], table[valid, 0, len(names) + i], label[valid], source[valid], tied)
            for i, name in enumerate(names)
        },
        queries=len(unit),
        invalid=int(np.count_nonzero(~valid)),
        invalid_classes=tuple(labels.names[code] for code in np.unique(label[~valid])),
        tied=tied,
        same_source_excluded=exclude_same_source,
        nearest_same_source=same_source / len(unit),
    )


def average_precision_of_chance(eligible: int, relevant: int) -> float:
    """Expected AP of a random order of `eligible` windows of which `relevant` >= 1 are relevant."""
    harmonic = _harmonic(eligible)
    if eligible == 1:
        return 1.0
    return (harmonic + (relevant - 1) / (eligible - 1) * (eligible - harmonic)) / eligible


def hit_of_chance(eligible: int, relevant: int, k: int) -> float:
    """Probability that a random order has a relevant window among the first `k`."""
    if k > eligible - relevant:
        return 1.0
    return 1 - math.exp(
        math.lgamma(eligible - relevant + 1)
        - math.lgamma(eligible - relevant - k + 1)
        - math.lgamma(eligible + 1)
        + math.lgamma(eligible - k + 1)
    )


def _answer(cosine: NDArray[np.float32], same_label: NDArray[np.bool_], ks: Sequence[int]) -> list[list[float]]:
    """(3, 2 * metrics): each metric, then its chance, with ties by hash, decided well, and decided badly."""
    eligible = np.flatnonzero(cosine > -np.inf)
    relevant = same_label[eligible]
    count = int(np.count_nonzero(relevant))
    if len(eligible) < max(ks):
        raise UsageError(f"a query has {len(eligible)} eligible windows; a cut-off of {max(ks)} needs as many.")
    if not count:
        return [[math.nan] * (4 * len(ks) + 2)] * 3
    n = len(eligible)
    chance = [
        *(hit_of_chance(n, count, k) for k in ks),
        *(k / n for k in ks),
        average_precision_of_chance(n, count),
    ]
    values = -cosine[eligible]
    # Columns are in the order of their hash, so a stable sort breaks ties by it.
    by_hash = relevant[np.argsort(values, kind="stable")]
    rows = [by_hash, by_hash, by_hash]
    if _ties_matter(values, relevant):
        rows[1] = relevant[np.lexsort((~relevant, values))]
        rows[2] = relevant[np.lexsort((relevant, values))]
    return [[*_metrics(row, count, ks), *chance] for row in rows]


def _ties_matter(values: NDArray[np.float32], relevant: NDArray[np.bool_]) -> bool:
    good, bad = values[relevant], values[~relevant]
    return bool(np.isin(good, bad).any())


def _metrics(ranked: NDArray[np.bool_], count: int, ks: Sequence[int]) -> list[float]:
    ranks = np.flatnonzero(ranked) + 1
    found = [int(np.count_nonzero(ranks <= k)) for k in ks]
    precision = float((np.arange(1, count + 1) / ranks).mean())
    return [*(float(f > 0) for f in found), *(f / count for f in found), precision]


def _score(
    values: NDArray[np.float64],
    chance: NDArray[np.float64],
    label: NDArray[np.int64],
    source: NDArray[np.int64],
    tied: float,
) -> Score:
    classes, label = np.unique(label, return_inverse=True)
    sources, source = np.unique(source, return_inverse=True)
    counts = np.zeros((len(sources), 3, len(classes)))
    np.add.at(counts[:, HITS], (source, label), values[:, 0])
    np.add.at(counts[:, TRUE], (source, label), 1.0)
    matter = tied > _TIES_MATTER
    return Score(
        micro=float(values[:, 0].mean()),
        macro=float(balanced_accuracy(counts.sum(axis=0))),
        micro_interval=cluster_bootstrap(counts, top1),
        macro_interval=cluster_bootstrap(counts, balanced_accuracy),
        chance=float(chance.mean()),
        best=float(values[:, 1].mean()) if matter else None,
        worst=float(values[:, 2].mean()) if matter else None,
    )


def _unit(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Rounded to float32 and held in float64, so that equal vectors have equal cosines wherever they lie."""
    lengths = np.linalg.norm(features.astype(np.float64), axis=1)
    bad = ~np.isfinite(lengths) | (lengths == 0)
    if bad.any():
        raise StoreError(
            f"the features of window {np.flatnonzero(bad)[0]} are zero or not finite, so they have no direction. Run "
            "`coldframe verify` on the store."
        )
    unit: NDArray[np.float32] = (features / lengths[:, None]).astype(np.float32)
    return unit.astype(np.float64)


def _blocks(count: int) -> Iterator[slice]:
    step = max(1, _BLOCK_BYTES // (12 * count))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _hash(identity: str) -> bytes:
    return hashlib.sha256(identity.encode("utf-8", "backslashreplace")).digest()


def _harmonic(n: int) -> float:
    if n < 1000:
        return math.fsum(1 / i for i in range(1, n + 1))
    return math.log(n) + 0.5772156649015329 + 1 / (2 * n) - 1 / (12 * n * n)  # error below 1e-13 from here on
