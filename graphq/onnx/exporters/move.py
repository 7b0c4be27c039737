"""Exporters of operations that move elements, and of the operation `onnx_node`."""
from onnx import version_converter

from graphq.errors import GraphError
from graphq.ir import Node
from graphq.onnx.exporters.writer import GraphWriter, exports
from graphq.onnx.protos.fallback import parsed
from graphq.onnx.protos.tensors import array_of


@exports("static_reshape")
def static_reshape(w: GraphWriter, node: Node) -> None:
    """Write Reshape to the result's dimensions if all are known, otherwise to the attribute `shape`."""
    t = node.output.type
    w.node(node, "Reshape", w.integers(*t.dims if t.known else node.attrs["shape"]),
           allowzero=int(t.known or not node.attrs["special_zero"]))


@exports("top_k")
def top_k(w: GraphWriter, node: Node) -> None:
    """Write TopK, with k as an initializer."""
    w.node(node, "TopK", w.integers(node.attrs["k"]), axis=node.attrs["axis"], largest=int(node.attrs["largest"]))


@exports("pad")
def pad(w: GraphWriter, node: Node) -> None:
    """Write Pad, with the pads and the value as initializers."""
    (x,) = node.operands
    value = w.typed(x.dtype, node.attrs["value"]) if node.attrs["mode"] == "constant" else ""
    w.node(node, "Pad", w.integers(*node.attrs["pads_begin"], *node.attrs["pads_end"]), value, mode=node.attrs["mode"])


@exports("onnx_node")
def onnx_node(w: GraphWriter, node: Node) -> None:
    """Write the ONNX node that the operation runs, converted to the file's operator set if necessary."""
    model = parsed(node.attrs["model"].tobytes())
    opsets = {i.domain: i.version for i in model.opset_import}
    if set(opsets) - {""}:
        raise GraphError(f"operators of domain {', '.join(sorted(set(opsets) - {''}))} cannot be saved")
    if opsets[""] < w.opset:
        try:
            model = version_converter.convert_version(model, w.opset)
        except Exception as e:  # the converter's C++ exceptions have several Python classes
            raise GraphError(f"ONNX cannot convert it from version {opsets['']} to {w.opset}: {str(e)[:200]}") from None
    elif opsets[""] > w.opset:
        raise GraphError(f"version {opsets['']} of its operator set is newer than {w.opset}")
    names = {slot.name: w.name(v) for slot, v in zip(model.graph.input, node.inputs, strict=True)}
    names |= {t.name: w.constant(array_of(t, None, t.name)) for t in model.graph.initializer}
    names |= {slot.name: w.name(v) for slot, v in zip(model.graph.output, node.outputs, strict=True)}
    for inner in model.graph.node:
        for a in inner.attribute:
            if a.HasField("g") or a.graphs:
                raise GraphError("ONNX nodes with graphs as attributes cannot be saved")
        for fields in (inner.input, inner.output):
            for k, name in enumerate(fields):
                if name:
                    fields[k] = names.setdefault(name, w.claim(name) if name not in names else "")
        inner.name = w.claim(inner.name or inner.op_type)
        w.nodes.append(inner)
