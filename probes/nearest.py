"""k-NN readout: what the nearest windows of other sources say. No training; the first thing to run on a new store.

Weights exp(cosine / 0.07) over the k nearest, as in DINO (facebookresearch/dino@7c446df, eval_knn.py). Windows of the
query's own source are left out; the accuracy with them kept is shown beside it, because the difference is what a leaky
evaluation would have gained.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.cli_errors import one_line
from coldframe.errors import StoreError, UsageError
from coldframe.probes.category import Category
from coldframe.probes.caveats import of_encoder, of_missing, of_selection
from coldframe.probes.features import FeatureKind, TokenStore, read_varied_features
from coldframe.probes.metrics import balanced_accuracy, chance, confusion, decide
from coldframe.probes.report import rows_dict, selection_lines, store_dict, store_lines, table
from coldframe.probes.selection import Selection, select_rows

NEIGHBOURS = (10, 20, 100, 200)
PROTOCOL = "k-NN, every row classified by rows of other sources, nothing chosen"
_TEMPERATURE = 0.07
_BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class KnnScore:
    """Leave-one-source-out accuracy at one k.

    Attributes:
        k: neighbours.
        balanced_accuracy: neighbours of the query's own source left out.
        leaky_balanced_accuracy: only the query itself left out.
    """

    k: int
    balanced_accuracy: float
    leaky_balanced_accuracy: float


@dataclass(frozen=True, kw_only=True)
class KnnReport:
    """Scores at every k.

    Attributes:
        scores: in order of k.
        chance: balanced accuracy without looking at the features.
        left_out: values of k that some query cannot have.
    """

    scores: tuple[KnnScore, ...]
    chance: float
    left_out: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class KnnProbe(KnnReport):
    """Scores on a store.

    Attributes:
        store, label, groups, features: what was asked.
        selection: the rows in use.
    """

    store: TokenStore
    label: str
    groups: tuple[str, ...]
    features: FeatureKind
    selection: Selection


def knn(
    features: NDArray[np.float32], labels: Category, components: Category, neighbours: Sequence[int] = NEIGHBOURS
) -> KnnReport:
    """Classify every row by the rows of other components.

    Every row is a query once and nothing is chosen, so there is no test set to be touched.

    Args:
        features: (n, dim) float32, finite.
        labels, components: class and leak component of every row.
        neighbours: values of k, each at least 1; those that some query cannot have are left out.

    Raises:
        UsageError: no value of k is possible.
        StoreError: a row of zeros, which has no direction.
    """
    counts = components.counts()
    eligible = len(features) - int(counts.max())
    usable = sorted({k for k in neighbours if 1 <= k <= eligible})
    if not usable:
        raise UsageError(
            f"k is {', '.join(map(str, neighbours))}; allowed is 1 to {eligible}, the rows that every query has in "
            "other sources. Choose a smaller k or add sources."
        )
    unit = _normalise(features)
    votes = {(k, leaky): np.empty((len(unit), len(labels.names))) for k in usable for leaky in (False, True)}
    for start in range(0, len(unit), _BLOCK):
        queries = np.arange(start, min(start + _BLOCK, len(unit)))
        cosine = unit[queries] @ unit.T
        cosine[np.arange(len(queries)), queries] = -np.inf
        for leaky in (True, False):
            if not leaky:
                cosine[components.codes[queries][:, None] == components.codes] = -np.inf
            order = np.argsort(-cosine, axis=1, kind="stable")[:, : usable[-1]]
            near = np.take_along_axis(cosine, order, axis=1)
            for k in usable:
                votes[k, leaky][queries] = _vote(near[:, :k], labels.codes[order[:, :k]], len(labels.names))
    tables = {key: confusion(labels.codes, decide(vote), len(labels.names)) for key, vote in votes.items()}
    return KnnReport(
        scores=tuple(
            KnnScore(
                k=k,
                balanced_accuracy=balanced_accuracy(tables[k, False]),
                leaky_balanced_accuracy=balanced_accuracy(tables[k, True]),
            )
            for k in usable
        ),
        chance=chance(tables[usable[0], False]),
        left_out=tuple(sorted(set(neighbours) - set(usable))),
    )


def knn_probe(
    store: TokenStore,
    *,
    label: str,
    groups: tuple[str, ...] = ("source",),
    features: FeatureKind = "cls",
    neighbours: Sequence[int] = NEIGHBOURS,
    on_rows: Callable[[int], object] = lambda count: None,
) -> KnnProbe:
    """`knn` on the labelled rows of a store, sources as in `linear_probe`.

    Raises:
        UsageError: unusable columns, or no k that every query can have.
        StoreError: the features cannot tell anything apart.
    """
    selection = select_rows(store, label, groups)
    matrix = read_varied_features(store, selection.rows, features, on_rows)
    found = knn(matrix, selection.labels, selection.components, neighbours)
    return KnnProbe(**vars(found), store=store, label=label, groups=groups, features=features, selection=selection)


def _normalise(features: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.linalg.norm(features.astype(np.float64), axis=1)
    if not length.all():
        raise StoreError(
            f"{np.count_nonzero(length == 0)} of {len(length)} rows have features of zeros, which have no direction."
        )
    unit: NDArray[np.float32] = (features / length[:, None]).astype(np.float32)
    return unit


def _vote(cosine: NDArray[np.float32], codes: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """(n, classes) sums of weights; the nearest neighbour weighs 1, so nothing overflows."""
    weights = np.exp((cosine.astype(np.float64) - cosine[:, :1]) / _TEMPERATURE)
    flat = codes + classes * np.arange(len(codes))[:, None]
    votes = np.bincount(flat.ravel(), weights=weights.ravel(), minlength=len(codes) * classes)
    table: NDArray[np.float64] = votes.astype(np.float64).reshape(len(codes), classes)
    return table


def knn_dict(report: KnnProbe) -> dict[str, Any]:
    """The report for `json.dumps`."""
    return {
        "protocol": PROTOCOL,
        **store_dict(report.store),
        "label": report.label,
        "group": list(report.groups),
        "features": report.features,
        "rows": rows_dict(report.selection),
        "excluded_classes": [asdict(count) for count in report.selection.excluded],
        "chance": report.chance,
        "scores": [asdict(score) for score in report.scores],
        "left_out_k": list(report.left_out),
        "warnings": list(_caveats(report)),
    }


def knn_text(report: KnnProbe) -> str:
    """The report as people read it."""
    rows = [
        [str(score.k), f"{score.balanced_accuracy:.3f}", f"{score.leaky_balanced_accuracy:.3f}"]
        for score in report.scores
    ]
    return "\n".join(
        [
            f"{PROTOCOL}.",
            *store_lines(report.store),
            f"features  {report.features}",
            *selection_lines(report.selection, report.label, report.groups),
            "",
            table(["k", "balanced acc", "own source kept (leaky)"], [*rows, ["chance", f"{report.chance:.3f}", ""]]),
            *(f"warning: {one_line(text)}" for text in _caveats(report)),
        ]
    )


def _caveats(report: KnnProbe) -> Iterator[str]:
    yield from of_encoder(report.store)
    yield from of_selection(report.selection)
    yield from of_missing(report.selection.failed, report.selection.absent)
    if report.left_out:
        listed = ", ".join(map(str, report.left_out))
        yield f"k of {listed} is left out: some row has fewer rows of other sources."
