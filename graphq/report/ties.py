"""How outputs near a rounding tie are found (docs/numbers.md), and of which they are not."""
from __future__ import annotations

from collections import Counter

from graphq.ir import Graph, Node, Value
from graphq.ir.names import counted, listing
from graphq.kernels.families import lower_partition
from graphq.kernels.ties.drift import INEXACT
from graphq.report.coverage import MACS


def ties(graph: Graph) -> list[str]:
    """How outputs near a tie are found (docs/numbers.md), and of which they are not."""
    found: list[tuple[Node, str]] = []
    for n in graph.nodes:
        inner = [n] if n.op.name == "quantize" else []
        if n.op.name == "partition":
            found += [(n, x) for x in lower_partition(n).ties]
            inner = n.attrs["body"].nodes_of({"quantize"})
        outer = n if n.op.name == "partition" else None
        found += [(n, x) for q in inner if (x := _inexact(outer, q)) is not None]
    by = Counter(x for _, x in found if x in ("proved", "estimated"))
    lines = [f"  {graph.label(n.output)}: {x}" for n, x in found if x not in by]
    if not found:
        return []
    return [f"ties: {counted(by.total(), 'quantize')} settled by the f32 sums of the graph as written: "
            f"{by['proved']} within proved bounds, {by['estimated']} within estimated ones", *lines]


def _inexact(outer: Node | None, quantize: Node) -> str | None:
    """What a quantize rounds whose last bits are not the reference's: functions, and sums of other partitions.

    None where there is nothing; after a sum of its own partition, `outer`, the band around ties has the functions'
    errors.
    """
    found, seen = set[str](), set[tuple[Value, Node | None]]()
    work: list[tuple[Value, Node | None]] = [(v, outer) for v in quantize.operands]
    while work:
        value, around = here = work.pop()
        if here in seen:
            continue
        seen.add(here)
        node = value.node
        if node is None:
            if around is not None:
                operand = around.inputs[around.attrs["body"].inputs.index(value)]
                work += [] if operand is None else [(operand, None)]
        elif node.op.name == "partition":
            work.append((node.attrs["body"].outputs[value.index], node))
        elif node.op.name in MACS and outer is not None and around is outer:
            return None
        elif node.op.name not in ("quantize", "dynamic_quantize"):
            found |= {node.op.name} & (INEXACT | MACS.keys())
            work += [(v, around) for v in node.operands]
    if not found:
        return None
    return (f"quantize is not settled: {listing(sorted(found), 'and')} may differ from the reference in the last bits "
            "of f32")
