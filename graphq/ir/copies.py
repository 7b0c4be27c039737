"""Copy graphs: with other input types (`specialized`), with other outputs, and in a flat form for pickle."""
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphq.base.sizes import Later
from graphq.dtypes import f64
from graphq.errors import GraphError
from graphq.ir.graph import Graph
from graphq.ir.interpret import add_known, check_order, computed, known
from graphq.ir.names import FILE_NAMES, suggestion
from graphq.ir.node import Node, Property, Value
from graphq.ir.op import Op
from graphq.ir.tensor_type import TensorType

FlatInput: TypeAlias = tuple[str, TensorType, Property]
FlatNode: TypeAlias = tuple[Op, list[int | None], dict[str, Any], list[str | None], Mapping[str, Any]]


def specialized(graph: Graph, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray],
                values: Mapping[str, np.ndarray | Later] | None = None) -> Graph:
    """A copy of a graph with other types of inputs, or with constants instead of inputs (`Graph.specialize`).

    `values` maps names of inputs to arrays. These inputs stay in the list of inputs, but operations read the arrays
    instead. An array may be a `Later`, which is computed from open sizes at run time.
    """
    for given in (types, constants):
        if not isinstance(given, Mapping):
            raise GraphError(f"specialize: expected a mapping by the names of inputs, got {given!r}")
    for name, t in types.items():
        if not isinstance(t, TensorType):
            raise GraphError(f"specialize: the type of input '{name}' must be a TensorType, got {t!r}")
    unknown = [n for n in (*types, *constants) if n not in [v.name for v in graph.inputs]]
    if unknown:
        raise GraphError(f"specialize: graph '{graph.name}' has no input {unknown[0]!r}")
    out = Graph(graph.name)
    new: dict[Value, Value] = {}
    for v in graph.inputs:
        assert v.name is not None
        if v.name in constants:
            new[v] = out.constant(constants[v.name], dtype=f64 if v.dtype == f64 else None, name=v.name)
            if new[v].dtype != v.dtype:
                raise GraphError(f"specialize: input '{v.name}' is {v.type}, its constant {new[v].type}")
            continue
        t = types.get(v.name, v.type)
        new[v] = out.input(v.name, dtype=t.dtype, shape=t.shape, property=v.property)
        if values and v.name in values:
            new[v] = add_known(out, values[v.name])
    changed = bool(types or constants or values)
    for node in graph.nodes:
        operands = [None if v is None else new[v] for v in node.inputs]
        outs = changed and _resolved(out, node, operands) or add_copy(out, node, operands)
        new.update(zip(node.outputs, outs, strict=True))
    out.set_outputs([new[v] for v in graph.outputs], graph.output_names)
    out.meta = graph.meta
    return out


def check_names(names: Any, where: str) -> tuple[str, ...]:
    """Check that `names` is a list of different strings, and return it as a tuple. Raises GraphError otherwise."""
    strings = isinstance(names, Sequence) and not isinstance(names, str) and all(isinstance(n, str) for n in names)
    if not strings or len(set(names)) < len(names):
        raise GraphError(f"{where} must be a list of different names of values, got {names!r}")
    return tuple(names)


def returning(graph: Graph, names: Sequence[str]) -> Graph:
    """A pruned copy that returns the named values. Raises GraphError, with similar names, for an unknown name."""
    out = graph.copy()
    named = {v.name: v for v in out.values if v.name is not None}
    named |= {old: named[new] for old, new in graph.meta.get(FILE_NAMES, {}).items() if new in named}
    named |= dict(zip(out.output_names, out.outputs, strict=True))
    for name in names:
        if name not in named:
            raise GraphError(f"graph '{graph.name}' has no value named '{name}'"
                             + (suggestion(name, named)
                                or f"; to give it that name, write name='{name}' where it is made"))
    out.set_outputs([named[n] for n in names], names)
    out.prune()
    return out


def _resolved(graph: Graph, node: Node, operands: Sequence[Value | None]) -> tuple[Value, ...] | None:
    """Replace the node by constants or simpler operations (`Op.resolve`). Returns their values; None if impossible."""
    outs = None
    if node.op.resolve is not None:
        outs = node.op.resolve(graph, operands, node.attrs)
    elif any(v.data is None for v in node.operands) and all(v is None or known(v) is not None for v in operands):
        types = node.op.types([None if v is None else v.type for v in operands], node.attrs)
        results = computed(node.op, operands, node.attrs, types)
        outs = None if results is None else tuple(add_known(graph, x) for x in results)
    if outs is None:
        return None
    for value, old in zip(outs, node.outputs, strict=True):
        if old.name is not None and value.node is not None and value.name is None and not graph.has_name(old.name):
            graph.rename(value, old.name)
    return outs


