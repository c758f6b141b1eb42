"""Making a split: leak components first, then parts or folds. Windows follow their video."""

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.probes.category import Category
from coldframe.probes.columns import require_classes, video_text
from coldframe.probes.features import TokenStore, read_features
from coldframe.probes.groups import leak_components
from coldframe.probes.label_sets import SEPARATOR, divide_sets, label_set, set_text, sources_per_label
from coldframe.probes.near_duplicates import Frames, NearDuplicates, Windows, clusters, find_near_duplicates
from coldframe.probes.selection import require_groups
from coldframe.probes.split import (
    MIN_COMPONENTS,
    PARTS,
    assign,
    components_per_class,
    covers,
    require_ratios,
    split_by_group,
)
from coldframe.probes.split_manifest import EXCLUDED, ListedVideo, SplitManifest, sort_videos

DEFAULT_RATIOS = (0.6, 0.2, 0.2)
_ATTEMPTS = 100
_MOST_SUSPECTED = 100  # listed for people; all are counted


def make_split(
    store: TokenStore,
    *,
    by: tuple[str, ...] = ("source",),
    label: str | None = None,
    multi_label: bool = False,
    ratios: tuple[float, float, float] = DEFAULT_RATIOS,
    folds: int = 0,
    seed: int = 0,
    on_rows: Callable[[int], object] = lambda count: None,
) -> SplitManifest:
    """Divide the videos of `store` that have ok rows, and a label if `label` is given.

    Args:
        store: an open token store.
        by: video columns whose values stay on one side; equal contents and confirmed copies always do.
        label: video column with the classes; each has its share in every part.
        multi_label: whether its cells list several labels. Labels with too few sources are then listed and do not
            count; their videos are divided like the others.
        ratios: shares of sources in train, validation and test; not used for folds.
        folds: 0 for train, validation and test, else 3 or more folds.
        seed: of the division.
        on_rows: called with the number of rows read, and again with those compared.

    Raises:
        UsageError: unusable columns, or too few sources for any honest division.
    """
    if multi_label and label is None:
        raise UsageError("several labels a video were announced, and no label column is named. Name it with --label.")
    if folds and folds < 3:
        raise UsageError(f"folds is {folds}; allowed is 3 or more: one tests, one validates, the others train.")
    require_ratios(ratios)
    sha256 = video_text(store, "sha256")
    groups = {name: video_text(store, name) for name in by}
    labels = [""] * len(sha256) if label is None else video_text(store, label)
    ok = store.ok_rows()
    if not len(ok):
        raise UsageError(f"the store {store.name} has no ok rows; nothing can be split.")
    video = store.column("video").astype(np.int64)
    rows = ok if label is None else ok[np.array([bool(text) for text in labels])[video[ok]]]
    used = np.unique(video[rows])
    if multi_label:
        labels = [set_text(label_set(text)) for text in labels]
    elif label is not None:
        require_classes(label, [labels[v] for v in used])
    require_groups(store, groups, used)

    copies = _near_duplicates(store, rows, leak_components(groups, sha256), on_rows)
    linked = {**groups, "near_duplicate": clusters(copies.confirmed(), len(sha256))}
    components = leak_components(linked, sha256).take(used)
    classes = Category.from_text([labels[v] for v in used])
    if multi_label:
        parts = _parts_of_sets(components, [label_set(labels[v]) for v in used], ratios, folds, seed)
    else:
        parts = _parts(components, classes, ratios, folds, seed, label is not None)
    counts = np.bincount(video[rows], minlength=len(sha256))
    paths = store.video_column("path")
    return SplitManifest(
        by=by,
        label=label,
        seed=seed,
        ratios=() if folds else ratios,
        folds=folds,
        multi_label=multi_label,
        near_duplicates=_plain(copies, sha256),
        made_from={"store": store.name, "recipe_id": store.recipe_id},
        videos=sort_videos(
            [
                ListedVideo(
                    sha256=sha256[v],
                    path=paths[v],
                    component=components.names[components.codes[i]],
                    label=labels[v],
                    part=parts[i],
                    rows=int(counts[v]),
                )
                for i, v in enumerate(used.tolist())
            ]
        ),
    )


