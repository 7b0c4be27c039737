"""Quantize inside the bodies of ONNX's If, Loop and Scan: graphs that are attributes of a node.

Calibration also observes tensors in bodies. The statistics become results of the body's node, and a loop passes them
from one iteration to the next. Parameters of quantization become operands of the body's node.
"""
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphq.dtypes import s32
from graphq.ir import GRAPH_ORDER, ONNX_NAME, Graph, Node, Value
from graphq.plan.plan import CONTROL


def bodies(node: Node) -> dict[str, Graph]:
    """The bodies of a node, by attribute name."""
    return {name: x for name, x in node.attrs.items() if isinstance(x, Graph)}


def with_bodies(graph: Graph) -> dict[Graph, Node | None]:
    """The graph and all bodies in it, each with the node that has it (None for the graph); outer graphs come first."""
    found: dict[Graph, Node | None] = {graph: None}
    for node in sorted(graph.nodes_of(CONTROL), key=GRAPH_ORDER):
        for body in bodies(node).values():
            found |= {g: owner or node for g, owner in with_bodies(body).items()}
    return found


def around(node: Node, owners: Mapping[Graph, Node | None]) -> Iterator[Node]:
    """The node, then the nodes whose bodies contain it, innermost first. `owners` is the result of `with_bodies`."""
    inner: Node | None = node
    while inner is not None:
        yield inner
        inner = owners[inner.graph]


def body_text(body: Graph, owners: Mapping[Graph, Node | None]) -> str:
    """How a user finds a body: the body's name in its node, and the name of the node or of its first result."""
    owner = owners[body]
    assert owner is not None
    name = next(name for name, x in bodies(owner).items() if x is body)
    return f"{name} of {owner.op.name} '{owner.meta.get(ONNX_NAME) or owner.outputs[0].name}'"


def iterations(node: Node, owners: Mapping[Graph, Node | None]) -> int:
    """How often a node runs in one run of the graph, as far as shapes and constants say.

    A loop with an unknown number of iterations counts as one iteration, and every branch counts as executed.
    """
    count = 1
    for owner in list(around(node, owners))[1:]:
        if owner.op.name == "scan":
            shape, axis = owner.operand(owner.attrs["states"]).shape, owner.attrs["input_axes"][0]
            count *= (None if shape is None else shape[axis]) or 1
        elif owner.op.name == "loop" and (trips := owner.operand(0).data) is not None and trips < 1 << 20:
            count *= max(1, int(trips.reshape(())))  # larger numbers are only upper limits
    return count


def replaced(node: Node, operands: Sequence[Value | None], attrs: Mapping[str, Any], at: int = 0,
             more: int = 0) -> tuple[Value, ...]:
    """Replace `node` by a node with `more` (a number) additional results at index `at`; returns these results."""
    graph = node.graph
    with graph.before(node, [node]):
        outs = graph.add_node(node.op, operands, attrs)
    for made in outs[:1]:
        made.maker.meta = node.meta
    for old, new in zip(node.outputs, (*outs[:at], *outs[at + more:]), strict=True):
        graph.replace_uses(old, new)
    graph.prune([node])
    return outs[at:at + more]


def copied(graph: Graph, copy: Callable[[Graph], Graph] = Graph.copy) -> Graph:
    """Copy a graph and its bodies. `copy` copies each graph, and must keep the types of inputs and outputs."""
    out = copy(graph)
    for node in sorted(out.nodes_of(CONTROL), key=GRAPH_ORDER):
        own = {name: copied(body, copy) for name, body in bodies(node).items()}
        replaced(node, node.inputs, {**node.attrs, **own})
    return out


def raise_inputs(graph: Graph) -> None:
    """Make inputs that were added to bodies also inputs of the graph, and operands of the nodes with these bodies."""
    for node in sorted(graph.nodes_of(CONTROL), key=GRAPH_ORDER):
        own, given = bodies(node).values(), len(node.inputs) - (node.op.name == "if_else")
        for body in own:
            raise_inputs(body)
        added = {str(v.name): v.type for body in own for v in body.inputs[given:]}
        if not added:
            continue
        for body in own:
            there = {str(v.name): v for v in body.inputs[given:]}
            there |= {n: body.input(n, dtype=t.dtype, shape=t.shape) for n, t in added.items() if n not in there}
            body.inputs = [*body.inputs[:given], *(there[n] for n in added)]
        values = [graph.input(n, dtype=t.dtype, shape=t.shape) for n, t in added.items()]
        replaced(node, [*node.inputs, *values], node.attrs)


def raise_statistics(graph: Graph, found: Mapping[Graph, Mapping[str, Value]]) -> dict[str, Value]:
    """Turn the counts (s32) and extremes (f32) of tensors, including tensors in bodies, into values of the outer graph.

    `found` has these statistics for the graph and each body. A branch that does not run, and a loop without iterations,
    give the statistics of a tensor without elements.
    """
    raised = dict(found.get(graph, {}))
    for node in sorted(graph.nodes_of(CONTROL), key=GRAPH_ORDER):
        inside = {name: raise_statistics(body, found) for name, body in bodies(node).items()}
        names = list(dict.fromkeys(n for values in inside.values() for n in values))
        if names:
            types = {n: v for values in inside.values() for n, v in values.items()}
            add = _to_branches if node.op.name == "if_else" else _to_loop
            raised |= zip(names, add(node, [types[n] for n in names], names, inside), strict=True)
    return raised


def _to_branches(node: Node, values: Sequence[Value], names: Sequence[str],
                 inside: Mapping[str, Mapping[str, Value]]) -> tuple[Value, ...]:
    for name, body in bodies(node).items():
        own = [inside[name][n] if n in inside[name] else _nothing(body, v) for n, v in zip(names, values, strict=True)]
        body.set_outputs([*body.outputs, *own], [*body.output_names, *names])
    return replaced(node, node.inputs, node.attrs, len(node.outputs), len(values))


def _to_loop(node: Node, values: Sequence[Value], names: Sequence[str],
             _inside: Mapping[str, Mapping[str, Value]]) -> tuple[Value, ...]:
    states, looped, body = node.attrs["states"], node.op.name == "loop", node.attrs["body"]
    with node.graph.before(node):
        first = [_nothing(node.graph, v) for v in values]
    before = [body.input(f"before/{n}", dtype=v.dtype, shape=v.shape) for n, v in zip(names, values, strict=True)]
    at, out = states + 2 * looped, states + looped
    body.inputs = [*body.inputs[:at], *before, *body.inputs[at:-len(before)]]
    sums = [_sum(body, a, b) for a, b in zip(before, values, strict=True)]
    body.set_outputs([*body.outputs[:out], *sums, *body.outputs[out:]],
                     [*body.output_names[:out], *names, *body.output_names[out:]])
    return replaced(node, [*node.inputs[:at], *first, *node.inputs[at:]], {**node.attrs, "states": states + len(first)},
                    states, len(first))


def _nothing(graph: Graph, like: Value) -> Value:
    return graph.add_constant(np.zeros(like.type.dims, np.int32) if like.dtype == s32
                              else np.array([np.inf, -np.inf], np.float32))


def _sum(graph: Graph, a: Value, b: Value) -> Value:
    both: Value = graph.add(a, b) if a.dtype == s32 else graph.concat(
        graph.minimum(a[:1], b[:1]), graph.maximum(a[1:], b[1:]), axis=0)
    return both
