"""Draw graphs as nested boxes with edges: for reports, Graphviz and Mermaid.

Constants have no boxes, because they would hide the flow of data. Operations that have only constant operands, such as
a dequantize of weights, have no boxes either. The box of a partition (operations that one kernel computes) contains the
boxes of its operations; edges end at these inner boxes. Each body of a loop or branch is a box of kind "group", with
its own inputs and outputs.
"""
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from graphq.ir.graph import Graph
from graphq.ir.interpret import SIZED_CONSTANT
from graphq.ir.node import Node, Value

Kind: TypeAlias = Literal["input", "output", "operation", "partition", "group"]


@dataclass(frozen=True, eq=False)
class Box:
    """A box with a unique id, lines of text and inner boxes. It shows a `node`, or an input or output `value`."""

    id: str
    kind: Kind
    lines: tuple[str, ...]
    node: Node | None = None
    value: Value | None = None
    inside: "tuple[Box, ...]" = ()

    def walk(self) -> "Iterator[Box]":
        """Yield this box, then all boxes inside it at any depth."""
        yield self
        for box in self.inside:
            yield from box.walk()


@dataclass(frozen=True)
class Outline:
    """The outermost boxes in the graph's order, and the edges. An edge is a pair of ids of innermost boxes."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[str, str], ...]

    def walk(self) -> Iterator[Box]:
        """Yield all boxes; an outer box comes before its inner boxes."""
        for box in self.boxes:
            yield from box.walk()


def outline(graph: Graph, *, bodies: bool = True) -> Outline:
    """Make the outline of a graph. Without `bodies` each node is one box.

    Ids are `i0`, `i1`, ... for inputs, `o0`, ... for outputs and `n0`, ... for nodes in graph order. The id of an inner
    box begins with the id of the outer box.
    """
    outliner = _Outliner(bodies)
    boxes = outliner.graph(graph, "")
    return Outline(tuple(boxes), tuple(outliner.edges))


class _Outliner:
    """Makes boxes and edges. `source` maps each value, except constants, to the id of the box that computes it."""

    def __init__(self, bodies: bool) -> None:
        self.bodies = bodies
        self.source: dict[Value, str] = {}
        self.edges: dict[tuple[str, str], None] = {}

    def graph(self, graph: Graph, prefix: str) -> list[Box]:
        boxes = []
        for k, v in enumerate(graph.inputs):
            self.source[v] = f"{prefix}i{k}"
            boxes.append(Box(self.source[v], "input", (str(v.name), str(v.type)), value=v))
        boxes += self.nodes(graph, prefix)
        for k, (v, name) in enumerate(zip(graph.outputs, graph.output_names, strict=True)):
            boxes.append(Box(f"{prefix}o{k}", "output", (name, str(v.type)), value=v))
            self.connect(v, f"{prefix}o{k}")
        return boxes

    def nodes(self, graph: Graph, prefix: str) -> list[Box]:
        return [self.node(node, f"{prefix}n{k}") for k, node in enumerate(graph.nodes)
                if not self.constant(node) or any(v.is_output for v in node.outputs)]

    def constant(self, node: Node) -> bool:
        """Whether a node depends only on constants; False for partitions, since they always have boxes."""
        if node.op.name in ("constant", SIZED_CONSTANT.name):
            return True
        return bool(node.inputs) and node.op.name != "partition" and not any(v in self.source for v in node.operands)

    def node(self, node: Node, id: str) -> Box:
        """The box of a node. For a loop or branch it is a group, with a box for the operation and one for each body."""
        types = tuple(str(v.type) for v in node.outputs[:1])
        if node.op.name == "partition":
            lines = (f"{node.attrs['anchor']} partition", *types)
            if self.bodies:
                return Box(id, "partition", lines, node, inside=tuple(self.partition(node, id)))
            return Box(id, "partition", lines, self.connected(node, id))
        box = Box(id, "operation", (node.op.title(node.attrs), *types), self.connected(node, id))
        graphs = [(name, x) for name, x in node.attrs.items() if isinstance(x, Graph)]
        if not graphs or not self.bodies:
            return box
        groups = [Box(f"{id}b{k}", "group", (name,), inside=tuple(self.graph(body, f"{id}b{k}")))
                  for k, (name, body) in enumerate(graphs)]
        return Box(f"{id}b", "group", box.lines[:1], inside=(box, *groups))

    def connected(self, node: Node, id: str) -> Node:
        """Add edges from the operands to box `id`, and record that box `id` computes the results. Returns the node."""
        for v in node.operands:
            self.connect(v, id)
        self.source |= dict.fromkeys(node.outputs, id)
        return node

    def partition(self, node: Node, id: str) -> list[Box]:
        """The boxes of a partition's body. Edges skip the body's inputs and outputs: they connect the outer values."""
        body: Graph = node.attrs["body"]
        inner = dict(zip(body.inputs, node.operands, strict=True))
        self.source |= {new: self.source[v] for new, v in inner.items() if v in self.source}
        boxes = self.nodes(body, id)
        outer = zip(node.outputs, body.outputs, strict=True)
        self.source |= {v: self.source[new] for v, new in outer if new in self.source}
        return boxes

    def connect(self, value: Value, target: str) -> None:
        if value in self.source:
            self.edges[self.source[value], target] = None


_DOT = {"input": "shape=box, style=rounded", "output": "shape=box, style=rounded", "operation": "shape=box",
        "partition": 'style=filled, color="#5b8bd0", fillcolor="#e8f0fb"', "group": "style=dashed"}
_MERMAID = {"input": ("([", "])"), "output": ("([", "])"), "operation": ("[", "]"), "partition": ("[[", "]]"),
            "group": ("[", "]")}
_UNSAFE = re.compile(r"[^\w .,:()\[\]%+-]", re.ASCII)


def to_dot(graph: Graph) -> str:
    """The graph in Graphviz's language. Partitions, and bodies of loops and branches, are clusters."""
    made = outline(graph)
    lines = [f"digraph {_quoted(graph.name)} {{",
             "  graph [fontname=monospace, fontsize=10]", "  node [fontname=monospace, fontsize=10]"]
    for box in made.boxes:
        lines += _dot(box, "  ")
    lines += [f"  {source} -> {target}" for source, target in made.edges]
    return "\n".join([*lines, "}", ""])


