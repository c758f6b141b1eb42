"""Listed rows: what of a store a split manifest speaks of, after checking that it still tells the truth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from coldframe.errors import UsageError
from coldframe.probes.category import Category
from coldframe.probes.columns import video_text
from coldframe.probes.features import TokenStore
from coldframe.probes.groups import leak_components
from coldframe.probes.selection import ClassCount, Selection, class_counts, labelled_selection
from coldframe.probes.split import Split, require_disjoint
from coldframe.probes.split_manifest import EXCLUDED, SplitManifest, row_digests, video_parts
from coldframe.store.text import path_to_text


def listed_rows(store: TokenStore, label: str, manifest: SplitManifest) -> tuple[Selection, list[Split]]:
    """Rows of `store` that `manifest` divides, and its divisions of them.

    Raises:
        UsageError: the split is of several labels a video; a labelled video is not listed, or has another label than
            when the split was made; the columns that the split keeps together put two parts into one leak component;
            or a part lacks a class.
    """
    if manifest.multi_label:
        raise UsageError(
            "this split was made for several labels a video (--multi-label), and this readout has one. Use "
            "`coldframe-probe multi-label`, or make another split."
        )
    chosen = labelled_selection(store, label, manifest.by)
    video = store.column("video").astype(np.int64)[chosen.rows]
    sha256 = video_text(store, "sha256")
    known = video_parts(manifest)
    of_videos = {v: sha256[v] for v in np.unique(video).tolist()}
    require_listed(store, of_videos, manifest)
    if manifest.label is not None:
        require_same_labels(store, of_videos, video_text(store, label), manifest)

    used = np.array([known[sha256[v]].part != EXCLUDED for v in video.tolist()], dtype=bool)
    kept = np.flatnonzero(used)
    digests = row_digests(sha256, video[kept])
    components = Category.from_text([known[digest].component for digest in digests])
    labels = chosen.labels.take(kept)
    splits = manifest.splits(digests, components, labels)
    own = leak_components({name: video_text(store, name) for name in manifest.by}, sha256).take(video[kept])
    for split in splits:
        require_disjoint(split, components)
        require_disjoint(split, own)
        _require_classes(split, labels)
    counts = class_counts(components, labels)
    left_out = [
        ClassCount(name=name, rows=count["rows"], sources=count["sources"])
        for name, count in manifest.excluded().items()
    ]
    selection = replace(
        chosen,
        rows=chosen.rows[kept],
        labels=labels,
        components=components,
        padded=int(np.count_nonzero(store.column("n_real")[chosen.rows[kept]] < store.recipe.frames)),
        classes=tuple(counts),
        excluded=tuple(left_out),
    )
    return selection, splits


def require_listed(store: TokenStore, digests: Mapping[int, str], manifest: SplitManifest) -> None:
    """Refuse videos that a split does not speak of.

    Args:
        digests: content digest of every labelled video, by its number.

    Raises:
        UsageError: one is not listed.
    """
    known = video_parts(manifest)
    missing = [v for v, digest in digests.items() if digest not in known]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(digests)} labelled videos are not in {_name(manifest)}, such as "
            f"{store.video_column('path')[missing[0]]}: it is unknown which side they belong to. Make a new split of "
            "this store."
        )


def require_same_labels(
    store: TokenStore,
    digests: Mapping[int, str],
    texts: Sequence[str],
    manifest: SplitManifest,
    meaning: Callable[[str], object] = str,
) -> None:
    """Refuse videos whose label is not that of when the split was made.

    Args:
        digests: content digest of every labelled video, by its number; all listed.
        texts: label of every video.
        meaning: what a text says; two texts that say the same are one label.

    Raises:
        UsageError: one has another label.
    """
    known = video_parts(manifest)
    other = [v for v, digest in digests.items() if meaning(known[digest].label) != meaning(texts[v])]
    if other:
        v = other[0]
        raise UsageError(
            f"{len(other)} videos have another label than in {_name(manifest)}, such as "
            f"{store.video_column('path')[v]}: {texts[v]!r} here, {known[digests[v]].label!r} there. Use the labels "
            "that it was made with, or make a new split."
        )


def _name(manifest: SplitManifest) -> str:
    return "the split" if manifest.path is None else f"the split {path_to_text(manifest.path)}"


def _require_classes(split: Split, labels: Category) -> None:
    for part, rows in split.parts().items():
        absent = sorted(set(range(len(labels.names))) - set(labels.codes[rows].tolist()))
        if absent:
            raise UsageError(
                f"class {labels.names[absent[0]]!r} has no row in {part}: make the split with --label, so that every "
                "class is in every part, or label fewer classes."
            )
