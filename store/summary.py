"""Summary: what a store holds, and the seal that says that every planned row is accounted for."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import StoreError
from coldframe.store.files import disk_errors, sizes_below, write_bytes, write_json
from coldframe.store.int8_tokens import Reconstruction
from coldframe.store.markers import LEDGER_FILE, MARKER_FOLDER, SUMMARY_FILE
from coldframe.store.recipe import canonical_json
from coldframe.store.schema import FORMAT_VERSION, Flag, Reason, Status
from coldframe.store.store import Store


def summarise(store: Store) -> dict[str, Any]:
    """Facts about a store as JSON values. Two identical runs give the same ones: no times, hosts or paths."""
    store.refresh()
    status = store.column("status")
    arrays = _arrays(store)
    rows = _count_rows(status)
    return {
        "format_version": FORMAT_VERSION,
        "created_by": store.root.created_by,
        "complete": rows["absent"] == 0,
        "rows": rows,
        "videos": _count_videos(status, store.column("video"), store.root.videos),
        "units": {
            "total": store.unit_count,
            "done": store.unit_count - len(store.unfinished_units()),
            "rows": store.unit_rows,
        },
        "truncated_videos": _truncated(store),
        "reasons": _count_reasons(store),
        "flags": _count_flags(store),
        "tokens": store.recipe.tokens,
        "dtype": store.recipe.dtype,
        **_reconstruction(store),
        "arrays": arrays,
        "bytes": sum(array["bytes"] for array in arrays.values()),
        "grown_from_rows": [plan.rows for plan in store.root.earlier],
        "recipe_id": store.recipe_id,
        "plan_id": store.plan_id,
        "recipe": store.recipe.to_dict(),
        "geometry": store.geometry.to_dict(),
        "encoder": dict(store.encoder),
    }


def failures(store: Store) -> Iterator[dict[str, Any]]:
    """One entry a failed row, in row order: `row`, `video`, `path`, `reason`, `error`."""
    for unit in store.committed_units():
        yield from store.committed_marker(unit).failures


def seal(store: Store) -> dict[str, int]:
    """Write `units/summary.json` and the ledger `units/failures.jsonl`, and return the rows by status.

    Both follow from the markers, so identical runs give identical files; writing or discarding a unit removes
    them.

    Raises:
        StoreError: a planned row is neither ok nor failed.
        ColdframeError: the disk refuses.
    """
    summary = summarise(store)
    rows: dict[str, int] = summary["rows"]
    if rows["absent"]:
        raise StoreError(
            f"{store.name} is not complete: {rows['absent']} of {rows['planned']} rows are absent "
            f"({summary['units']['total'] - summary['units']['done']} units). Run the same extraction again "
            "to fill them in."
        )
    ledger = "".join(canonical_json(_classed(failure)) + "\n" for failure in failures(store))
    folder = store.place / MARKER_FOLDER
    with disk_errors("seal", store.place):
        write_bytes(folder / LEDGER_FILE, ledger.encode())
        write_json(folder / SUMMARY_FILE, summary)
    return rows


def _classed(failure: dict[str, Any]) -> dict[str, Any]:
    return {**failure, "transient": Reason[failure["reason"].upper()].is_transient}


def _count_rows(status: NDArray[Any]) -> dict[str, int]:
    return {
        "planned": len(status),
        "ok": int(np.count_nonzero(status == Status.OK)),
        "failed": int(np.count_nonzero(status == Status.FAILED)),
        "absent": int(np.count_nonzero(status == Status.ABSENT)),
    }


def _count_videos(status: NDArray[Any], video: NDArray[Any], videos: int) -> dict[str, int]:
    """Videos by what became of their rows: all ok, all failed, some of each, or some still absent."""
    has = {state: np.bincount(video[status == state], minlength=videos) > 0 for state in Status}
    done = ~has[Status.ABSENT]
    return {
        "planned": videos,
        "ok": int(np.count_nonzero(done & has[Status.OK] & ~has[Status.FAILED])),
        "partly_ok": int(np.count_nonzero(done & has[Status.OK] & has[Status.FAILED])),
        "failed": int(np.count_nonzero(done & ~has[Status.OK] & has[Status.FAILED])),
        "pending": int(np.count_nonzero(has[Status.ABSENT])),
    }


def _truncated(store: Store) -> list[dict[str, Any]]:
    """Videos that hold less than their container promises; `promised_s` is None where its header states no length."""
    flags, real, promised = (store.video_column(name) for name in ("flags", "duration_s", "promised_s"))
    return [
        {
            "video": int(video),
            "duration_s": float(real[video]),
            "promised_s": float(promised[video]) if np.isfinite(promised[video]) else None,
        }
        for video in np.flatnonzero(np.asarray(flags) & Flag.TRUNCATED.value)
    ]


def _count_reasons(store: Store) -> dict[str, int]:
    reason = store.column("reason")
    counts = {item.name.lower(): int(np.count_nonzero(reason == item)) for item in Reason if item is not Reason.NONE}
    return {name: count for name, count in counts.items() if count}


def _count_flags(store: Store) -> dict[str, int]:
    flags = store.column("flags")[store.ok_rows()]
    counts = {str(item.name).lower(): int(np.count_nonzero(flags & item.value)) for item in Flag}
    return {name: count for name, count in counts.items() if count}


def _reconstruction(store: Store) -> dict[str, Any]:
    """How near int8 tokens of ok rows are to those that the encoder gave, by array, where the store has such."""
    if store.recipe.dtype != "int8":
        return {}
    markers = [store.committed_marker(unit) for unit in store.committed_units()]
    joined = {
        name: Reconstruction.join(marker.reconstruction.get(name) for marker in markers)
        for name in store.geometry.patch_arrays
    }
    return {"reconstruction": {name: found.to_dict() for name, found in joined.items() if found is not None}}


def _arrays(store: Store) -> dict[str, dict[str, Any]]:
    """Shape, type and bytes on disk of the arrays that units write; the plan's arrays together as `plan`."""
    below = sizes_below(store.place)
    arrays = {
        name: {
            "dims": list(spec.dims),
            "shape": list(spec.shape),
            "dtype": spec.dtype,
            **_sizes([size for key, size in below.items() if key.startswith(f"{name}/")]),
        }
        for name, spec in store.unit_arrays.items()
    }
    of_arrays = (*arrays, MARKER_FOLDER)
    return {**arrays, "plan": _sizes([size for key, size in below.items() if key.partition("/")[0] not in of_arrays])}


def _sizes(sizes: list[int]) -> dict[str, int]:
    return {"bytes": sum(sizes), "files": len(sizes), "largest_file_bytes": max(sizes, default=0)}
