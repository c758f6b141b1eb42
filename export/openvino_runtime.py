"""Runtime `openvino`: the exported fp32 graph on the CPU, computed in float32 or in bfloat16.

bfloat16 is a hint at compile time: OpenVINO then multiplies matrices in bfloat16 and sums them in float32. The
typed bf16 graph gives the same accuracy and took 1.3 times as long (docs/LOG.md), so both precisions read the fp32
graph. A processor without bfloat16 instructions would be given float32 without a word: it is refused here.

Compiled models are not cached on disk. Reading one back saves a quarter of the time that compiling takes, which is
seconds for the large encoder, and a cache that is not there cannot give another encoder's tokens.
"""

import threading
from pathlib import Path
from typing import Any

from coldframe.errors import BundleError, MissingDependency, UsageError
from coldframe.export.config import LeVJEPAConfig
from coldframe.export.host import check_threads, cpu_model
from coldframe.export.pixels import Clips, check_clips
from coldframe.export.tokens import Tokens

try:
    import openvino
    from openvino import opset13
except ImportError as error:
    raise MissingDependency("openvino", "cpu") from error

DEVICE = "CPU"
HINTS = {"fp32": "f32", "bf16": "bf16"}
_TURNED = [0, 1, 3, 2]  # the graph's transpose of keys


class OpenVinoRuntime:
    """uint8 clips in, tokens out, through OpenVINO. Threads may share it: each gets its own infer request.

    Args:
        graph: the fp32 graph file; its weights lie beside it.
        config: shape of the encoder in it.
        precision: `fp32` or `bf16`.
        threads: threads for one call; None for one a usable core.

    Raises:
        UsageError: another precision, or one that this processor has no instructions for.
        BundleError: the graph cannot be loaded, or is not of the shape of `config`.
    """

    backend = "openvino"

    def __init__(
        self, graph: Path, config: LeVJEPAConfig, *, precision: str = "fp32", threads: int | None = None
    ) -> None:
        self.precision = precision
        self._config = config
        core = openvino.Core()
        require_precision(core, precision)
        try:
            model = core.read_model(str(graph))
            _check(model, graph, config)
            _slice_keys_by_rows(model)
            self._compiled = core.compile_model(model, DEVICE, _settings(precision, check_threads(threads)))
        except RuntimeError as error:
            raise BundleError(f"{graph} cannot be loaded by OpenVINO: {error}") from error
        self.threads = int(self._compiled.get_property("INFERENCE_NUM_THREADS"))
        self._local = threading.local()

    def __call__(self, clips: Clips) -> Tokens:
        """Encode `clips`, uint8 `(B, T, H, W, 3)`. Every call gives fresh arrays."""
        checked = check_clips(clips, self._config)
        if not hasattr(self._local, "request"):
            self._local.request = self._compiled.create_infer_request()
        given = self._local.request.infer({"clips": checked}, share_inputs=True, share_outputs=False)
        return Tokens(cls=given["cls"], patch=given["patch"])

    def provenance(self) -> dict[str, str]:
        """What computes, for the record of a run."""
        return {
            "runtime": f"openvino {openvino.get_version()}",
            "provider": f"{DEVICE}, {self._compiled.get_property('INFERENCE_PRECISION_HINT').get_type_name()}",
            "threads": str(self.threads),
            "cpu": cpu_model(),
        }


def require_precision(core: Any, precision: str) -> None:
    """Refuse a precision that OpenVINO would not compute on this processor."""
    if precision not in HINTS:
        raise UsageError(f"openvino computes in {' or '.join(HINTS)}, not in {precision}.")
    able = core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
    if precision == "bf16" and "BF16" not in able:
        raise UsageError(
            f"{cpu_model()} has no bfloat16 instructions (OpenVINO lists {', '.join(able)}), so openvino would compute "
            "in float32. Use --precision fp32, or a processor with AVX-512 BF16 or AMX."
        )


def _settings(precision: str, threads: int) -> dict[str, Any]:
    return {
        "INFERENCE_PRECISION_HINT": HINTS[precision],
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        # Workers share the machine: pinned threads of two processes would sit on the same cores.
        "ENABLE_CPU_PINNING": False,
    }


def _check(model: Any, graph: Path, config: LeVJEPAConfig) -> None:
    """Refuse a graph whose inputs or outputs are not what `config` says."""
    side, grid, dim, frames = config.img_size, config.grid, config.embed_dim, config.num_frames
    wanted = {
        "clips": ["?", frames, side, side, 3],
        "cls": ["?", dim],
        "patch": ["?", frames, grid, grid, dim],
    }
    given = {port.get_any_name(): _sizes(port.get_partial_shape()) for port in (*model.inputs, *model.outputs)}
    if given != wanted:
        raise BundleError(f"{graph} has inputs and outputs {given}; the configuration says {wanted}.")


def _sizes(shape: Any) -> list[int | str]:
    return [size.get_length() if size.is_static else "?" for size in shape]


def _slice_keys_by_rows(model: Any) -> None:
    """Take prefixes of the keys before they are turned rather than after.

    The graph turns all keys of a block once, because ONNX Runtime copies at every turn. OpenVINO multiplies by a
    turned matrix without a copy, and cuts rows faster than columns: 4 to 16 % of a clip's time.
    """
    for product in model.get_ordered_ops():
        if product.get_type_name() != "MatMul":
            continue
        prefix = product.input_value(1).get_node()
        if prefix.get_type_name() != "Slice":
            continue
        turned = prefix.input_value(0).get_node()
        if turned.get_type_name() != "Transpose" or turned.input_value(1).get_node().data.tolist() != _TURNED:
            continue
        start, stop = prefix.input_value(1), prefix.input_value(2)
        rows = opset13.slice(turned.input_value(0), start, stop, _int64(1), _int64(2))
        openvino.utils.replace_node(product, opset13.matmul(product.input_value(0), rows, False, True))
    model.validate_nodes_and_infer_types()


def _int64(value: int) -> Any:
    return opset13.constant([value], openvino.Type.i64)
