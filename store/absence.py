"""Absence: why a store has no tokens of some name, or of some row, and what to do instead."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.store.recipe import Recipe
from coldframe.store.schema import Reason, Status, TokenGeometry


def not_kept(name: str, recipe: Recipe, geometry: TokenGeometry) -> str:
    """Message about tokens called `name` that a store of this recipe does not keep."""
    tier = recipe.tokens
    if name.startswith("baseline_"):
        return f"This store keeps no {name}. Extract with --baselines into a new store."
    if name == "cls":
        return f"This store keeps no [CLS] tokens: its token tier is {tier!r}. Read patch(), or its mean."
    if name == "frame_cls":
        return (
            f"This store keeps no vector a frame: its token tier is {tier!r}, of {recipe.encoder}. Per-frame "
            "encoders give one with the tiers frame_cls, cls+mean, cls+grid7 and full."
        )
    if not geometry.keeps_patches:
        return (
            f"This store keeps no patch tokens: its token tier is {tier!r}. Extract with another tier "
            "(cls+mean, cls+grid7, mean, grid7 or full) into a new store."
        )
    layers = list(geometry.layers) or "none"
    return (
        f"This store keeps no {name}; it keeps the layers {layers} beside the encoder's output. "
        "Export the encoder with --layers and extract into a new store."
    )


def not_ok(rows: NDArray[np.int64], row_values: Mapping[str, NDArray[Any]]) -> str:
    """Message about `rows` that were asked for and are not ok.

    Args:
        row_values: `status` and `reason` of all rows.
    """
    row = int(rows[0])
    status = Status(int(row_values["status"][row])).name.lower()
    reason = Reason(int(row_values["reason"][row])).name.lower()
    more = f" (and {len(rows) - 1} more of the rows asked for)" if len(rows) > 1 else ""
    why = f"{status}, reason {reason}" if status == "failed" else f"{status}: its unit is not committed"
    return (
        f"Row {row}{more} has no tokens: it is {why}. Leave it out (ok_rows() lists the rows that have "
        "some) or pass allow_failed=True to get NaN."
    )
