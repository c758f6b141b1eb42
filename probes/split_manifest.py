"""Split manifest: which videos train, choose and test, as a file that other runs, readouts and stores can share.

Videos are named by the digest of their content, so the manifest holds for every store of the same videos, whatever
the encoder. Whole leak components are divided; windows follow their video. The file ends with a digest of itself.
"""

import hashlib
import json
import os
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import InputNotFound, StoreError, UsageError
from coldframe.probes.category import Category
from coldframe.probes.label_sets import NONE, label_set, sources_per_label
from coldframe.probes.split import MIN_COMPONENTS, PARTS, Split, build_split
from coldframe.store.files import write_bytes
from coldframe.store.recipe import canonical_json
from coldframe.store.text import path_to_text

FORMAT = "coldframe split 1"
EXCLUDED = "excluded"


@dataclass(frozen=True, kw_only=True)
class ListedVideo:
    """One video of a split.

    Attributes:
        sha256: digest of its content.
        path: where it was, for people.
        component: leak component.
        label: class, or the sorted labels with `;` between them; empty if the split was made without labels.
        part: `train`, `validation`, `test`, `fold 0`, `fold 1`, ... or `excluded`.
        rows: ok windows that it had when the split was made.
    """

    sha256: str
    path: str
    component: str
    label: str
    part: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class SplitManifest:
    """A division of videos.

    Attributes:
        by: video columns whose values stay on one side.
        label: name of the label column, None for a split without labels.
        seed: of the division.
        ratios: wanted shares of train, validation and test; empty for folds.
        folds: number of folds; 0 for one division into train, validation and test.
        near_duplicates: what the search for copies found, as plain data.
        made_from: path and recipe_id of the store that the split was made from.
        videos: sorted by digest.
        multi_label: whether a video has several labels. Rare ones are then listed, and their videos stay.
        path: the file that it was read from or written to.
    """

    by: tuple[str, ...]
    label: str | None
    seed: int
    ratios: tuple[float, ...]
    folds: int
    near_duplicates: dict[str, Any]
    made_from: dict[str, str]
    videos: tuple[ListedVideo, ...]
    multi_label: bool = False
    path: Path | None = None

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of everything but the path, in hexadecimal."""
        return hashlib.sha256(canonical_json(self._fields()).encode()).hexdigest()

    def _fields(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name not in ("videos", "path")}
        if not self.multi_label:
            del fields["multi_label"]  # manifests of one label a video keep the digest that they had before
        return {
            "format": FORMAT,
            **fields,
            "counts": self.counts(),
            "excluded": self.excluded(),
            "videos": [asdict(video) for video in self.videos],
        }

    @property
    def parts(self) -> int:
        """Parts that every class is in: 3, or the number of folds."""
        return self.folds or MIN_COMPONENTS

    def counts(self) -> dict[str, dict[str, dict[str, int]]]:
        """Sources, videos and windows of each class in each part; videos with none of several labels are named ''."""
        table: dict[str, dict[str, dict[str, int]]] = {}
        rare = self._rare()
        for part in sorted({video.part for video in self.videos} - {EXCLUDED}):
            here = [video for video in self.videos if video.part == part]
            table[part] = _table(here, [self._labels(video) - rare or {NONE} for video in here])
        return table

    def excluded(self) -> dict[str, dict[str, int]]:
        """Counts of the classes that are not in every part, because too few sources have them."""
        if not self.multi_label:
            out = [video for video in self.videos if video.part == EXCLUDED]
            return _table(out, [{video.label} for video in out])
        return _table(self.videos, [self._labels(video) & self._rare() for video in self.videos])

    def _labels(self, video: ListedVideo) -> frozenset[str]:
        return label_set(video.label) if self.multi_label else frozenset({video.label})

    def _rare(self) -> frozenset[str]:
        """Labels with fewer sources than parts; none without several labels a video, as these videos are in no part."""
        if not self.multi_label:
            return frozenset()
        components = Category.from_text([video.component for video in self.videos])
        sources = sources_per_label(components, [self._labels(video) for video in self.videos])
        return frozenset(name for name, count in sources.items() if count < self.parts)

    def divisions(self) -> list[dict[str, str]]:
        """Part of each listed content digest; one mapping, or one a fold, which tests it and validates on the next."""
        used = [video for video in self.videos if video.part != EXCLUDED]
        if not self.folds:
            return [{video.sha256: video.part for video in used}]
        rounds = []
        for fold in range(self.folds):
            named = {f"fold {fold}": "test", f"fold {(fold + 1) % self.folds}": "validation"}
            rounds.append({video.sha256: named.get(video.part, "train") for video in used})
        return rounds

    def splits(self, sha256: Sequence[str], components: Category, labels: Category) -> list[Split]:
        """The divisions as rows.

        Args:
            sha256: content digest of every row's video; all of them listed.
            components, labels: of every row.
        """
        found = []
        for division in self.divisions():
            part = np.array([PARTS.index(division[digest]) for digest in sha256], dtype=np.int64)
            train, validation, test = (np.flatnonzero(part == number) for number in range(len(PARTS)))
            found.append(build_split(components, labels, train=train, validation=validation, test=test))
        return found

    def write(self, file: str | os.PathLike[str]) -> None:
        """Write the manifest, which must not exist yet: a split that results were quoted on is not replaced.

        Raises:
            UsageError: there is a file already.
        """
        path = Path(file)
        if path.exists():
            raise UsageError(
                f"{path_to_text(path)} exists, and results may have been quoted on it. Give a new --out, or remove it."
            )
        body = {**self._fields(), "digest": self.digest}
        write_bytes(path, json.dumps(body, indent=1, sort_keys=True).encode() + b"\n")


def read_manifest(file: str | os.PathLike[str]) -> SplitManifest:
    """The manifest in `file`.

    Raises:
        InputNotFound: no such file.
        UsageError: something else.
        StoreError: a manifest that has been altered.
    """
    name = path_to_text(file)
    try:
        fields = json.loads(Path(file).read_bytes())
        if fields["format"] != FORMAT:
            raise UsageError(f"{name} has the format {fields['format']!r}; this program reads {FORMAT!r}.")
        digest = fields.pop("digest")
        known = {key: fields[key] for key in ("label", "seed", "folds", "near_duplicates", "made_from")}
        manifest = SplitManifest(
            **known,
            by=tuple(fields["by"]),
            ratios=tuple(fields["ratios"]),
            videos=tuple(ListedVideo(**video) for video in fields["videos"]),
            multi_label=fields.get("multi_label", False),
            path=Path(file),
        )
    except FileNotFoundError as error:
        raise InputNotFound(f"There is no split at {name}. Make one with `coldframe-probe split`.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{name} is not a split: make one with `coldframe-probe split`.") from error
    if manifest.digest != digest or canonical_json(manifest._fields()) != canonical_json(fields):
        raise StoreError(f"{name} has been altered: its digest does not fit. Restore it, or make a new split.")
    return manifest


def sort_videos(videos: Sequence[ListedVideo]) -> tuple[ListedVideo, ...]:
    """In the order of content, so that a manifest does not depend on the order of rows."""
    return tuple(sorted(videos, key=lambda video: (video.sha256, video.path)))


def video_parts(manifest: SplitManifest) -> dict[str, ListedVideo]:
    """Listed videos by content digest."""
    return {video.sha256: video for video in manifest.videos}


def _table(videos: Sequence[ListedVideo], labels: Sequence[Set[str]]) -> dict[str, dict[str, int]]:
    """Counts by class of videos with these labels."""
    names = sorted(set().union(*labels))
    return {name: _counts([v for v, held in zip(videos, labels, strict=True) if name in held]) for name in names}


def _counts(videos: Sequence[ListedVideo]) -> dict[str, int]:
    return {
        "sources": len({video.component for video in videos}),
        "videos": len(videos),
        "rows": sum(video.rows for video in videos),
    }


def row_digests(sha256: Sequence[str], video: NDArray[np.int64]) -> list[str]:
    """Content digest of every row's video."""
    return [sha256[number] for number in video.tolist()]
