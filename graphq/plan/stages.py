"""Cut a graph that cannot be one plan into three graphs, its stages.

A plan needs all shapes and has no branches. A graph is therefore cut at its first operations that have a body (loops
and branches) or results whose shapes depend on data.

- The head has the operations that do not depend on the cut. All of their shapes are known.
- The cut has the operations at which the graph is cut. They run as NumPy references; their bodies are compiled.
- The tail has the operations that use results of the cut. It is compiled after the cut has run, because the shapes of
  these results are then known. The tail may be cut again.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.ir.copies import add_copy
from graphq.ops.quant import DEQUANTIZES


class Stages(NamedTuple):
    """Three graphs to run in this order. A value that one graph passes to another has the same name in both.

    `outputs` are the names of the whole graph's outputs. `constants` has the arrays of constant outputs, by name.
    """

    head: Graph
    cut: Graph
    tail: Graph
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]


STAGES = "stages"
"""The key in the `meta` of a stage's graph for facts about the other stages.

The facts are a mapping from names to texts. An input's text describes the operation of another stage that computes the
input; an output's text describes the operation that uses the output.
"""

CONTROL = frozenset({"if_else", "loop", "scan"})
"""Operations with bodies. A graph with any of them runs in stages."""


FOLLOWS = frozenset({*DEQUANTIZES, "static_reshape", "static_transpose"})
"""Operations of the head that move to the tail if only the tail uses their results.

A dequantize is then in the same stage as the layer that it fuses with.
"""


def in_one_plan(graph: Graph) -> bool:
    """Whether one plan can run the graph: all shapes are known and no operation has a body."""
    return not graph.nodes_of(CONTROL) and all(v.type.known for n in graph.nodes for v in n.outputs)


def stages(graph: Graph) -> Stages:
    """Cut a graph whose inputs have known types into stages."""
    head: list[Node] = []
    cut: list[Node] = []
    tail: list[Node] = []
    early = set(graph.inputs)
    for node in graph.nodes:
        if any(v not in early for v in node.operands):
            tail.append(node)
        elif node.op.name not in CONTROL and all(v.type.known for v in node.outputs):
            head.append(node)
            early.update(node.outputs)
        else:
            cut.append(node)
    late = set(tail)
    for node in reversed(head):
        if node.op.name in FOLLOWS and {u.node for v in node.outputs for u in v.uses} <= late:
            late.add(node)
    head, tail = [n for n in head if n not in late], [n for n in graph.nodes if n in late]
    names = dict(_named(graph))
    first, second = _interface(graph, [*cut, *tail]), _interface(graph, tail)
    made, decided = _results(head), _results(cut)
    last = dict.fromkeys(v for v in graph.outputs if v.node in set(tail))
    return Stages(_part(graph, head, [v for v in first if v in made], names),
                  _part(graph, cut, [v for v in second if v in decided], names),
                  _part(graph, tail, list(last), names), tuple(names[v] for v in graph.outputs),
                  {names[v]: v.data for v in graph.outputs if v.data is not None})


def _named(graph: Graph) -> Iterator[tuple[Value, str]]:
    k = 0
    for v in graph.values:
        name = v.name
        while name is None:
            k += 1
            name = None if graph.has_name(f"value {k}") else f"value {k}"
        yield v, name


def _interface(graph: Graph, later: Iterable[Node]) -> dict[Value, None]:
    return dict.fromkeys((*(v for n in later for v in n.operands), *graph.outputs))


def _results(nodes: Iterable[Node]) -> set[Value]:
    return {v for n in nodes if n.op.name != "constant" for v in n.outputs}


def _part(graph: Graph, nodes: list[Node], outputs: list[Value], names: dict[Value, str]) -> Graph:
    """Copy nodes and their constants into a new graph. Values of other nodes become inputs."""
    part = Graph(graph.name)
    new: dict[Value, Value] = {}
    inside = {v for n in nodes for v in n.outputs}
    for v in dict.fromkeys(v for n in nodes for v in n.operands if v not in inside):
        if v.data is not None:
            new[v] = part.add_constant(v.data, name=names[v])
        else:
            new[v] = part.input(names[v], dtype=v.dtype, shape=v.shape)
    for node in nodes:
        outs = add_copy(part, node, [None if v is None else new[v] for v in node.inputs])
        new.update(zip(node.outputs, outs, strict=True))
    part.set_outputs([new[v] for v in outputs], [names[v] for v in outputs])
    makers = {names[v]: v.node for v in new if v.node is not None and new[v].node is None}
    own = set(nodes)
    users = {names[v]: u for v in outputs for u in reversed(v.users) if u not in own}
    part.meta = {STAGES: {name: graph.describe(node) for name, node in (makers | users).items()}}
    return part
