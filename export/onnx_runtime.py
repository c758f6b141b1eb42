"""Runtime `onnxruntime`: the exported graph on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np

from coldframe.errors import BundleError, MissingDependency, UsageError
from coldframe.export.config import LeVJEPAConfig
from coldframe.export.host import check_threads, cpu_model
from coldframe.export.pixels import Clips, check_clips
from coldframe.export.tokens import Tokens

try:
    import onnxruntime
except ImportError as error:
    raise MissingDependency("onnxruntime", "cpu") from error

PROVIDER = "CPUExecutionProvider"
# Its CPU provider has no bfloat16 matrix product; float16 it computes in float32 between casts.
PRECISIONS = ("fp32", "fp16")


class OnnxRuntime:
    """uint8 clips in, tokens out, through ONNX Runtime.

    Args:
        graph: the graph file; its weights lie beside it.
        config: shape of the encoder in it.
        precision: arithmetic of the graph, one of `PRECISIONS`.
        threads: threads for one call; None for one a usable core.

    Raises:
        UsageError: a precision that this runtime does not compute.
        BundleError: the graph cannot be loaded, is not of the shape of `config`, or runs on another provider.
    """

    backend = "onnxruntime"

    def __init__(
        self, graph: Path, config: LeVJEPAConfig, *, precision: str = "fp32", threads: int | None = None
    ) -> None:
        if precision not in PRECISIONS:
            raise UsageError(f"onnxruntime on the CPU computes {' or '.join(PRECISIONS)} graphs, not {precision}.")
        self.precision = precision
        self.threads = check_threads(threads)
        self._config = config
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        # Decoding shares the cores: threads that spin while they wait made a loaded machine 1.5 times slower.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(str(graph), options, providers=[PROVIDER])
        except Exception as error:  # the library's own error types are not public
            raise BundleError(f"{graph} cannot be loaded by ONNX Runtime: {error}") from error
        self._check(graph)

    def _check(self, graph: Path) -> None:
        used = self._session.get_providers()
        if used != [PROVIDER]:
            raise BundleError(f"ONNX Runtime would run {graph} on {used}; asked was {PROVIDER} alone.")
        config = self._config
        side, grid, dim = config.img_size, config.grid, config.embed_dim
        wanted = {
            "clips": ["batch", config.num_frames, side, side, 3],
            "cls": ["batch", dim],
            "patch": ["batch", config.num_frames, grid, grid, dim],
        }
        given: dict[str, list[Any]] = {
            value.name: value.shape for value in (*self._session.get_inputs(), *self._session.get_outputs())
        }
        if given != wanted:
            raise BundleError(f"{graph} has inputs and outputs {given}; the configuration says {wanted}.")

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)`. Every call gives fresh arrays."""
        cls, patch = self._session.run(["cls", "patch"], {"clips": check_clips(clips, self._config)})
        return Tokens(cls=np.asarray(cls), patch=np.asarray(patch))

    def provenance(self) -> dict[str, str]:
        """What computes, for the record of a run."""
        return {
            "runtime": f"onnxruntime {onnxruntime.__version__}",
            "provider": ", ".join(self._session.get_providers()),
            "threads": str(self.threads),
            "cpu": cpu_model(),
        }
