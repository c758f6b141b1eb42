"""Division: the rows that a readout uses and their parts, from seeds or from a split in a file."""

from collections.abc import Sequence

from coldframe.probes.features import TokenStore
from coldframe.probes.listed import listed_rows
from coldframe.probes.selection import Selection, select_rows
from coldframe.probes.split import Split, require_disjoint, split_by_group
from coldframe.probes.split_manifest import SplitManifest


def divide(
    store: TokenStore, label: str, groups: tuple[str, ...], seeds: Sequence[int], manifest: SplitManifest | None
) -> tuple[Selection, list[tuple[int, Split]]]:
    """Rows to use and their divisions, each with its seed, or with the number of its fold.

    Args:
        store: an open token store.
        label: video column with the classes.
        groups: video columns whose values stay on one side; a manifest has its own.
        seeds: one division each; not used with a manifest.
        manifest: the division, instead of seeds.

    Raises:
        UsageError: the columns, or what the manifest says of them, do not allow an honest split.
    """
    if manifest is not None:
        selection, divisions = listed_rows(store, label, manifest)
        return selection, list(enumerate(divisions))
    selection = select_rows(store, label, groups)
    splits = [(seed, split_by_group(selection.components, selection.labels, seed=seed)) for seed in seeds]
    for _, split in splits:
        require_disjoint(split, selection.components)
    return selection, splits
