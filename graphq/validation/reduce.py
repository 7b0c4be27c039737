"""Shrink a graph by simplifications, as long as it stays interesting (`reduce_graph`).

Each function in KINDS yields candidates: functions that return a simpler graph, or raise GraphqError.
"""
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from graphq.errors import GraphqError
from graphq.ir import SHORT, Graph, Node, TensorType, Value, copies, to_text
from graphq.ir.verify import verify
from graphq.ops.rules import with_axis
from graphq.validation.subgraphs import all_nodes, changed, rebuilt, subgraph

TRIALS = 2000
"""The most graphs to try."""


def reduce_graph(graph: Graph, interesting: Callable[[Graph], bool], *, trials: int = TRIALS) -> Graph:
    """Shrink a graph as long as it stays `interesting`. Returns the smallest graph found.

    `graph` must be interesting, and is not changed. The simplifications of KINDS (fewer nodes, outputs and inputs,
    smaller sizes, default attributes) are tried until none is accepted. Each accepted graph is smaller (`_size`), so
    the search ends, at the latest after `trials` calls of `interesting`. The function `interesting` gets only valid
    graphs, must not change them, and may raise.
    """
    smallest, left, ended = graph, trials, False
    while not ended:
        ended = True
        for kind in KINDS:
            tried = 0
            while left > 0 and (candidate := next(islice(kind(smallest), tried, None), None)) is not None:
                tried += 1
                smaller = _made(candidate)
                if smaller is None or _size(smaller) >= _size(smallest):
                    continue
                left -= 1
                if interesting(smaller):
                    smallest, tried, ended = smaller, tried - 1, False
    return smallest


def _made(candidate: "Candidate") -> Graph | None:
    """The candidate's graph; None if it is not valid or has no outputs."""
    try:
        smaller = candidate()
        verify(smaller)
    except GraphqError:
        return None
    return smaller if smaller.outputs else None


def _size(graph: Graph) -> tuple[int, int, int, int, int]:
    """The measure that each reduction must lower: numbers of nodes, open dimensions, elements, names and characters."""
    results = [v for n in graph.nodes for v in n.outputs]
    opened = sum(1 for v in graph.inputs for d in ((None,) if v.shape is None else v.shape) if d is None)
    elements = sum(v.type.size for v in (*graph.inputs, *results) if v.type.known)
    named = sum(v.name is not None for v in results)
    return sum(1 for _ in all_nodes(graph)), opened, elements, named, len(to_text(graph, elide=SHORT))


Candidate: TypeAlias = Callable[[], Graph]


def fewer_outputs(graph: Graph) -> Iterator[Candidate]:
    """Keep only one output, or leave out one output."""
    many = range(len(graph.outputs))
    for k in many if len(many) > 1 else ():
        yield partial(_returning, graph, [k])
    for k in many if len(many) > 2 else ():
        yield partial(_returning, graph, [j for j in many if j != k])


def _returning(graph: Graph, outputs: list[int]) -> Graph:
    out = graph.copy()
    out.set_outputs([out.outputs[k] for k in outputs], [out.output_names[k] for k in outputs])
    out.prune()
    return out if all(v.uses for v in out.inputs) else subgraph(out, out.nodes)


def many_fewer_nodes(graph: Graph) -> Iterator[Candidate]:
    """Leave out unused inputs. Then keep only a half of the nodes, or remove a half; the same for quarters and so on.

    The results of removed nodes become inputs. This is delta debugging (Zeller and Hildebrandt, 2002).
    """
    nodes = [n for n in graph.nodes if n.op.name != "constant"]
    size = len(nodes)
    yield partial(_with_constants, graph, nodes)
    while size := size // 2:
        starts = range(0, len(nodes), size)
        yield from (partial(_with_constants, graph, nodes[k:k + size]) for k in starts)
        yield from (partial(_with_constants, graph, [*nodes[:k], *nodes[k + size:]]) for k in starts)


