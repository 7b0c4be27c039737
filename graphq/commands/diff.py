"""Print how two models differ: nodes removed, added and changed, and weights with their largest difference.

Nodes of the two graphs match if they are the same operation and their results have the same name; otherwise if they are
the same operation of matching operands; otherwise if they are the same operation, in the order of the nodes left.
"""
import argparse
from collections import defaultdict
from collections.abc import Callable
from difflib import SequenceMatcher
from itertools import zip_longest
from os.path import commonprefix
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from graphq.commands.shared import MODEL, Arguments, option, write
from graphq.ir import Graph, Node, Value, attributes, counted
from graphq.model.files import load_graph

ARGUMENTS: Arguments = (*MODEL, option("other", type=Path, metavar="OTHER", help="the model to compare with"))
Pairs: TypeAlias = dict[Value | None, Value | None]
"""For each value of the first graph the value of the second one that matches; constants are left out."""


class Change(NamedTuple):
    """A difference in an attribute, an operand or the type of a node, or in an input or output of the graph."""

    node: str
    what: str
    before: str
    after: str


class Weights(NamedTuple):
    """Constants of one type of which `differing` elements have other bits.

    `largest` is the largest difference, without the `nan` elements that are NaN in a model (NaN if all are).
    """

    name: str
    type: str
    differing: int
    elements: int
    largest: float
    nan: int = 0


class GraphDifference(NamedTuple):
    """All differences of two graphs; `kept` is the number of nodes that match."""

    kept: int
    removed: list[str]
    added: list[str]
    changed: list[Change]
    weights: list[Weights]

    @property
    def equal(self) -> bool:
        """Whether there are none."""
        return not any(self[1:])

    def __str__(self) -> str:
        changes = [f"~ {c.node}: {c.what} {_cut(c.before, c.after)} -> {_cut(c.after, c.before)}" for c in self.changed]
        weights = [f"~ weights {w.name} {w.type}: {w.differing} of {counted(w.elements, 'element')} differ, by at most "
                   f"{w.largest:.6g}" + f"; {w.nan} are NaN in a model" * (w.nan > 0) for w in self.weights]
        total = f"{counted(self.kept, 'node')} in both models, {len(self.removed)} removed, {len(self.added)} added"
        return "\n".join([*(f"- {x}" for x in self.removed), *(f"+ {x}" for x in self.added), *changes, *weights,
                          total + ", all equal" * self.equal])


def run(options: argparse.Namespace) -> int:
    """Print the differences, and return 1 if there are any."""
    found = difference(load_graph(options.file), load_graph(options.other))
    write(options, found, {"equal": found.equal, **found._asdict(), "changed": [x._asdict() for x in found.changed],
                           "weights": [x._asdict() for x in found.weights]})
    return int(not found.equal)


def difference(left: Graph, right: Graph) -> GraphDifference:
    """Compare two graphs. Orders of nodes, names of inner values and names of graphs do not count."""
    pairs, twins = matches(left, right)
    kept = set(twins.values())
    removed = [left.describe(n) for n in _operations(left) if n not in twins]
    added = [right.describe(n) for n in _operations(right) if n not in kept]
    types = [{str(v.name): str(v.type) for v in g.inputs} for g in (left, right)]
    changed = [Change("graph", f"input {name}", *(x.get(name, "none") for x in types))
               for name in types[0] | types[1] if types[0].get(name) != types[1].get(name)]
    results = [dict(zip(g.output_names, g.outputs, strict=True)) for g in (left, right)]
    uses = [("graph", f"output {name}", results[0].get(name), results[1].get(name)) for name in results[0] | results[1]]
    for a, b in twins.items():
        name, texts = f"{', '.join(map(left.label, a.outputs))} = {a.op.name}", [attributes(n) for n in (a, b)]
        changed += [Change(name, key, *(x.get(key, "default") for x in texts))
                    for key in a.op.attributes if texts[0].get(key) != texts[1].get(key)]
        both = [", ".join(str(v.type) for v in n.outputs) for n in (a, b)]
        changed += [Change(name, "type", *both)] if both[0] != both[1] else []
        uses += [(name, f"operand {k}", x, y) for k, (x, y) in enumerate(zip_longest(a.inputs, b.inputs))]
    weights = dict[tuple[Value, Value], Weights]()
    for name, what, x, y in uses:
        if x is None or y is None or not (_constant(x) and _constant(y)):
            if x not in pairs or pairs[x] is not y:
                changed.append(Change(name, what, _label(x), _label(y)))
        elif x.type != y.type:
            changed.append(Change(name, f"{what}, {_label(x)}", str(x.type), str(y.type)))
        elif (x, y) not in weights and (found := _of_weights(x, y)) is not None:
            weights[x, y] = found
    return GraphDifference(len(twins), removed, added, changed, [*weights.values()])


