"""Runtime `onnxruntime`: the exported graph on the CPU, or on a GPU through its CUDA provider."""

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
# What a device runs on. TF32, the CUDA provider's default, would make float32 products of 10 bits.
_PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "cpu": (PROVIDER, {}),
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}
# Its CPU provider has no bfloat16 matrix product; float16 it computes in float32 between casts.
PRECISIONS = ("fp32", "fp16")


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
        config: shape of the encoder in it.
        precision: arithmetic of the graph, one of `PRECISIONS`.
        threads: threads for one call; None for one a usable core.
        device: `cpu` or `cuda`.

    Raises:
        UsageError: the device's provider is not there, or it does not compute the precision.
        BundleError: the graph cannot be loaded, is not of the shape of `config`, or runs on another provider.
    """

    backend = "onnxruntime"

    def __init__(
        self,
        graph: Path,
        config: LeVJEPAConfig,
        *,
        precision: str = "fp32",
        threads: int | None = None,
        device: str = "cpu",
    ) -> None:
        require_provider(device)
        self._provider, provider_options = _PROVIDERS[device]
        if device == "cpu" and precision not in PRECISIONS:
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
            self._session = onnxruntime.InferenceSession(
                str(graph), options, providers=[(self._provider, provider_options)]
            )
        except Exception as error:  # the library's own error types are not public
            raise BundleError(f"{graph} cannot be loaded by ONNX Runtime: {error}") from error
        self._check(graph)

    def _check(self, graph: Path) -> None:
        used = self._session.get_providers()
        # A session always ends with the CPU provider, for what decides shapes; the one asked for must come first.
        if used != list(dict.fromkeys((self._provider, PROVIDER))):
            raise BundleError(f"ONNX Runtime would run {graph} on {used}; asked was {self._provider}.")
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
