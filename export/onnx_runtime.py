"""Runtime `onnxruntime`: the exported graph on the CPU."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coldframe.errors import BundleError, MissingDependency, UsageError
from coldframe.export.geometry import Geometry, HasGeometry, as_geometry
from coldframe.export.host import check_threads, cpu_model
from coldframe.export.pixels import Clips, check_clips
from coldframe.export.tokens import Tokens

# From 1.29 on, importing ONNX Runtime on Linux makes a device id and reports models and sessions to its vendor, unless
# this is set before (microsoft/onnxruntime pull request 27379). Whoever wants that can set it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
try:
    import onnxruntime
except ImportError as error:
    raise MissingDependency("onnxruntime", "cpu") from error

PROVIDER = "CPUExecutionProvider"
# Its CPU provider has no bfloat16 matrix product; float16 it computes in float32 between casts.
PRECISIONS = ("fp32", "fp16")


def open_session(graph: Path, shapes: Mapping[str, list[str | int]], threads: int) -> Any:
    """An ONNX Runtime session of `graph` on the CPU alone.

    Args:
        graph: the graph file; its weights lie beside it.
        shapes: wanted shape of every input and output by name; a string is a free axis.
        threads: threads for one call.

    Raises:
        BundleError: the graph cannot be loaded, has other inputs or outputs, or runs on another provider.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Decoding shares the cores: threads that spin while they wait made a loaded machine 1.5 times slower.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(graph), options, providers=[PROVIDER])
    except Exception as error:  # the library's own error types are not public
        raise BundleError(f"{graph} cannot be loaded by ONNX Runtime: {error}") from error
    used = session.get_providers()
    if used != [PROVIDER]:
        raise BundleError(f"ONNX Runtime would run {graph} on {used}; asked was {PROVIDER} alone.")
    given: dict[str, Any] = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    if given != shapes:
        raise BundleError(f"{graph} has inputs and outputs {given}; the configuration says {dict(shapes)}.")
    return session


class OnnxRuntime:
    """uint8 clips in, tokens out, through ONNX Runtime.

    Args:
        graph: the graph file; its weights lie beside it.
        geometry: what it takes and gives.
        precision: arithmetic of the graph, one of `PRECISIONS`.
        threads: threads for one call; None for one a usable core.

    Raises:
        UsageError: a precision that this runtime does not compute.
        BundleError: the graph cannot be loaded, is not of this geometry, or runs on another provider.
    """

    backend = "onnxruntime"

    def __init__(
        self,
        graph: Path,
        geometry: Geometry | HasGeometry,
        *,
        precision: str = "fp32",
        threads: int | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise UsageError(f"onnxruntime on the CPU computes {' or '.join(PRECISIONS)} graphs, not {precision}.")
        self.precision = precision
        self.threads = check_threads(threads)
        self._geometry = as_geometry(geometry)
        self._session = open_session(graph, self._geometry.graph_shapes, self.threads)

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)`. Every call gives fresh arrays."""
        names = self._geometry.outputs
        values = self._session.run(list(names), {"clips": check_clips(clips, self._geometry)})
        return Tokens.from_outputs({name: np.asarray(value) for name, value in zip(names, values, strict=True)})

    def provenance(self) -> dict[str, str]:
        """What computes, for the record of a run."""
        return {
            "runtime": f"onnxruntime {onnxruntime.__version__}",
            "provider": ", ".join(self._session.get_providers()),
            "threads": str(self.threads),
            "cpu": cpu_model(),
        }