def matches(left: Graph, right: Graph) -> tuple[Pairs, dict[Node, Node]]:
    """Match the values and the nodes of two graphs. Values of other operations match if they have the same name."""
    inputs = {v.name: v for v in right.inputs}
    named = {v.name: v for n in _operations(right) for v in n.outputs if v.name}
    pairs: Pairs = {None: None, **{v: inputs[v.name] for v in left.inputs if v.name in inputs}}
    sides, twins, taken = [_operations(left), _operations(right)], dict[Node, Node](), set[Node]()

    def pair(a: Node, b: Node) -> None:
        twins[a] = b
        taken.update((a, b))
        pairs.update(zip(a.outputs, b.outputs, strict=False))

    for a in sides[0]:
        found = next((named[v.name].node for v in a.outputs if v.name in named), None)
        if found is not None and found.op is a.op and found not in taken:
            pair(a, found)
    waiting = defaultdict[object, list[Node]](list)
    for b in sides[1]:
        if b not in taken:
            waiting[_structure(b, lambda v: v)].append(b)
    for a in sides[0]:
        if a not in taken and (alike := waiting[_structure(a, lambda v: pairs.get(v, v))]):
            pair(a, alike.pop(0))
    rest = [[n for n in side if n not in taken] for side in sides]
    names = [[n.op.name for n in side] for side in rest]
    order = SequenceMatcher(None, names[0], names[1], autojunk=False)
    for i, j, size in order.get_matching_blocks():
        for a, b in zip(rest[0][i:i + size], rest[1][j:j + size], strict=True):
            pair(a, b)
    pairs.update({v: named[v.name] for n in sides[0] if n not in taken for v in n.outputs if v.name in named})
    return pairs, twins


def _cut(text: str, other: str) -> str:
    """At most 100 characters of `text`, from a little before the place where `other` differs from it."""
    start = max(0, len(commonprefix([text, other])) - 20) if len(text) > 100 else 0
    return "..." * (start > 0) + text[start:start + 100] + "..." * (len(text) > start + 100)


def _operations(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.name != "constant"]


def _constant(value: Value) -> bool:
    return value.node is not None and value.node.op.name == "constant"


def _label(value: Value | None) -> str:
    return "none" if value is None else "constant " * _constant(value) + value.graph.label(value)


def _structure(node: Node, match: Callable[[Value | None], Value | None]) -> object:
    """What two nodes must share to match without names: the operation, operands, and types of constants."""
    return node.op, *(str(v.type) if v is not None and _constant(v) else match(v) for v in node.inputs)


def _of_weights(x: Value, y: Value) -> Weights | None:
    a, b = x.array, y.array
    bits = [np.ascontiguousarray(z).reshape(-1).view(f"u{z.dtype.itemsize}") for z in (a, b)]
    other = np.flatnonzero(bits[0] != bits[1])
    if not other.size:
        return None
    with np.errstate(invalid="ignore"):
        gaps = np.abs(a.ravel()[other].astype(np.float64) - b.ravel()[other].astype(np.float64))
    return Weights(x.graph.label(x), str(x.type), other.size, a.size, float(np.fmax.reduce(gaps)),
                   int(np.isnan(gaps).sum()))
