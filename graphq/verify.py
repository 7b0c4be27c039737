"""Check that a graph is consistent: order, uses, names, and types inferred again. Runs after every pass under pytest."""
from __future__ import annotations

from collections import Counter

from graphq.errors import GraphqError, VerifyError
from graphq.ir import Graph, TensorType, Use, Value


def verify(graph: Graph) -> None:
    """Raise VerifyError, naming node and rule, unless the graph is consistent."""
    known: set[Value] = set(graph.inputs)
    wanted: dict[Value, Counter[Use]] = {v: Counter() for v in graph.inputs}
    for node in graph.nodes:
        where = graph.describe(node)
        for k, v in enumerate(node.inputs):
            if v is None:
                continue
            if v not in known:
                raise VerifyError(f"{where}: operand {k} is used before its definition, or removed: a cycle or bad order")
            wanted[v][Use(node, k)] += 1
        for k, out in enumerate(node.outputs):
            if out.node is not node or out.index != k or out.graph is not graph:
                raise VerifyError(f"{where}: output {k} does not point back to its node")
            known.add(out)
            wanted[out] = Counter()
        _same_types(graph, node, where)
    for k, v in enumerate(graph.outputs):
        if v not in known:
            raise VerifyError(f"output '{graph.output_names[k]}' is not a value of the graph")
        wanted[v][Use(None, k)] += 1
    for v, uses in wanted.items():
        if Counter(v.uses) != uses:
            raise VerifyError(f"{graph.label(v)}: recorded uses differ from the operands of nodes and the outputs")
    _names(graph, known)


def _same_types(graph: Graph, node, where: str) -> None:  # type: ignore[no-untyped-def]
    try:
        types = node.op.infer(*(None if v is None else v.type for v in node.inputs), **node.attrs)
    except GraphqError as e:
        raise VerifyError(f"{where}: {e}") from None
    types = (types,) if isinstance(types, TensorType) else types
    if tuple(types) != tuple(o.type for o in node.outputs):
        raise VerifyError(f"{where}: inferred types are {', '.join(map(str, types))}")
    for name, value in node.attrs.items():
        if isinstance(value, Graph):
            try:
                verify(value)
            except VerifyError as e:
                raise VerifyError(f"{where}: in '{name}': {e}") from None


def _names(graph: Graph, values: set[Value]) -> None:
    names = Counter(v.name for v in values if v.name is not None)
    for name, count in names.items():
        if count > 1:
            raise VerifyError(f"the name '{name}' is given to {count} values")
    if len(set(graph.output_names)) != len(graph.outputs):
        raise VerifyError(f"output names {graph.output_names} do not fit {len(graph.outputs)} outputs")
