"""The exported fp32 graph as a compiled OpenVINO model. OpenVINO is imported here and nowhere else.

The file stays as it is, because ONNX Runtime and TensorRT read it too. What OpenVINO's CPU plugin does better in
another form is rearranged after reading; the numbers stay within rounding. Each was measured (docs/LOG.md):

* the model takes one clip: with every size known the plugin plans its memory once, and a batch of 8 was slower than 8
  clips one after another. A row can then not depend on what it was encoded with;
* rotations are spelt as the plugin knows them, so that it does the turn of heads and the rotation in one pass;
* prefixes of the keys are taken before they are turned rather than after.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coldframe.errors import BundleError, MissingDependency, UsageError
from coldframe.export.geometry import Geometry
from coldframe.export.host import check_threads, cpu_model

try:
    import openvino
    from openvino import opset13
except ImportError as error:
    raise MissingDependency("openvino", "cpu") from error

DEVICE = "CPU"
HINTS = {"fp32": "f32", "bf16": "bf16"}
_TURNED = [0, 1, 3, 2]  # the graph's transpose of keys


def openvino_version() -> str:
    """Version of the library, as it names itself."""
    return str(openvino.get_version())


def compile_graph(graph: Path, geometry: Geometry, *, precision: str, threads: int | None) -> Any:
    """The graph in `graph`, compiled for one clip at a time.

    Args:
        graph: the fp32 graph file; its weights lie beside it.
        geometry: what it takes and gives.
        precision: `fp32` or `bf16`.
        threads: threads for one call; None for one a usable core.

    Raises:
        UsageError: another precision, or one that this processor has no instructions for.
        BundleError: the graph cannot be loaded, or is not of this geometry.
    """
    core = openvino.Core()
    require_precision(core, precision)
    try:
        model = core.read_model(str(graph))
        _check(model, graph, geometry)
        _, *sizes = geometry.graph_shapes["clips"]
        model.reshape({"clips": [1, *sizes]})
        _fuse_rotations(model)
        _slice_keys_by_rows(model)
        return core.compile_model(model, DEVICE, _settings(precision, check_threads(threads)))
    except RuntimeError as error:
        raise BundleError(f"{graph} cannot be loaded by OpenVINO: {error}") from error


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


def _check(model: Any, graph: Path, geometry: Geometry) -> None:
    """Refuse a graph whose inputs or outputs are not what `geometry` says."""
    wanted = {name: ["?", *sizes[1:]] for name, sizes in geometry.graph_shapes.items()}
    given = {port.get_any_name(): _sizes(port.get_partial_shape()) for port in (*model.inputs, *model.outputs)}
    if given != wanted:
        raise BundleError(f"{graph} has inputs and outputs {given}; the configuration says {wanted}.")


def _sizes(shape: Any) -> list[int | str]:
    return [size.get_length() if size.is_static else "?" for size in shape]


def _fuse_rotations(model: Any) -> None:
    """Spell `x * cos + swapped(x) * sin` as `x * cos + (-second half, first half) * sin`, with tables of rank 4.

    That is the form in which the plugin recognises rotary positions. The graph keeps the sign in its table of sines.
    """
    tables: dict[str, Any] = {}
    for total in model.get_ordered_ops():
        found = _rotation(total)
        if found is None:
            continue
        source, half, cos, sin = found
        for table, signed in ((cos, False), (sin, True)):
            name = table.get_friendly_name()
            if name not in tables:
                tables[name] = _rank_4_table(table, half if signed else 0)
        width = source.get_partial_shape()[3].get_length()
        halves = opset13.variadic_split(source, opset13.constant(3), _int64(half, width - half))
        negative = opset13.multiply(halves.output(1), opset13.constant(np.float32(-1)))
        partner = opset13.concat([negative, halves.output(0)], -1)
        along = opset13.multiply(source, tables[cos.get_friendly_name()])
        across = opset13.multiply(partner, tables[sin.get_friendly_name()])
        openvino.utils.replace_node(total, opset13.add(along, across))
    model.validate_nodes_and_infer_types()


def _rotation(total: Any) -> tuple[Any, int, Any, Any] | None:
    """What `total` rotates, dims of its first half, and the tables of cosines and sines; None if it does not rotate."""
    if total.get_type_name() != "Add":
        return None
    along, across = (port.get_node() for port in total.input_values())
    if along.get_type_name() != "Multiply" or across.get_type_name() != "Multiply":
        return None
    swapped = across.input_value(0).get_node()
    if swapped.get_type_name() != "Concat" or swapped.get_input_size() != 2:
        return None
    second, first = swapped.input_values()
    halves = second.get_node()
    source = along.input_value(0)
    if halves != first.get_node() or halves.get_type_name() != "VariadicSplit" or halves.input_value(0) != source:
        return None
    if (second.get_index(), first.get_index()) != (1, 0):
        return None
    cos, sin = along.input_value(1).get_node(), across.input_value(1).get_node()
    if cos.get_type_name() != "Constant" or sin.get_type_name() != "Constant":
        return None
    return source, int(halves.input_value(2).get_node().data[0]), cos, sin


def _rank_4_table(table: Any, negated: int) -> Any:
    """`table`, `(n, d)`, as `(1, 1, n, d)`, with the sign of its first `negated` columns turned."""
    values = np.array(table.data, dtype=np.float32)
    values[:, :negated] *= -1
    return opset13.constant(values[None, None])


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


def _int64(*values: int) -> Any:
    return opset13.constant(list(values), openvino.Type.i64)


def product_chain(
    rows: int, width: int, hidden: int, *, precision: str, products: int, threads: int | None = None
) -> Callable[[], object]:
    """What multiplying matrices costs in this runtime, with nothing between the products: the floor of an encoder.

    Args:
        rows, width, hidden: products are `(rows, width) x (width, hidden)` and back, in turns.
        precision: `fp32` or `bf16`. Values stay in it from one product to the next.
        products: how many, an even number.
        threads: threads for one run; None for one a usable core.

    Returns:
        A function that runs the chain once, `2 * rows * width * hidden * products` operations.
    """
    core = openvino.Core()
    require_precision(core, precision)
    draws = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return opset13.constant(draws.standard_normal(shape, dtype=np.float32) * np.float32(0.02))

    source = opset13.parameter([rows, width], np.float32)
    values = source
    for _ in range(products // 2):
        values = opset13.matmul(values, weights(width, hidden), False, False)
        values = opset13.matmul(values, weights(hidden, width), False, False)
    model = openvino.Model([opset13.result(values)], [source], "products")
    request = core.compile_model(model, DEVICE, _settings(precision, check_threads(threads))).create_infer_request()
    given = draws.standard_normal((rows, width), dtype=np.float32)
    return lambda: request.infer([given], share_inputs=True, share_outputs=True)
