"""Runtime `openvino`: the exported fp32 graph on the CPU, computed in float32 or in bfloat16.

bfloat16 is a hint at compile time: OpenVINO then multiplies matrices in bfloat16 and sums them in float32. The
typed bf16 graph gives the same accuracy and took 1.3 times as long (docs/LOG.md), so both precisions read the fp32
graph. A processor without bfloat16 instructions would be given float32 without a word: it is refused here.

Compiled models are not cached on disk. Reading one back saves a quarter of the time that compiling takes, which is
seconds for the large encoder, and a cache that is not there cannot give another encoder's tokens.
"""

import threading
from pathlib import Path

import numpy as np

from coldframe.export.geometry import Geometry, HasGeometry, as_geometry
from coldframe.export.host import cpu_model
from coldframe.export.openvino_model import DEVICE, compile_graph, openvino_version
from coldframe.export.pixels import Clips, check_clips
from coldframe.export.tokens import Tokens


class OpenVinoRuntime:
    """uint8 clips in, tokens out, through OpenVINO, one clip after another. Threads may share it: each gets its own
    infer request.

    Args:
        graph: the fp32 graph file; its weights lie beside it.
        geometry: what it takes and gives.
        precision: `fp32` or `bf16`.
        threads: threads for one call; None for one a usable core.

    Raises:
        UsageError: another precision, or one that this processor has no instructions for.
        BundleError: the graph cannot be loaded, or is not of this geometry.
    """

    backend = "openvino"

    def __init__(
        self,
        graph: Path,
        geometry: Geometry | HasGeometry,
        *,
        precision: str = "fp32",
        threads: int | None = None,
    ) -> None:
        self.precision = precision
        self._geometry = as_geometry(geometry)
        self._compiled = compile_graph(graph, self._geometry, precision=precision, threads=threads)
        self.threads = int(self._compiled.get_property("INFERENCE_NUM_THREADS"))
        self._local = threading.local()

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)`. Every call gives fresh arrays."""
        checked = check_clips(clips, self._geometry)
        if not hasattr(self._local, "request"):
            self._local.request = self._compiled.create_infer_request()
        shapes = {name: self._compiled.output(name).get_shape()[1:] for name in self._geometry.outputs}
        outputs = {name: np.empty((len(checked), *shape), np.float32) for name, shape in shapes.items()}
        for index in range(len(checked)):
            one = {"clips": checked[index : index + 1]}
            given = self._local.request.infer(one, share_inputs=True, share_outputs=True)
            for name, rows in outputs.items():
                rows[index] = given[name][0]  # a copy: the request's memory is overwritten by its next clip
        return Tokens.from_outputs(outputs)

    def provenance(self) -> dict[str, str]:
        """What computes, for the record of a run."""
        return {
            "runtime": f"openvino {openvino_version()}",
            "provider": f"{DEVICE}, {self._compiled.get_property('INFERENCE_PRECISION_HINT').get_type_name()}",
            "threads": str(self.threads),
            "cpu": cpu_model(),
        }
