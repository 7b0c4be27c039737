"""Print a graph as text and parse it back.

    graph dense(x: u8[64,768], b: f32[3072]) {
      %w = constant(value=s8[2,2]{1, 2, 3, 4}) : s8[2,2]
      %0 = dequantize(x, scales=[0.02], zps=[120]) : f32[64,768]
      %1 = relu(%0) : f32[64,768]
      return %1
    }

Attributes at their default are left out. `parse(to_text(g))` returns the same graph. Texts for people (`str(g)`,
`elide=`) shorten long arrays and lists to `...`; `parse` refuses shortened texts. Names that are not plain words are
quoted: `%"3"` is a value with the name 3, and `%3` is the fourth unnamed value. All NaNs print as `nan`.
"""
import json
from typing import Any

import numpy as np

from graphq.base.sizes import Later
from graphq.dtypes import DType, as_dtype, f64
from graphq.errors import GraphError
from graphq.ir.graph import Graph, Node, TensorType
from graphq.ir.names import quote
from graphq.ir.parse import parse

__all__ = ["SHORT", "parse", "to_text"]

SHORT = 6
"""The most elements of a list or array in texts for people."""


def to_text(graph: Graph, *, elide: int | None = None, indent: str = "") -> str:
    """The graph as text. Lists and arrays of more than `elide` elements are shortened (None: never)."""
    if not isinstance(graph, Graph):
        raise GraphError(f"to_text takes a Graph, got {graph!r}")
    if elide is None and graph.labels.kept:
        graph = graph.copy()  # a copy numbers unnamed values from 0, as `parse` does
    params = ", ".join(f"{graph.label(v)}: {v.type}" + (f" {v.property}" if v.property != "undef" else "")
                       for v in graph.inputs)
    title = "graph" if graph.name == "graph" else f"graph {quote(graph.name)}"
    lines = [f"{title}({params}) {{"]
    lines += [f"{indent}  {_node(n, elide, indent + '  ')}" for n in graph.nodes]
    returns = []
    for k, (v, name) in enumerate(zip(graph.outputs, graph.output_names, strict=True)):
        goes_without_saying = v.name or f"out{k}"
        returns.append(graph.label(v) + (f" as {quote(name)}" if name != goes_without_saying else ""))
    lines.append(f"{indent}  return {', '.join(returns)}".rstrip())
    return "\n".join([*lines, indent + "}"])


def _node(node: Node, elide: int | None, indent: str) -> str:
    label = node.graph.label
    args = ["none" if v is None else label(v) for v in node.inputs]
    args += [f"{key}={value}" for key, value in attributes(node, elide=elide, indent=indent).items()]
    types = ", ".join(str(o.type) for o in node.outputs)
    lhs = ", ".join(label(o) for o in node.outputs)
    call = f"{node.op.name}({', '.join(args)})"
    return f"{lhs} = {call} : {types}" if lhs else call


def attributes(node: Node, *, elide: int | None = None, indent: str = "") -> dict[str, str]:
    """The texts of the node's attributes, by name, without attributes at their default."""
    found = {}
    for key, a in node.op.attributes.items():
        value = _attribute(node.attrs[key], elide, indent)
        if a.required or value != _attribute(a.default, elide, indent):
            found[key] = value
    return found


def _attribute(value: Any, elide: int | None, indent: str) -> str:
    if isinstance(value, Later):
        return "?"
    if isinstance(value, Graph):
        return to_text(value, elide=elide, indent=indent)
    if isinstance(value, np.ndarray):
        dtype = as_dtype(value.dtype)
        return f"{TensorType(dtype, value.shape)}{{{_cut(_elements(value, dtype, elide), value.size, elide)}}}"
    if isinstance(value, tuple):
        items = value if elide is None else value[:elide]
        return f"[{_cut([_attribute(v, elide, indent) for v in items], len(value), elide)}]"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, DType):
        return value.name
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return repr(value)


def _elements(array: np.ndarray, dtype: DType, elide: int | None) -> list[str]:
    flat = array.ravel()[:elide]
    if dtype.kind != "float":
        return [str(int(x)) for x in flat]
    # The shortest text that parses to the same f64, or to the same f32 for f32 and narrower floats.
    with np.errstate(invalid="ignore"):  # on some CPUs, NumPy warns of signaling NaNs
        return [str(x) for x in (flat if dtype == f64 else flat.astype(np.float32))]


def _cut(items: list[str], size: int, elide: int | None) -> str:
    return ", ".join(items) if elide is None or size <= elide else ", ".join([*items, f"... {size - elide} more"])
