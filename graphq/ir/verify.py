"""Verify graphs: node order, uses, names, attributes and types. Tests verify after every pass that changes one."""
from collections import Counter
from operator import is_

from graphq.errors import GraphqError, VerifyError
from graphq.ir.graph import Graph, Node, Use, Value
from graphq.ir.interpret import check_order

Consistent = dict[Node, tuple[object, ...]]
"""Nodes already verified, with the facts that the verdict depended on (`_facts`)."""


def verify(graph: Graph, consistent: Consistent | None = None) -> None:
    """Raise VerifyError, with the node and the rule, if the graph is inconsistent.

    `consistent` is a cache for repeated calls, empty at first. A node's attributes and types are checked again only if
    something that they depend on has changed.
    """
    consistent = {} if consistent is None else consistent
    wanted: dict[Value, set[Use]] = {}
    for v in graph.inputs:
        if v.node is not None or v.graph is not graph or not v.name or v in wanted:
            raise VerifyError(f"input {graph.label(v)}: not a named input of graph '{graph.name}', or listed twice")
        wanted[v] = set()
    names = graph.output_names
    if len(names) != len(graph.outputs) or len(set(names)) != len(names):
        raise VerifyError(f"output names {names} do not fit {len(graph.outputs)} outputs")
    check_order(graph)
    position = float("-inf")
    for node in graph.nodes:
        if node.removed or node.graph is not graph or node.position <= position:
            raise VerifyError(f"{graph.describe(node)}: removed, of another graph, or its position is out of order")
        position = node.position
        _define(graph, node, wanted, consistent)
    for k, v in enumerate(graph.outputs):
        wanted[v].add(Use(None, k))
    for v, uses in wanted.items():
        if len(v.uses) != len(uses) or set(v.uses) != uses:
            raise VerifyError(f"{graph.label(v)}: recorded uses differ from the operands of nodes and the outputs")
    for name, count in Counter(v.name for v in wanted if v.name is not None).most_common(1):
        if count > 1:
            raise VerifyError(f"the name '{name}' is given to {count} values")


def _define(graph: Graph, node: Node, wanted: dict[Value, set[Use]], consistent: Consistent) -> None:
    """Check one node. `wanted` maps the values defined so far to their uses; the node's outputs and uses are added."""
    for k, v in enumerate(node.inputs):
        if v is not None:
            wanted[v].add(Use(node, k))
    for k, out in enumerate(node.outputs):
        if out.node is not node or out.index != k or out.graph is not graph:
            raise VerifyError(f"{graph.describe(node)}: output {k} does not point back to its node")
        wanted[out] = set()
    bodies = {name: value for name, value in node.attrs.items() if isinstance(value, Graph)}
    facts, before = _facts(node), consistent.get(node, ())
    if not bodies and len(facts) == len(before) and all(map(is_, facts, before)):
        return
    try:
        _attributes(node)
        for name, body in bodies.items():
            try:
                verify(body, consistent)
            except VerifyError as e:
                raise VerifyError(f"in '{name}': {e}") from None
        types = node.op.types([None if v is None else v.type for v in node.inputs], node.attrs)
        if types != tuple(o.type for o in node.outputs):
            raise VerifyError(f"inferred types are {', '.join(map(str, types))}")
    except GraphqError as e:
        raise VerifyError(f"{graph.describe(node)}: {e}") from None
    consistent[node] = facts


def _facts(node: Node) -> tuple[object, ...]:
    """The objects that the check of a node depends on, compared by identity. Bodies are always checked again."""
    operands = (v if v is None else v.type for v in node.inputs)
    return (*operands, node.op, *node.attrs, *node.attrs.values(), *(v.type for v in node.outputs))


def _attributes(node: Node) -> None:
    node.op.check_operands(node.inputs)
    missing = [name for name in node.op.attributes if name not in node.attrs]
    if missing:
        raise VerifyError(f"attribute '{missing[0]}' is missing")
    complete = node.op.complete(node.attrs)
    for name, value in node.attrs.items():
        if type(value) is not type(complete[name]):
            raise VerifyError(f"attribute '{name}' is not in normal form: {value!r}")
