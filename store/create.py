"""Creation: a new store with its plan and no tokens yet, made beside its place and renamed into it whole."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec

import coldframe
from coldframe.errors import UsageError
from coldframe.store.files import Place, disk_errors, fsync_path, place_of, sha256_file
from coldframe.store.layout import ArraySpec, plan_arrays, rows_per_unit, unit_arrays
from coldframe.store.markers import MARKER_FOLDER
from coldframe.store.object_path import ObjectPath
from coldframe.store.plan import Plan
from coldframe.store.put_store import put_store
from coldframe.store.recipe import Recipe, canonical_json
from coldframe.store.root import ATTRIBUTE, ROOT_FILE, Root, is_taken, write_plan_record
from coldframe.store.schema import WITH_FRAME_CLS, WITHOUT_CLS, WITHOUT_PATCHES, TokenGeometry
from coldframe.store.store import Store, open_store
from coldframe.store.text import path_to_text
from coldframe.workplace import workplace


def create_store(
    path: str | os.PathLike[str], plan: Plan, *, geometry: TokenGeometry, encoder: Mapping[str, Any]
) -> Store:
    """A new, writable store at `path` with the plan's rows, none of them extracted.

    Nothing appears at `path` before everything is there. What a killed creation left beside it is removed.

    Args:
        path: must not exist; missing parent folders are made. `s3://bucket/prefix` for an object store.
        plan: decides the rows and their order.
        geometry: shape of one row's tokens; must suit the recipe's token tier.
        encoder: identity of the encoder as JSON values, such as `name`, `untrained`, `weights_sha256`,
            `licence`.

    Raises:
        UsageError: `path` exists, the plan has no clips, or an argument does not suit the recipe.
        ColdframeError: the disk refuses.
    """
    place = place_of(path)
    _check(place, plan, geometry)
    root = Root(
        recipe=plan.recipe,
        plan_id=plan.plan_id,
        geometry=geometry,
        encoder=_json_values(encoder),
        rows=len(plan.clips),
        videos=len(plan.videos),
        unit_rows=rows_per_unit(len(plan.clips), geometry, plan.recipe.dtype),
        created_by=f"coldframe {coldframe.__version__}",
    )
    planned = plan_arrays(plan)  # checks the columns before anything is written
    if isinstance(place, ObjectPath):
        put_store(place, lambda folder: build(folder, root, planned))
        return open_store(place, writable=True)
    with disk_errors("create the store", place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with workplace(place, prefix=f"{place.name}.partial-") as partial:
            build(partial, root, planned)
            _check_free(place)
            partial.rename(place)
        fsync_path(place.parent)
    return open_store(place, writable=True)


def _check(place: Place, plan: Plan, geometry: TokenGeometry) -> None:
    _check_free(place)
    if not len(plan.clips):
        raise UsageError("The plan has no clips, so there is nothing to store. Check which videos were found.")
    if not _suits(geometry, plan.recipe):
        raise UsageError(
            f"{geometry} does not suit the token tier {plan.recipe.tokens!r} with the layers "
            f"{plan.recipe.layers}. Make it with TokenGeometry.for_tier."
        )


def _suits(geometry: TokenGeometry, recipe: Recipe) -> bool:
    tier = recipe.tokens
    one_a_frame = geometry.rows * geometry.cols == 1
    return (
        geometry.keeps_patches == (tier not in WITHOUT_PATCHES)
        and (one_a_frame or tier not in ("mean", "cls+mean"))
        and (tier == "full" or geometry.has_cls == (tier in WITHOUT_CLS))
        and (geometry.has_frame_cls if tier == "frame_cls" else not geometry.has_frame_cls or tier in WITH_FRAME_CLS)
        and geometry.has_cls >= geometry.has_frame_cls
        and geometry.layers == recipe.layers
        and (geometry.baseline_colour > 0) == (geometry.baseline_motion > 0) == (recipe.baselines != "none")
    )


def _check_free(place: Place) -> None:
    if is_taken(place):
        raise UsageError(
            f"{path_to_text(place)} exists already. Open it to continue it, or choose another path for a new store."
        )


def _json_values(encoder: Mapping[str, Any]) -> dict[str, Any]:
    try:
        canonical_json(dict(encoder))
    except (TypeError, ValueError) as error:
        raise UsageError(f"The encoder's identity cannot be written as JSON ({error}). Use plain values.") from error
    return dict(encoder)


def build(folder: Path, root: Root, planned: list[tuple[ArraySpec, NDArray[Any]]]) -> None:
    """Write everything but units into `folder`: metadata, the plan's arrays and their record."""
    group = zarr.create_group(str(folder), zarr_format=3, attributes={ATTRIBUTE: root.to_attributes()})
    for spec in unit_arrays(root.rows, root.unit_rows, root.geometry, root.recipe.dtype).values():
        _create_array(group, spec)
    for spec, values in [*planned, _unit_starts(root)]:
        _create_array(group, spec)[:] = values
    files = sorted(entry for entry in folder.rglob("*") if entry.is_file())
    # zarr.json of the root is left out: consolidating metadata rewrites it, and its attributes have a
    # digest of their own
    objects = {key: sha256_file(entry) for entry in files if (key := entry.relative_to(folder).as_posix()) != ROOT_FILE}
    write_plan_record(folder, root, objects)
    _fsync_tree(folder)


def _unit_starts(root: Root) -> tuple[ArraySpec, NDArray[Any]]:
    """The array `units`: first row of each unit. Its folder is where the markers lie."""
    starts = np.arange(0, root.rows, root.unit_rows, dtype=np.int64)
    spec = ArraySpec(
        name=MARKER_FOLDER,
        dims=("unit",),
        shape=starts.shape,
        dtype="int64",
        chunk_rows=len(starts),
        object_rows=len(starts),
        sharded=False,
        fill=0,
    )
    return spec, starts


def _create_array(group: zarr.Group, spec: ArraySpec) -> zarr.Array[Any]:
    text = spec.dtype == "str"
    return group.create_array(
        spec.name,
        shape=spec.shape,
        dtype=spec.dtype,
        chunks=(spec.chunk_rows, *spec.row_shape),
        shards=(spec.object_rows, *spec.row_shape) if spec.sharded else None,
        serializer="auto" if text else BytesCodec(endian="little"),
        compressors=(Crc32cCodec(),),
        fill_value=spec.fill,
        dimension_names=spec.dims,
        config={"write_empty_chunks": True},
    )


def _fsync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            fsync_path(Path(parent) / name)
        fsync_path(Path(parent))
