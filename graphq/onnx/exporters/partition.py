"""The exporter of partitions: each is a local function of the model, whose nodes are the partition's operations."""
from __future__ import annotations

from onnx import helper

from graphq.ir import Graph, Node
from graphq.onnx.exporters.writer import OPSET, Writer, exports
from graphq.onnx.protos.types import value_info

DOMAIN = "graphq.partition"
"""The domain of the functions; the name of a function is its partition's anchor and a number."""


@exports("partition")
def partition(w: Writer, node: Node) -> None:
    """Write a function and a call of it; constants are operands of the call and stay initializers of the model."""
    body: Graph = node.attrs["body"]
    name = f"{node.attrs['anchor']}_{len(w.functions)}"
    inner = Writer(w.functions)
    inputs = [inner.claim(str(v.name)) for v in body.inputs]
    inner.names.update(zip(body.inputs, inputs, strict=True))
    for n in body.nodes:
        inner.write(n)
    outputs: list[str] = []
    for v in body.outputs:
        given = inner.name(v)
        outputs.append(inner.add("Identity", [given]) if given in (*inputs, *outputs) else given)
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in inner.initializers]
    types = [value_info(n, v.type) for n, v in zip([*inputs, *outputs], [*body.inputs, *body.outputs], strict=True)]
    w.functions.append(helper.make_function(
        DOMAIN, name, inputs, outputs, [*constants, *inner.nodes], [helper.make_opsetid("", OPSET)],
        doc_string=", ".join(n.op.name for n in body.nodes), value_info=types))
    w.node(node, name, domain=DOMAIN)
