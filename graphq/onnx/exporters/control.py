"""Exporters of if_else, loop and scan. A body becomes an ONNX graph that reads values of the outer graph by name."""
from collections.abc import Sequence

from onnx import GraphProto, helper

from graphq.ir import Graph, Node, Value
from graphq.onnx.exporters.writer import GraphWriter, exports, names_of
from graphq.onnx.protos.tensors import value_info


@exports("if_else")
def if_else(w: GraphWriter, node: Node) -> None:
    """Write If."""
    cond, *srcs = (w.name(v) for v in node.inputs)
    w.add("If", [cond], [w.name(v) for v in node.outputs], then_branch=_body(w, node.attrs["then_body"], srcs),
          else_branch=_body(w, node.attrs["else_body"], srcs))


@exports("loop")
def loop(w: GraphWriter, node: Node) -> None:
    """Write Loop."""
    names, count = [w.name(v) for v in node.inputs], 2 + node.attrs["states"]
    w.add("Loop", names[:count], [w.name(v) for v in node.outputs], body=_body(w, node.attrs["body"], names[count:]))


@exports("scan")
def scan(w: GraphWriter, node: Node) -> None:
    """Write Scan."""
    a = node.attrs
    names, count = [w.name(v) for v in node.inputs], a["states"] + a["scanned"]
    lists = {"scan_input_axes": a["input_axes"], "scan_input_directions": a["reverse_inputs"],
             "scan_output_axes": a["output_axes"], "scan_output_directions": a["reverse_outputs"]}
    w.add("Scan", names[:count], [w.name(v) for v in node.outputs], body=_body(w, a["body"], names[count:]),
          num_scan_inputs=a["scanned"],
          **{name: list(map(int, x)) for name, x in lists.items() if x})  # ONNX has no empty lists


def _body(w: GraphWriter, body: Graph, captured: Sequence[str]) -> GraphProto:
    """Write the body as an ONNX graph. Its last inputs are values of the outer graph, named in `captured`."""
    inner = GraphWriter(w.opset, w.functions)
    inner.taken = w.taken  # one set, because names must be unique in the whole model
    inner.of_values = w.of_values | names_of(body)
    count = len(body.inputs) - len(captured)
    own, outer = body.inputs[:count], body.inputs[count:]
    inner.names.update(zip(outer, captured, strict=True))
    for v in own:
        inner.name(v)
    for n in body.nodes:
        inner.write(n)
    made: dict[str, Value] = {}
    for v in body.outputs:
        name = inner.name(v)
        made[inner.add("Identity", [name]) if v.node is None or v.data is not None or name in made else name] = v
    inner.prune(made)
    return helper.make_graph(inner.nodes, body.name, [value_info(inner.name(v), v.type) for v in own],
                             [value_info(name, v.type) for name, v in made.items()], inner.initializers)