def _parts(
    components: Category,
    classes: Category,
    ratios: tuple[float, float, float],
    folds: int,
    seed: int,
    labelled: bool,
) -> list[str]:
    """Part of each video; `excluded` for classes with fewer sources than parts."""
    wanted = folds or MIN_COMPONENTS
    enough = components_per_class(components, classes) >= wanted
    kept = np.flatnonzero(enough[classes.codes])
    if np.count_nonzero(enough) < (2 if labelled else 1):
        listed = ", ".join(
            f"{name!r} ({count})"
            for name, count in zip(classes.names[:20], components_per_class(components, classes), strict=False)
        )
        raise UsageError(
            f"fewer than 2 classes have {wanted} or more sources, one for each part. Sources a class: {listed}. "
            "Add sources, take fewer folds, or group less coarsely."
        )
    parts = [EXCLUDED] * len(components)
    held, labels = components.take(kept), classes.take(kept)
    for i, name in zip(kept.tolist(), _named(held, labels, ratios, folds, seed), strict=True):
        parts[i] = name
    return parts


def _parts_of_sets(
    components: Category, sets: list[frozenset[str]], ratios: tuple[float, float, float], folds: int, seed: int
) -> list[str]:
    """Part of each video; labels with fewer sources than parts do not decide."""
    wanted = folds or MIN_COMPONENTS
    sources = sources_per_label(components, sets)
    enough = frozenset(name for name, count in sources.items() if count >= wanted)
    if not enough:
        listed = ", ".join(f"{name!r} ({count})" for name, count in list(sources.items())[:20]) or "none"
        raise UsageError(
            f"no label has {wanted} or more sources, one for each part. Sources a label: {listed}. Labels of a cell "
            f"stand between {SEPARATOR!r}. Add sources, take fewer folds, or group less coarsely."
        )
    shares, salt = ((1 / folds,) * folds, f"{seed}:folds") if folds else (ratios, str(seed))
    names = [f"fold {fold}" for fold in range(folds)] if folds else list(PARTS)
    return [names[part] for part in divide_sets(components, [one & enough for one in sets], shares, salt).tolist()]


def _named(
    components: Category, labels: Category, ratios: tuple[float, float, float], folds: int, seed: int
) -> list[str]:
    if not folds:
        split = split_by_group(components, labels, ratios=ratios, seed=seed)
        names = np.empty(len(components), dtype=object)
        for part in PARTS:
            names[split.parts()[part]] = part
        return [str(name) for name in names]
    for attempt in range(_ATTEMPTS):
        fold_of = assign(components, labels, (1 / folds,) * folds, f"{seed}:folds:{attempt}")
        if covers(fold_of, components, labels, parts=folds):
            return [f"fold {fold}" for fold in fold_of[components.codes].tolist()]
    raise UsageError(
        f"found no division into {folds} folds that has every class in every fold: sources that hold several "
        f"classes are too entangled ({_ATTEMPTS} attempts). Take fewer folds or leave rare classes out."
    )


def _near_duplicates(
    store: TokenStore, rows: NDArray[np.int64], components: Category, on_rows: Callable[[int], object]
) -> NearDuplicates:
    video = store.column("video").astype(np.int64)[rows]
    windows = Windows(
        features=read_features(store, rows, "cls" if store.geometry.has_cls else "mean", on_rows),
        video=video,
        components=Category(codes=components.codes[video], names=components.names),
        start_s=store.column("clip_start_s")[rows],
    )
    return find_near_duplicates(windows, frame_reader(store, rows), on_rows)


def frame_reader(store: TokenStore, rows: NDArray[np.int64]) -> Frames | None:
    """Mean patch token of each frame of the window at a position of `rows`; None for a store without patches."""
    if not store.geometry.keeps_patches:
        return None
    return lambda position: store.patch(rows[[position]])[0].mean(axis=(1, 2), dtype=np.float64).astype(np.float32)


def _plain(copies: NearDuplicates, sha256: list[str]) -> dict[str, object]:
    pairs = [
        {**asdict(pair), "first": sha256[pair.first], "second": sha256[pair.second]}
        for pair in sorted(copies.pairs, key=lambda pair: (not pair.confirmed, -pair.similarity))
    ]
    return {
        "threshold": copies.threshold,
        "windows_compared": copies.compared,
        "windows": copies.windows,
        "confirmed": [pair for pair in pairs if pair["confirmed"]],
        "suspected": [pair for pair in pairs if not pair["confirmed"]][:_MOST_SUSPECTED],
        "suspected_count": sum(not pair["confirmed"] for pair in pairs),
    }
