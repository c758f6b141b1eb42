"""V-JEPA 2's predictor at work: which tokens to ask for, and the runtime of its graph."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coldframe.errors import UsageError
from coldframe.export.geometry import Geometry
from coldframe.export.host import check_threads
from coldframe.export.parity import compare_patch
from coldframe.export.vjepa2 import VJEPA2
from coldframe.export.vjepa2_config import VJEPA2Config

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
NOMINAL_FPS = 8  # the clock of the released anticipation models, whatever rate the clip really has


def anticipation_ids(
    seconds: NDArray[np.floating[Any]], geometry: Geometry, *, tubelet: int = 2, fps: float = NOMINAL_FPS
) -> Ids:
    """Ids of one whole time step that lies `seconds` behind the clip, for each clip.

    The step is `trunc(seconds * fps / tubelet)` steps after the first one past the clip, as in the released
    anticipation wrapper: at 8 fps and two frames a step, 1 s is four steps on.

    Args:
        seconds: (B,) anticipation times from 0.
        geometry: of the clip that the encoder saw.

    Returns:
        (B, rows * cols) int64.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if times.ndim != 1 or not np.isfinite(times).all() or (times < 0).any():
        raise UsageError(f"anticipation times are {times.tolist()}; allowed is a list of seconds from 0.")
    step = geometry.rows * geometry.cols
    first = geometry.patches + step * np.trunc(times * fps / tubelet).astype(np.int64)
    ids: Ids = first[:, None] + np.arange(step)
    return ids


class OnnxPredictor:
    """Patch tokens and wanted ids in, predicted tokens out, through ONNX Runtime.

    Args:
        graph: the predictor's graph; its weights lie beside it.
        config, geometry: of the encoder in the same bundle.
        threads: threads for one call; None for one a usable core.
    """

    def __init__(self, graph: Path, config: VJEPA2Config, geometry: Geometry, *, threads: int | None = None) -> None:
        from coldframe.export.onnx_runtime import open_session
        from coldframe.export.vjepa2_graph import predictor_shapes, predictor_steps

        self.geometry = geometry
        steps = predictor_steps(geometry, config.frames_per_clip // config.tubelet_size)
        self.positions = steps * geometry.rows * geometry.cols
        self._session = open_session(graph, predictor_shapes(geometry), check_threads(threads))

    def __call__(self, patch: Floats, target_ids: Ids) -> Floats:
        """Predict tokens.

        Args:
            patch: `(B, T, h, w, D)` float32, the encoder's output.
            target_ids: `(B, M)` integers, 0 to `positions` - 1.

        Returns:
            `(B, M, D)` float32 in the order of `target_ids`.
        """
        shape = self.geometry
        wanted = (len(patch), shape.times, shape.rows, shape.cols, shape.dim)
        if patch.shape != wanted or patch.dtype != np.float32 or not len(patch):
            raise UsageError(f"patch is {patch.dtype} of shape {patch.shape}; wanted is float32 {('B', *wanted[1:])}.")
        ids = np.asarray(target_ids)
        if ids.ndim != 2 or ids.shape[0] != len(patch) or not ids.size or not np.issubdtype(ids.dtype, np.integer):
            raise UsageError(f"target_ids is {ids.dtype} of shape {ids.shape}; wanted are integers ({len(patch)}, M).")
        if ids.min() < 0 or ids.max() >= self.positions:
            raise UsageError(
                f"target_ids go from {ids.min()} to {ids.max()}; this graph knows the positions 0 to "
                f"{self.positions - 1}."
            )
        inputs = {"patch": np.ascontiguousarray(patch), "target_ids": np.ascontiguousarray(ids, dtype=np.int64)}
        (predicted,) = self._session.run(["predicted"], inputs)
        return np.asarray(predicted)


class TorchPredictor:
    """The same through PyTorch: the reference."""

    def __init__(self, model: VJEPA2) -> None:
        self._model = model

    def __call__(self, patch: Floats, target_ids: Ids) -> Floats:
        with torch.inference_mode():
            predicted: Floats = self._model.predictor(
                torch.from_numpy(np.require(patch, requirements="W")), torch.from_numpy(np.asarray(target_ids))
            ).numpy()
        return predicted


def measure_predictor(reference: TorchPredictor, candidate: OnnxPredictor, patch: Floats) -> dict[str, Any]:
    """Measures (`parity.compare_patch`) for tokens inside the clip, right behind it, and at the last position."""
    shape = candidate.geometry
    step = shape.rows * shape.cols
    ids = np.concatenate([
        np.arange(step),
        anticipation_ids(np.zeros(1), shape)[0],
        np.arange(candidate.positions - step, candidate.positions),
    ])[None].repeat(len(patch), axis=0)  # fmt: skip
    return {**compare_patch(reference(patch, ids), candidate(patch, ids)), "positions": candidate.positions}
