"""Store: a token store on disk, opened. Only rows of committed units come out of it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from coldframe.errors import StoreError, UsageError
from coldframe.store.absence import not_kept, not_ok
from coldframe.store.commits import Commits
from coldframe.store.files import Place, place_of
from coldframe.store.layout import ArraySpec, TokenArray, token_arrays, unit_arrays
from coldframe.store.lock import held_lock
from coldframe.store.markers import Marker
from coldframe.store.object_path import ObjectPath
from coldframe.store.recipe import Recipe
from coldframe.store.root import Root, growth_folder, plan_problems, read_plan_record, read_root
from coldframe.store.rows import RowNumbers, as_rows, gather, gather_tokens, scatter
from coldframe.store.schema import Status, TokenGeometry, layer_array
from coldframe.store.text import path_to_text

_CLIP_ARRAYS = ("video", "clip_start_s", "clip_end_s", "frame_index", "frame_pts_s", "n_real", "flags")
_ROW_ARRAYS = ("status", "reason")


@dataclass(frozen=True, kw_only=True, eq=False)
class Store:
    """A token store. Open one with `open_store`; make one with `create_store`.

    A row is ok only if its unit is committed: whatever lies on disk for other units is masked as absent.
    Which units are committed is looked up at the first read and remembered; call `refresh` to see what was
    written since.

    Attributes:
        place: where the store is, on a local disk or in an object store.
        root: facts from the root attributes.
        writable: whether units may be written through this object.
    """

    place: Place
    root: Root
    writable: bool = False

    @property
    def path(self) -> Path:
        """Folder of a store on a local disk.

        Raises:
            UsageError: the store is in an object store.
        """
        if isinstance(self.place, ObjectPath):
            raise UsageError(f"{self.place} is no local folder. Copy the store to a local disk for this.")
        return self.place

    @property
    def name(self) -> str:
        """The place as text."""
        return path_to_text(self.place)

    @property
    def recipe(self) -> Recipe:
        return self.root.recipe

    @cached_property
    def recipe_id(self) -> str:  # every marker is compared with it, and a digest takes longer than to read one
        return self.root.recipe.recipe_id

    @property
    def plan_id(self) -> str:
        return self.root.plan_id

    @property
    def geometry(self) -> TokenGeometry:
        return self.root.geometry

    @property
    def encoder(self) -> Mapping[str, Any]:
        """Identity of the encoder: its name, whether it is untrained, the licence of its weights, ..."""
        return self.root.encoder

    @property
    def rows(self) -> int:
        """Planned rows, whether extracted or not."""
        return self.root.rows

    @property
    def unit_rows(self) -> int:
        """Rows of every unit but the last, which may have fewer."""
        return self.root.unit_rows

    @property
    def unit_count(self) -> int:
        return self.root.unit_count

    def unit_range(self, unit: int) -> range:
        """Rows of `unit`, which is counted from 0."""
        return self.root.unit_range(unit)

    @cached_property
    def unit_arrays(self) -> Mapping[str, ArraySpec]:
        """Arrays that units write, by name."""
        return unit_arrays(self.rows, self.unit_rows, self.geometry, self.recipe.dtype)

    @cached_property
    def token_arrays(self) -> Mapping[str, TokenArray]:
        """How tokens and baselines are stored, by the name that they are read under."""
        return token_arrays(self.rows, self.unit_rows, self.geometry, self.recipe.dtype)

    @cached_property
    def _commits(self) -> Commits:
        return Commits(self.place, self.root, self.recipe_id, self.unit_arrays)

    def committed_marker(self, unit: int) -> Marker:
        """The marker of `unit`, after checking that it fits this store and the sizes of its objects.

        Raises:
            FileNotFoundError: the unit has no marker.
            NotAMarker: the marker, or an object that it names, is not what it must be.
        """
        return self._commits.marker(unit)

    def trusted_marker(self, unit: int) -> Marker | None:
        """`committed_marker`, or None where it would raise."""
        return self._commits.trusted(unit)

    def check_marker(self, unit: int, marker: Marker) -> None:
        """Raise `NotAMarker` unless `marker` speaks of this store's `unit` and of all of its objects."""
        self._commits.check(unit, marker)

    def committed_units(self) -> list[int]:
        """Units whose marker fits and whose objects all exist with the right size, from disk at every call.

        Nothing is hashed; `verify_store` does that. Where the store grew, the unit that its earlier plan ended in
        is among them with the rows of that plan only (`unfinished_units`).
        """
        return list(self._commits.stops())

    def unfinished_units(self) -> list[int]:
        """Units of which rows are still to be written, ascending; as `committed_units` otherwise."""
        stops = self._commits.stops()
        return [unit for unit in range(self.unit_count) if stops.get(unit) != self.unit_range(unit).stop]

    def refresh(self) -> None:
        """Forget which units were committed at the first read."""
        self.__dict__.pop("_row_values", None)

    @cached_property
    def _row_values(self) -> Mapping[str, NDArray[Any]]:
        """`status` and `reason` of all rows; zero (absent) where the unit is not committed."""
        units = np.array(self.committed_units(), dtype=np.int64)
        done = (units[:, None] * self.unit_rows + np.arange(self.unit_rows)).reshape(-1)
        done = done[done < self.rows]
        values = {}
        for name in _ROW_ARRAYS:
            spec = self.unit_arrays[name]
            column = np.zeros(self.rows, spec.numpy_dtype)
            written = np.empty(len(done), spec.numpy_dtype)
            gather(self.place, spec, done, written)
            column[done] = written
            column.setflags(write=False)
            values[name] = column
        return values

    def column(self, name: str) -> NDArray[Any]:
        """One value a row, (rows,) or (rows, frames): a clip array, `status` or `reason`."""
        if name in _ROW_ARRAYS:
            return self._row_values[name]
        if name not in _CLIP_ARRAYS:
            raise UsageError(
                f"There is no clip array {name!r}; there are {', '.join((*_CLIP_ARRAYS, *_ROW_ARRAYS))}. "
                "Tokens are read with cls() and patch(), values of videos with video_column()."
            )
        return self._plan_array(name)

    @cached_property
    def video_columns(self) -> tuple[str, ...]:
        """Names that `video_column` takes, manifest columns among them."""
        names = {key.partition("/")[0] for key in read_plan_record(self.place, self.root)}
        return tuple(sorted(name[6:] for name in names if name.startswith("video_")))

    def video_column(self, name: str) -> list[str] | NDArray[Any]:
        """One value a video: a list for text, else an array (videos,). `column("video")` leads from rows."""
        if name not in self.video_columns:
            raise UsageError(f"There is no video column {name!r}; there are {', '.join(self.video_columns)}.")
        return _as_column(self._plan_array(f"video_{name}"))

    @cached_property
    def annotation_columns(self) -> tuple[str, ...]:
        """Names that `annotation_column` takes; none where clips cut all of a video."""
        names = {key.partition("/")[0] for key in read_plan_record(self.place, self.root)}
        return tuple(sorted(name[11:] for name in names if name.startswith("annotation_")))

    def annotation_column(self, name: str) -> list[str] | NDArray[Any]:
        """One value a row, of the annotation that made it: a list for text, else an array (rows,)."""
        if name not in self.annotation_columns:
            known = ", ".join(self.annotation_columns) or "none, as no annotations made its clips"
            raise UsageError(f"There is no annotation column {name!r} in {self.name}; there are {known}.")
        return _as_column(self._plan_array(f"annotation_{name}"))

    def _plan_array(self, name: str) -> NDArray[Any]:
        try:
            where = self.place.zarr_store() if isinstance(self.place, ObjectPath) else str(self.place)
            array = zarr.open_array(where, path=name, mode="r", zarr_format=3)
            values = np.asarray(array[:])
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(
                f"The plan array {name} of {self.name} is damaged ({error}). Restore it from a "
                "copy or make the store anew; extraction does not rewrite the plan."
            ) from error
        expected = self.root.videos if name.startswith("video_") else self.rows
        if len(values) != expected:
            raise StoreError(
                f"{self.name} has grown since it was opened ({name} has {len(values)} entries instead "
                f"of {expected}). Open it again."
            )
        return values

    @cached_property
    def video_paths(self) -> list[str]:
        """`video_column("path")`, read once: a ledger asks for it with every unit."""
        return list(self.video_column("path"))

    @cached_property
    def row_videos(self) -> NDArray[Any]:
        """`column("video")`, read once."""
        return self.column("video")

    def ok_rows(self) -> NDArray[np.int64]:
        """Rows that have tokens, ascending."""
        return np.flatnonzero(self._row_values["status"] == Status.OK)

    def cls(self, rows: RowNumbers | None = None, *, allow_failed: bool = False) -> NDArray[np.float32]:
        """[CLS] vectors (n, dim) float32 of `rows`, in their order; of all ok rows if None.

        Raises:
            UsageError: a row number that does not exist, or the store keeps no [CLS].
            StoreError: a row that is not ok, unless `allow_failed`, which gives NaN for it; or damaged data.
        """
        return self._tokens("cls", rows, allow_failed)

    def frame_cls(self, rows: RowNumbers | None = None, *, allow_failed: bool = False) -> NDArray[np.float32]:
        """One vector a frame, (n, time, dim) float32, of `rows`; as `cls` otherwise.

        Frames from `n_real` on repeat the last real one, and so do their vectors.

        Raises:
            UsageError: also if the encoder or the store's token tier has no vector a frame.
        """
        return self._tokens("frame_cls", rows, allow_failed)

    def patch(
        self,
        rows: RowNumbers | None = None,
        *,
        layer: int | None = None,
        allow_failed: bool = False,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> NDArray[Any]:
        """Patch tokens (n, time, row, col, dim) float32 of `rows`; as `cls` otherwise.

        Args:
            layer: block, counted from 0, whose output is read, through the final norm; None for the encoder's
                output.
            dtype: of the result. float16, of a store in float16 alone, is what lies on disk, in half the memory. Tokens
                of a store in int8 are multiplied by their scales.

        Raises:
            UsageError: also if the store's token tier keeps no patches, or not those of `layer`.
        """
        if np.finfo(dtype).max < np.finfo(np.float32).max and self.recipe.dtype != "float16":
            raise UsageError(
                f"Tokens stored in {self.recipe.dtype} may pass what {np.dtype(dtype)} holds. Read float32."
            )
        return self._tokens("patch" if layer is None else layer_array(layer), rows, allow_failed, dtype)

    def baseline(self, name: str, rows: RowNumbers | None = None, *, allow_failed: bool = False) -> NDArray[np.float32]:
        """(n, length) float32 `colour` or `motion` baseline of `rows`; as `cls` otherwise.

        Raises:
            UsageError: also if the store was extracted without baselines.
        """
        return self._tokens(f"baseline_{name}", rows, allow_failed)

    def stored(self, array: str, rows: RowNumbers | None = None, *, allow_failed: bool = False) -> NDArray[Any]:
        """Values (n, ...) of `rows` as they lie on disk, in the stored type; as `cls` otherwise.

        Args:
            array: one of tokens or baselines, or `patch_scale` or `patch_l<i>_scale` where tokens are in int8: the
                tokens are `stored("patch")` times `stored("patch_scale")[..., None]`.

        Raises:
            UsageError: also if the store has no such array.
        """
        spec = self._stored_array(array)
        wanted, ok = self._wanted(rows, allow_failed)
        if ok.all():
            values = np.empty((len(wanted), *spec.row_shape), spec.numpy_dtype)
            gather(self.place, spec, wanted, values)
        else:
            values = np.full((len(wanted), *spec.row_shape), spec.fill, spec.numpy_dtype)
            values[ok] = self.stored(array, wanted[ok])
        return values

    def stored_into(self, array: str, rows: RowNumbers, rooms: Sequence[NDArray[Any]]) -> None:
        """`stored`, written into one contiguous array of a row's shape each: for memory that is used again.

        Raises:
            StoreError: as `stored`; what the arrays hold then is of no use.
        """
        wanted, _ = self._wanted(rows, False)
        scatter(self.place, self._stored_array(array), wanted, rooms)

    def iter_tokens(
        self, array: str, rows: RowNumbers | None = None, *, batch_rows: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """(rows, tokens) in batches of at most `batch_rows`, for stores larger than memory.

        `array` is `cls`, `frame_cls`, `patch`, or `patch_l<i>` for a layer that the store keeps.

        Ascending rows read every chunk once; for shuffled training, shuffle `unit_range`s and read unit by
        unit.
        """
        if batch_rows < 1:
            raise UsageError(f"batch_rows is {batch_rows}; allowed is 1 or more.")
        wanted = self.ok_rows() if rows is None else as_rows(rows, self.rows)
        for start in range(0, len(wanted), batch_rows):
            batch = wanted[start : start + batch_rows]
            yield batch, self._tokens(array, batch, False)

    def _tokens(
        self, name: str, rows: RowNumbers | None, allow_failed: bool, dtype: type[np.floating[Any]] = np.float32
    ) -> NDArray[Any]:
        array = self._token_array(name)
        wanted, ok = self._wanted(rows, allow_failed)
        if ok.all():
            values = np.empty((len(wanted), *array.values.row_shape), dtype)
            gather_tokens(self.place, array, wanted, values)
        else:
            values = np.full((len(wanted), *array.values.row_shape), np.nan, dtype)
            values[ok] = self._tokens(name, wanted[ok], False, dtype)
        return values

    def _wanted(self, rows: RowNumbers | None, allow_failed: bool) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Row numbers, and which of them are ok, after refusing others unless they are allowed."""
        wanted = self.ok_rows() if rows is None else as_rows(rows, self.rows)
        ok = self._row_values["status"][wanted] == Status.OK
        if not (allow_failed or ok.all()):
            raise StoreError(not_ok(wanted[~ok], self._row_values))
        return wanted, ok

    def _token_array(self, name: str) -> TokenArray:
        """How the tokens called `name` are stored, or what the store keeps instead."""
        array = self.token_arrays.get(name)
        if array is None:
            raise UsageError(not_kept(name, self.recipe, self.geometry))
        return array

    def _stored_array(self, array: str) -> ArraySpec:
        parts = {spec.name: spec for kept in self.token_arrays.values() for spec in kept.parts}
        if array not in parts:
            raise UsageError(f"This store has no array {array!r} of tokens; it has {', '.join(parts)}.")
        return parts[array]

    @contextmanager
    def lock(self, units: range | None = None) -> Iterator[None]:
        """Be the only process that extracts `units`, or into the store at all (None), for the length of a `with` block.

        An advisory lock that the operating system drops when the process ends, however it ends, and that network
        file systems with locks (NFS 4, Lustre mounted with `flock`) honour between hosts; Linux only. On an object
        store it is a lease (`coldframe.store.lease`), of the whole store. Worker processes of the holder write units
        without taking it.

        Raises:
            UsageError: another process holds it, or one that overlaps it; so does a second holder in this process.
            StoreError: the store has grown since it was opened.
        """
        with held_lock(self.place, units, self.plan_id):
            yield


def _as_column(values: NDArray[Any]) -> list[str] | NDArray[Any]:
    text = values.dtype.kind not in "biuf"
    return [str(value) for value in values] if text else values


def open_store(path: str | os.PathLike[str], *, writable: bool = False) -> Store:
    """The store at `path`, a folder or `s3://bucket/prefix`.

    Raises:
        InputNotFound: nothing is there.
        UsageError: something else is there; the message says what.
        StoreError: a store of another format version, or one whose plan has been altered or cut short.
    """
    place = place_of(path)
    store = Store(place=place, root=read_root(place), writable=writable)
    if isinstance(place, Path) and growth_folder(place).exists():
        raise StoreError(
            f"{store.name} is being grown, or was when a process died. Run `coldframe repair` on it, which completes "
            "that."
        )
    for key, message in plan_problems(place, store.root):
        raise StoreError(
            f"{store.name} cannot be trusted: {key}: {message}. Restore it from a copy or make the store anew."
        )
    return store
