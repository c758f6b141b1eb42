"""Commits: which units of a store are committed, by their markers and the sizes of their objects."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from coldframe.errors import StoreError
from coldframe.store.files import Place, map_places
from coldframe.store.layout import ArraySpec
from coldframe.store.markers import MARKER_FOLDER, Marker, NotAMarker, read_marker, size_problems
from coldframe.store.object_path import ObjectPath
from coldframe.store.root import Root
from coldframe.store.text import path_to_text


@dataclass(frozen=True, eq=False)
class Commits:
    """The markers of a store. Every call looks at the disk; nothing is hashed.

    Attributes:
        place, root: of the store.
        recipe_id: of the root's recipe, given because every marker is compared with it and a digest takes longer than
            to read one.
        unit_arrays: arrays that units write, by name.
    """

    place: Place
    root: Root
    recipe_id: str
    unit_arrays: Mapping[str, ArraySpec]

    def marker(self, unit: int, sizes: Mapping[str, int] | None = None) -> Marker:
        """The marker of `unit`, after checking that it fits the store and the sizes of its objects.

        Args:
            sizes: of the store's objects by key, where they have been listed.

        Raises:
            FileNotFoundError: the unit has no marker.
            NotAMarker: the marker, or an object that it names, is not what it must be.
        """
        marker = read_marker(self.place, unit)
        self.check(unit, marker)
        for key, message in size_problems(self.place, marker.objects, sizes):
            raise NotAMarker(f"{key}: {message}")
        return marker

    def trusted(self, unit: int, sizes: Mapping[str, int] | None = None) -> Marker | None:
        """`marker`, or None where it would raise."""
        try:
            return self.marker(unit, sizes)
        except (FileNotFoundError, NotAMarker):
            return None

    def check(self, unit: int, marker: Marker) -> None:
        """Raise `NotAMarker` unless `marker` speaks of this store's `unit` and of all of its objects."""
        rows = self.root.unit_range(unit)
        planned = {plan.plan_id: plan.rows for plan in self.root.earlier} | {self.root.plan_id: self.root.rows}
        if marker.recipe_id != self.recipe_id or marker.plan_id not in planned:
            raise NotAMarker("it belongs to another recipe or plan")
        # a unit that an earlier plan ended in has fewer rows in that plan's marker
        if (marker.unit, marker.start, marker.stop) != (unit, rows.start, min(rows.stop, planned[marker.plan_id])):
            raise NotAMarker(f"it speaks of unit {marker.unit}, rows {marker.start} to {marker.stop}")
        if set(marker.objects) != {spec.object_key(unit) for spec in self.unit_arrays.values()}:
            raise NotAMarker("it does not list the unit's objects")

    def stops(self) -> dict[int, int]:
        """End of the rows that its marker vouches for, by committed unit, ascending.

        Raises:
            StoreError: the folder of the markers is gone.
        """
        names, sizes = self._names_and_sizes()
        stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        numbers = sorted(int(stem) for stem in stems if stem.isdecimal() and stem == str(int(stem)))
        numbers = [unit for unit in numbers if unit < self.root.unit_count]
        markers = map_places(lambda unit: self.trusted(unit, sizes), numbers, self.place)
        return {unit: marker.stop for unit, marker in zip(numbers, markers, strict=True) if marker is not None}

    def _names_and_sizes(self) -> tuple[list[str], Mapping[str, int] | None]:
        """Names in the folder of the markers; also all sizes where one listing is cheaper than to ask for each."""
        if isinstance(self.place, ObjectPath):
            sizes = self.place.sizes()
            folders = [key.split("/") for key in sizes]
            return [parts[1] for parts in folders if len(parts) == 2 and parts[0] == MARKER_FOLDER], sizes
        try:
            return os.listdir(self.place / MARKER_FOLDER), None
        except OSError as error:
            raise StoreError(f"{path_to_text(self.place)} has lost its folder `{MARKER_FOLDER}`.") from error
