"""Turn graphs of f16 and bf16 into f32 between inputs and outputs, to quantize their layers."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import bf16, f16, f32
from graphq.ir import Graph, Node, Value

HALVES = (f16, bf16)
"""The dtypes that `in_f32` widens."""
PAST = 5, 6
"""The operands of cached_attention that are caches."""


def in_f32(graph: Graph) -> Graph:
    """Copy a graph with f32 instead of f16 and bf16; inputs and outputs keep their types.

    Constants keep their numbers. Results are more exact, because values between operations are not rounded to 16 bits.
    Operands, results and bodies of ONNX's If, Loop and Scan keep their types, and so do caches of attention.
    """
    if not any(v.dtype in HALVES for n in graph.nodes for v in n.outputs):
        return graph.copy()
    out, new, casts = Graph(graph.name), dict[Value, Value](), dict[Value, Value]()
    out.meta = graph.meta
    for v in graph.inputs:
        new[v] = out.input(str(v.name), dtype=v.dtype, shape=v.shape, property=v.property)

    def wide(v: Value) -> Value:
        """The value in f32 if it is f16 or bf16, otherwise the value itself."""
        x = new[v]
        if x.dtype not in HALVES:
            return x
        if x not in casts:
            casts[x] = out.type_cast(x, dtype="f32")
        return casts[x]

    def narrow(v: Value) -> Value:
        return new[v] if new[v].dtype == v.dtype else out.type_cast(new[v], dtype=v.dtype)

    for node in graph.nodes:
        if node.op.name == "type_cast":
            new[node.output] = wide(next(node.operands))
            continue
        outs = _widened(out, node, [None if v is None else narrow(v) if _kept(node, k) else wide(v)
                                    for k, v in enumerate(node.inputs)])
        out.nodes[-1].meta = node.meta
        for old, value in zip(node.outputs, outs, strict=True):
            new[old] = value
            if old.name is not None:
                out.rename(value, old.name)
    out.set_outputs([narrow(v) for v in graph.outputs], graph.output_names)
    return out


def _kept(node: Node, k: int) -> bool:
    """Whether operand k must keep its type: inputs of bodies, and caches of attention."""
    return any(isinstance(x, Graph) for x in node.attrs.values()) or node.op.name == "cached_attention" and k in PAST


def _widened(out: Graph, node: Node, operands: list[Value | None]) -> tuple[Value, ...]:
    """Add the node to `out` with operands in f32. Results that the node would round to 16 bits are f32 instead."""
    value = node.attrs.get("value")
    if node.op.name == "constant" and node.output.dtype in HALVES:
        return (out.constant(np.asarray(value).astype(f32.numpy)),)
    if node.attrs.get("mode") == "stepwise":
        return out.add_node(node.op, operands, {**node.attrs, "mode": "none"})
    if node.attrs.get("dtype") in HALVES:
        wide = {"dtype": f32} if node.op.attributes["dtype"].required else {}  # otherwise f32 operands make it f32
        return out.add_node(node.op, operands, {**{k: x for k, x in node.attrs.items() if k != "dtype"}, **wide})
    return out.add_again(node, operands)