def _dot(box: Box, indent: str) -> Iterator[str]:
    label = _quoted("\n".join(box.lines))
    if not box.inside:
        yield f"{indent}{box.id} [{_DOT[box.kind]}, label={label}]"
        return
    yield f"{indent}subgraph cluster_{box.id} {{"
    yield f"{indent}  graph [{_DOT[box.kind]}, label={label}]"
    for inner in box.inside:
        yield from _dot(inner, indent + "  ")
    yield indent + "}"


def _quoted(text: str) -> str:
    """Quote a string for Graphviz. Control characters other than newlines become `?`."""
    shown = "".join(c if c.isprintable() else "\n" if c == "\n" else "?" for c in text)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def to_mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart (see `Graph.to_mermaid`). Partitions and bodies are subgraphs."""
    made = outline(graph)
    lines = ["flowchart TD"]
    for box in made.boxes:
        lines += _mermaid(box, "  ")
    lines += [f"  {source} --> {target}" for source, target in made.edges]
    return "\n".join([*lines, ""])


def _mermaid(box: Box, indent: str) -> Iterator[str]:
    label = '"' + "<br/>".join(_UNSAFE.sub(lambda c: f"#{ord(c[0])};", line) for line in box.lines) + '"'
    if not box.inside:
        begin, end = _MERMAID[box.kind]
        yield f"{indent}{box.id}{begin}{label}{end}"
        return
    yield f"{indent}subgraph {box.id}[{label}]"
    for inner in box.inside:
        yield from _mermaid(inner, indent + "  ")
    yield f"{indent}end"
