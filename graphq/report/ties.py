"""The part of `explain()` on outputs near a rounding tie: how they are recomputed, or why not (docs/numbers.md)."""
from __future__ import annotations

from collections import Counter

from graphq.ir import Graph, Node, Value
from graphq.ir.names import counted, listing
from graphq.kernels.families import TIES, lower_partition
from graphq.report.coverage import MACS


def settled(partition: Node) -> tuple[str, ...]:
    """For each quantize of a partition, how outputs near a rounding tie are recomputed, or why they are not."""
    noted: tuple[str, ...] | None = partition.meta.get(TIES)
    return lower_partition(partition).ties if noted is None else noted


def ties(graph: Graph) -> list[str]:
    """Lines on how each quantize recomputes outputs near a rounding tie (docs/numbers.md), or why it does not.

    The list is empty for a graph without quantizes.
    """
    found: list[tuple[Node, str]] = []
    for n in graph.nodes:
        inner = [n] if n.op.name == "quantize" else []
        if n.op.name == "partition":
            found += [(n, x) for x in settled(n)]
            inner = n.attrs["body"].nodes_of({"quantize"})
        outer = n if n.op.name == "partition" else None
        found += [(n, x) for q in inner if (x := _inexact(outer, q)) is not None]
    if not found:
        return []
    by = Counter(x for _, x in found if x in ("proved", "estimated"))
    lines = [f"  {graph.label(n.output)}: {x}" for n, x in found if x not in by]
    return [f"ties: {counted(by.total(), 'quantize')} settled by the f32 sums of the graph as written: "
            f"{by['proved']} within proved bounds, {by['estimated']} within estimated ones", *lines]


def _inexact(outer: Node | None, quantize: Node) -> str | None:
    """Why outputs of a quantize near ties are not recomputed: its operand may be inexact in the last bits.

    The operand then depends on functions such as exp, or on the sums of other partitions. The result is None if it does
    not, or if these come before a sum of the quantize's own partition, `outer`: the error bounds of that sum include
    the errors of functions.
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
            found |= {node.op.name} if not node.op.exact or node.op.name in MACS else set()
            work += [(v, around) for v in node.operands]
    if not found:
        return None
    return (f"quantize is not settled: {listing(sorted(found), 'and')} may differ from the reference in the last bits "
            "of f32")
