"""Runtime `onnxruntime`: the exported graph on the CPU, or on a GPU through its CUDA provider."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
# What a device runs on. TF32, the CUDA provider's default, would make float32 products of 10 bits.
_PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "cpu": (PROVIDER, {}),
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}
# Its CPU provider has no bfloat16 matrix product; float16 it computes in float32 between casts.
PRECISIONS = ("fp32", "fp16")


def open_session(graph: Path, shapes: Mapping[str, list[str | int]], threads: int, device: str = "cpu") -> Any:
    """An ONNX Runtime session of `graph` on one device.

    Args:
        graph: the graph file; its weights lie beside it.
        shapes: wanted shape of every input and output by name; a string is a free axis.
        threads: threads for one call.
        device: `cpu` or `cuda`.

    Raises:
        UsageError: the device's provider is not there.
        BundleError: the graph cannot be loaded, has other inputs or outputs, or runs on another provider.
    """
    require_provider(device)
    provider, provider_options = _PROVIDERS[device]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Decoding shares the cores: threads that spin while they wait made a loaded machine 1.5 times slower.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(graph), options, providers=[(provider, provider_options)])
    except Exception as error:  # the library's own error types are not public
        raise BundleError(f"{graph} cannot be loaded by ONNX Runtime: {error}") from error
    used = session.get_providers()
    # A session always ends with the CPU provider, for what decides shapes; the one asked for must come first.
    if used != list(dict.fromkeys((provider, PROVIDER))):
        raise BundleError(f"ONNX Runtime would run {graph} on {used}; asked was {provider}.")
    given: dict[str, Any] = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    if given != shapes:
        raise BundleError(f"{graph} has inputs and outputs {given}; the configuration says {dict(shapes)}.")
    return session


def require_provider(device: str) -> None:
    """Refuse a device whose provider this installation lacks; ONNX Runtime itself would take the CPU and carry on.

    Raises:
        UsageError: the provider is not there.
    """
    provider, offered = _PROVIDERS[device][0], onnxruntime.get_available_providers()
    if provider not in offered:
        raise UsageError(
            f"device {device!r} was asked for, but onnxruntime {onnxruntime.__version__} here offers only "
            f"{', '.join(offered)}. {provider} comes with onnxruntime-gpu, which takes the place of onnxruntime: pip "
            "uninstall onnxruntime, then pip install onnxruntime-gpu."
        )


class OnnxRuntime:
    """uint8 clips in, tokens out, through ONNX Runtime.

    Args:
        graph: the graph file; its weights lie beside it.
        geometry: what it takes and gives.
        precision: arithmetic of the graph, one of `PRECISIONS`.
        threads: threads for one call; None for one a usable core.
        device: `cpu` or `cuda`.

    Raises:
        UsageError: the device's provider is not there, or it does not compute the precision.
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
        device: str = "cpu",
    ) -> None:
        require_provider(device)
        self._provider = _PROVIDERS[device][0]
        if device == "cpu" and precision not in PRECISIONS:
            raise UsageError(f"onnxruntime on the CPU computes {' or '.join(PRECISIONS)} graphs, not {precision}.")
        self.precision = precision
        self.threads = check_threads(threads)
        self._geometry = as_geometry(geometry)
        self._session = open_session(graph, self._geometry.graph_shapes, self.threads, device)

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)`. Every call gives fresh arrays.

        On the CPU one clip at a time: a batch is no faster there, and would take the memory of all its clips.
        """
        checked = check_clips(clips, self._geometry)
        step = 1 if self._provider == PROVIDER else max(1, len(checked))
        parts = [self._run(checked[start : start + step]) for start in range(0, max(1, len(checked)), step)]
        return Tokens.from_outputs({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def _run(self, clips: Clips) -> dict[str, NDArray[np.float32]]:
        names = self._geometry.outputs
        values = self._session.run(list(names), {"clips": clips})
        return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}

    def provenance(self) -> dict[str, str]:
        """What computes, for the record of a run."""
        return {
            "runtime": f"onnxruntime {onnxruntime.__version__}",
            "provider": ", ".join(self._session.get_providers()),
            "threads": str(self.threads),
            "cpu": cpu_model(),
        }
