"""Runtimes `tensorrt` and `tensorrt_rtx`: a plan from the bundle, run on the GPU."""

from typing import Any

import torch

from coldframe.errors import BundleError
from coldframe.export.bundle_files import Bundle
from coldframe.export.cuda import new_stream, require_gpu
from coldframe.export.engine import Engine, Flavour, engine_spec, find_engine, rebuild
from coldframe.export.geometry import Geometry, HasGeometry, as_geometry
from coldframe.export.gpu_runtime import GpuRuntime, Outputs
from coldframe.export.tensorrt_library import load_library, make_log


class TensorRTEncode:
    """Runs one batch through a plan; outputs are allocated at the size of the real batch.

    Args:
        library: TensorRT, of the flavour that built the plan.
        engine: where the plan came from, for messages.
        plan: its bytes.
        geometry: what it takes and gives.

    Raises:
        BundleError: the library does not take the plan.
    """

    def __init__(self, library: Any, engine: Engine, plan: bytes, geometry: Geometry | HasGeometry) -> None:
        self._name = engine.path.name
        self._geometry = as_geometry(geometry)
        self._log = make_log(library)
        self._runtime = library.Runtime(self._log)  # engine and context need it alive
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise BundleError(
                f"{engine.spec.flavour} {engine.spec.version} does not take {engine.path}: {self._told()}. "
                f"Remove it and build it again: {rebuild(engine.path.parents[1], engine.spec)}"
            )
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise BundleError(f"{engine.path} got no execution context ({self._told()}). Is the GPU's memory full?")

    def __call__(self, clips: torch.Tensor, stream: Any) -> Outputs:
        count = len(clips)
        assert clips.is_contiguous()
        assert clips.dtype == torch.uint8
        outputs = {
            name: clips.new_empty(shape, dtype=torch.float32)
            for name, shape in self._geometry.output_shapes(count).items()
        }
        self._require(self._context.set_input_shape("clips", tuple(clips.shape)), f"refuses {count} clips")
        for name, tensor in {"clips": clips, **outputs}.items():
            found = tuple(self._context.get_tensor_shape(name))
            self._require(found == tuple(tensor.shape), f"has {name} {found}, wanted is {tuple(tensor.shape)}")
            self._require(self._context.set_tensor_address(name, tensor.data_ptr()), f"refuses the memory of {name}")
        self._require(self._context.execute_async_v3(stream.cuda_stream), "cannot be run")
        return outputs

    def _require(self, done: bool, what: str) -> None:
        if not done:
            raise BundleError(f"engine {self._name} {what}: {self._told()}")

    def _told(self) -> str:
        return "; ".join(self._log.messages) or "no reason given"


def admit_engine(bundle: Bundle, flavour: Flavour, precision: str) -> Engine:
    """The engine of `bundle` that may run on the GPU here; nothing large is read.

    Raises:
        MissingDependency: the library is not installed.
        UsageError: there is no GPU, no graph of that precision, or no engine.
        BundleError: every engine there was built for something else; the message says for what and what to do.
    """
    library = load_library(flavour)
    gpu = require_gpu(f"backend {flavour!r}")
    wanted = engine_spec(
        bundle,
        flavour=flavour,
        version=library.__version__,
        precision=precision,
        compute_capability=gpu.compute_capability,
        gpu=gpu.name,
        driver=gpu.driver,
    )
    return find_engine(bundle, wanted)


def open_tensorrt(bundle: Bundle, flavour: Flavour, precision: str) -> GpuRuntime:
    """Load the engine that `admit_engine` finds; raises what it raises, and BundleError for a damaged plan."""
    engine = admit_engine(bundle, flavour, precision)
    library = load_library(flavour)
    return GpuRuntime(
        TensorRTEncode(library, engine, engine.read_plan(), bundle.geometry),
        bundle.geometry,
        backend=flavour,
        precision=precision,
        max_batch=engine.spec.profile.largest,
        stream=new_stream(),
        gpu=require_gpu(f"backend {flavour!r}"),
        version=f"{flavour} {library.__version__}, engine {engine.spec.key[:16]}",
    )