def flat(graph: Graph) -> tuple[Any, ...]:
    """Flatten a graph into the arguments of `rebuilt`. Raises VerifyError if nodes are out of order."""
    check_order(graph)
    numbers = {v: k for k, v in enumerate(graph.values)}
    inputs: list[FlatInput] = [(str(v.name), v.type, v.property) for v in graph.inputs]
    nodes: list[FlatNode] = [(n.op, [None if v is None else numbers[v] for v in n.inputs], dict(n.attrs),
                              [v.name for v in n.outputs], n.meta) for n in graph.nodes]
    return graph.name, inputs, nodes, [numbers[v] for v in graph.outputs], graph.output_names, graph.meta


def rebuilt(name: str, inputs: list[FlatInput], nodes: list[FlatNode], outputs: list[int], output_names: list[str],
            meta: Mapping[str, Any]) -> Graph:
    """Rebuild a graph from the result of `flat`. Arrays in attributes become read-only and are not copied."""
    out = Graph(name)
    values = [out.input(n, dtype=t.dtype, shape=t.shape, property=p) for n, t, p in inputs]
    for op, operands, attrs, names, facts in nodes:
        for a in attrs.values():
            if isinstance(a, np.ndarray):
                a.flags.writeable = False
        outs = out.add_node(op, [None if k is None else values[k] for k in operands], attrs)
        values += _named(out, outs, names, facts)
    out.set_outputs([values[k] for k in outputs], output_names)
    out.meta = meta
    return out


def add_copy(graph: Graph, node: Node, operands: Sequence[Value | None],
             attrs: Mapping[str, Any] | None = None) -> tuple[Value, ...]:
    """Add a copy of a node to `graph`, on other operands. `attrs` replaces the node's attributes.

    The body of a partition is specialized to the operands. Raises GraphError if operands or attributes do not fit.
    """
    given = node.attrs if attrs is None else attrs
    if node.op.name == "partition":
        body: Graph = given["body"]
        types = {str(v.name): x.type for v, x in zip(body.inputs, operands, strict=True) if x is not None}
        if any(v.type != types.get(str(v.name)) for v in body.inputs):
            body = body.specialize(types)
        outs = graph.add_node(node.op, operands, {**given, "body": body})
    elif attrs is None:
        outs = graph.add_again(node, operands)
    else:
        outs = graph.add_node(node.op, operands, attrs)
    return _named(graph, outs, [v.name for v in node.outputs], node.meta)


def add_copies(graph: Graph, nodes: Iterable[Node], new: dict[Value, Value],
               attributes: Callable[[Node], Mapping[str, Any]] | None = None) -> None:
    """Add copies of nodes (`add_copy`), in order. `new` maps operands to values of `graph`; it gets the results."""
    for node in nodes:
        operands = [None if v is None else new[v] for v in node.inputs]
        outs = add_copy(graph, node, operands, attributes and attributes(node))
        new.update(zip(node.outputs, outs, strict=True))


def part_of(nodes: Sequence[Node], outputs: Sequence[Value], names: Mapping[Value, str],
            name: str) -> tuple[Graph, dict[Value, Value]]:
    """Copy nodes and their constants into a new graph, and map their values to it. Values of other nodes are inputs."""
    part, new, inside = Graph(name), dict[Value, Value](), set(nodes)
    for v in dict.fromkeys(v for n in nodes for v in n.operands if v.node not in inside):
        new[v] = part.add_input(names[v], v.type, v.property) if v.data is None else part.add_constant(
            v.data, name=v.name)
    add_copies(part, nodes, new)
    part.set_outputs([new[v] for v in outputs], [names[v] for v in outputs])
    return part, new


def _named(graph: Graph, outs: tuple[Value, ...], names: Sequence[str | None],
           meta: Mapping[str, Any]) -> tuple[Value, ...]:
    for value, name in zip(outs, names, strict=True):
        if name is not None:
            graph.rename(value, name)
    graph.nodes[-1].meta = meta
    return outs
