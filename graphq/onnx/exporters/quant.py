"""Exporters of the operations that quantize and dequantize."""
import numpy as np

from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir import Node
from graphq.onnx.exporters.writer import GraphWriter, exports
from graphq.onnx.protos.tensors import element_of


@exports("quantize", "dequantize")
def static(w: GraphWriter, node: Node) -> None:
    """Write the operator; scales and zero points become initializers: scalars, or vectors along the axis."""
    a = node.attrs
    if a.get("group_axis") is not None:
        raise GraphError("ONNX cannot express scales of groups along two axes")
    per_tensor = a["qtype"] == "per_tensor"
    scales = np.asarray(a["scales"], np.float32)
    dtype: DType = a["dtype"] if node.op.name == "quantize" else next(node.operands).dtype
    inputs = [w.constant(scales.reshape(()) if per_tensor else scales)]
    zps = a["zps"] if a["zps"] is not None else (0,) * len(scales) if node.op.name == "quantize" else None
    if zps is not None:
        points = np.asarray(zps).astype(dtype.numpy)
        inputs.append(w.constant(points.reshape(()) if per_tensor else points))
    w.node(node, "QuantizeLinear" if node.op.name == "quantize" else "DequantizeLinear", *inputs,
           **({} if per_tensor else {"axis": a["axis"]}))


@exports("dynamic_quantize", "dynamic_dequantize")
def dynamic(w: GraphWriter, node: Node) -> None:
    """Write the operator with scales and zero points as operands; zero points must have the quantized dtype."""
    a = node.attrs
    quantize = node.op.name == "dynamic_quantize"
    src, scale, rest = node.operand(0), node.operand(1), node.inputs[2:]
    dtype = a["dtype"] if quantize else src.dtype
    if rest and rest[0] is not None and rest[0].dtype != dtype:
        raise GraphError(f"a zero point must be {dtype} in ONNX, got {rest[0].type}")
    attrs = {} if a["qtype"] == "per_tensor" else {"axis": a["axis"]}
    if quantize:
        w.node(node, "QuantizeLinear", **attrs, **({} if rest else {"output_dtype": element_of(dtype)}))
        return
    attrs |= _output_dtype(node.output.dtype, scale.dtype)
    if a["qtype"] == "per_group":
        blocked = [(k, size) for k, size in enumerate(a["group_shape"]) if size > 1]
        if len(blocked) != 1:
            raise GraphError(f"ONNX needs blocks along one axis, got group_shape {list(a['group_shape'])}")
        attrs |= dict(zip(("axis", "block_size"), blocked[0], strict=True))
    w.node(node, "DequantizeLinear", **attrs)


@exports("quantize_linear", "dequantize_linear")
def linear(w: GraphWriter, node: Node) -> None:
    """Write the operator with the same attributes."""
    a = node.attrs
    src, scale, rest = node.operand(0), node.operand(1), node.inputs[2:]
    attrs = {"axis": a["axis"], "block_size": a["block_size"]}
    if node.op.name == "dequantize_linear":
        w.node(node, "DequantizeLinear", **attrs, **_output_dtype(a["dtype"], scale.dtype))
        return
    if a["precision"] != src.dtype:
        attrs["precision"] = element_of(a["precision"])
    w.node(node, "QuantizeLinear", saturate=int(a["saturate"]), **attrs,
           **({} if rest else {"output_dtype": element_of(a["dtype"])}))


def _output_dtype(dtype: DType, scale: DType) -> dict[str, int]:
    """The attribute for a result that has another dtype than the scale."""
    return {} if dtype == scale else {"output_dtype": element_of(dtype)}
