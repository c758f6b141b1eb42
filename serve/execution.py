"""Execution: how a run is carried out. None of it changes a number beyond the precision tier's measured parity."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from coldframe.errors import UsageError
from coldframe.export import Bundle
from coldframe.serve.gpu_runtime import GpuBackend
from coldframe.serve.guard import FailureLimits
from coldframe.serve.ray_workers import require_ray
from coldframe.serve.readers import DecoderName, open_reader
from coldframe.serve.runtime import Backend, require_variant
from coldframe.store.recipe import Recipe

Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What is to do the work, and when it is to give up.

    Attributes:
        backend: runtime (`export.variants`).
        device: `cpu` or `cuda`; None for the backend's own.
        workers: processes; the processor's cores are shared out among them (`share_cores`).
        batch_clips: clips encoded together.
        decoder: `pyav`, `dali` or `dali-cpu` (`open_reader`).
        decoders: decode processes a worker; None for a number that suits the device.
        engine: `local`, or `ray`, whose workers are actors anywhere in a cluster.
        limits: failures after which the run stops.
    """

    backend: Backend | GpuBackend = "onnxruntime"
    device: str | None = None
    workers: int = 1
    batch_clips: int = 4
    decoder: DecoderName = "pyav"
    decoders: int | None = None
    engine: Engine = "local"
    limits: FailureLimits = field(default_factory=FailureLimits)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Execution":
        """From the values of `run_options.BACKEND_OPTIONS` and `run_options`, and `engine` if there is one."""
        names = ("backend", "device", "workers", "batch_clips", "decoder", "decoders", "engine")
        limits = FailureLimits(videos=options["max_failures"], in_a_row=options["max_failures_in_a_row"])
        return cls(**{name: options[name] for name in names if name in options}, limits=limits)

    def require_possible(self, bundle: Bundle, recipe: Recipe) -> None:
        """Refuse what is not there, or does not go together, before anything is planned, written or given up.

        Raises:
            UsageError: options that exclude each other, or a device that this machine lacks.
            MissingDependency: the decoder, the runtime or Ray is not installed.
        """
        if self.decoder != "pyav" and (self.decoders or 1) > 1:
            raise UsageError(
                f"decoders is {self.decoders}, but {self.decoder} reads many videos at once. Use 1, or --decoder pyav."
            )
        if self.engine == "ray":
            require_ray()
        open_reader(self.decoder, image_size=recipe.image_size, threads=1).close()
        require_variant(bundle, self.backend, recipe.precision, self.device)