def _with_constants(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph of only these nodes and the constants that they read."""
    chosen = set(nodes)
    return subgraph(graph, [*nodes, *(n for n in graph.nodes_of(("constant",)) if chosen & set(n.output.users))])


def fewer_nodes(graph: Graph) -> Iterator[Candidate]:
    """Remove one node. An operand of the same type replaces the node's result, or the node's results become inputs."""
    for node in graph.nodes:
        for v in node.operands:
            if len(node.outputs) == 1 and v.type == node.output.type:
                yield partial(_replaced, graph, node.output, v)
        yield partial(subgraph, graph, [n for n in graph.nodes if n is not node])


def _replaced(graph: Graph, old: Value, new: Value) -> Graph:
    out = graph.copy()
    same = dict(zip(graph.values, out.values, strict=True))
    out.replace_uses(same[old], same[new])
    out.prune()
    return subgraph(out, out.nodes)


def smaller_bodies(graph: Graph) -> Iterator[Candidate]:
    """Keep only one partition, without one node of its body. The results of the removed node become operands."""
    for node in graph.nodes_of(("partition",)):
        for inner in node.attrs["body"].nodes:
            yield partial(_with_smaller_body, graph, node, inner)


def _with_smaller_body(graph: Graph, node: Node, inner: Node) -> Graph:
    body = subgraph(node.attrs["body"], [n for n in node.attrs["body"].nodes if n is not inner])
    given = {str(v.name): x for v, x in zip(node.attrs["body"].inputs, node.inputs, strict=True)}
    out = Graph(graph.name)
    operands: list[Value] = []
    for v in body.inputs:
        outside = given.get(str(v.name))
        if outside is not None and outside.data is not None:
            operands.append(out.add_constant(outside.data))
        else:
            operands.append(out.input(str(v.name), dtype=v.dtype, shape=v.shape))
    results = out.add_node(node.op, operands, {**node.attrs, "body": body})
    out.set_outputs(results, [f"out{k}" for k in range(len(results))])
    return out


def fewer_inputs(graph: Graph) -> Iterator[Candidate]:
    """Replace one input by another of the same type."""
    for k, v in enumerate(graph.inputs):
        for j in range(k):
            if graph.inputs[j].type == v.type:
                yield partial(_replaced, graph, v, graph.inputs[j])


def smaller_sizes(graph: Graph) -> Iterator[Candidate]:
    """Replace open dimensions by sizes; make a size smaller everywhere; make one axis of one input smaller."""
    for size in FIXED if any(None in (v.shape or ()) for v in graph.inputs) else ():
        yield partial(_resized, graph, None, size)
    arrays = [v.type for v in graph.inputs] + [n.output.type for n in graph.nodes_of(("constant",))]
    sizes = {d for t in arrays for d in t.shape or () if d is not None}
    for d in sorted(sizes, reverse=True):
        for new in _smaller(d):
            yield partial(_resized, graph, d, new)
    for v in graph.inputs:
        for axis, dim in enumerate(v.shape or ()):
            for new in FIXED if dim is None else _smaller(dim):
                yield partial(_with_axis, graph, v, axis, new)


FIXED = (1, 2, 3, 8)
"""Sizes to try for open dimensions."""


def _smaller(size: int) -> list[int]:
    return sorted({n for n in (1, 2, 3, size // 2) if 0 < n < size})


def _with_axis(graph: Graph, changed: Value, axis: int, size: int) -> Graph:
    smaller = with_axis(changed.type, axis, size)
    return rebuilt(graph, types=lambda v: smaller if v is changed else v.type)


def _resized(graph: Graph, size: int | None, new: int) -> Graph:
    def types(v: Value) -> TensorType:
        return v.type if v.shape is None else TensorType(v.dtype, tuple(new if d == size else d for d in v.shape))

    return rebuilt(graph, types=types, attributes=lambda node: {k: _cut(x, size, new) for k, x in node.attrs.items()})


def _cut(attribute: Any, size: int | None, new: int) -> Any:
    if isinstance(attribute, Graph):
        return _resized(attribute, size, new)
    if isinstance(attribute, np.ndarray):
        return np.ascontiguousarray(attribute[tuple(slice(new) if d == size else slice(None) for d in attribute.shape)])
    if isinstance(attribute, tuple):
        first = attribute[:new] if size is not None and len(attribute) == size > new else attribute
        return tuple(new if isinstance(x, int) and not isinstance(x, bool) and x == size else x for x in first)
    return attribute


def simpler_attributes(graph: Graph) -> Iterator[Candidate]:
    """Set attributes and constants to defaults, ones or zeros; make per-channel parameters per-tensor."""
    for node in graph.nodes:
        for attrs in _simpler(node):
            yield partial(rebuilt, graph, attributes=partial(changed, node, attrs))


def _simpler(node: Node) -> Iterator[dict[str, Any]]:
    a = node.attrs
    if a.get("qtype") == "per_channel" and "scales" in a:
        yield {"qtype": "per_tensor", "axis": 1, "scales": a["scales"][:1], "zps": a["zps"] and a["zps"][:1]}
    for name, attribute in node.op.attributes.items():
        value = a[name]
        if isinstance(value, np.ndarray):
            yield {name: np.ones_like(value)}
            yield {name: np.zeros_like(value)}
            continue
        if not attribute.required:
            yield {name: attribute.default}
        if isinstance(value, tuple) and all(isinstance(x, int | float) for x in value):
            yield from ({name: type(value)(type(x)(one) for x in value)} for one in (1, 0))
        elif isinstance(value, float):
            yield {name: 1.0}


def no_names(graph: Graph) -> Iterator[Candidate]:
    """Remove names of values and facts about nodes. Inputs become x0, x1, ... and outputs out0, out1, ..."""
    _, inputs, nodes, outputs, _, facts = copies.flat(graph)
    yield lambda: copies.rebuilt(
        "graph", [(f"x{k}", type, property) for k, (_, type, property) in enumerate(inputs)],
        [(op, operands, attrs, [None] * len(names), {}) for op, operands, attrs, names, _ in nodes],
        outputs, [f"out{k}" for k in range(len(outputs))], facts)


KINDS: tuple[Callable[[Graph], Iterator[Candidate]], ...] = (
    many_fewer_nodes, fewer_outputs, smaller_sizes, fewer_nodes, smaller_bodies, fewer_inputs, simpler_attributes,
    no_names)
"""The simplifications, in the order in which they are tried. Early simplifications make later trials faster."""
