"""What fused, what did not and why: the report behind `CompiledGraph.explain()`."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from graphq.ir import Graph, Node, Value
from graphq.ir.constants import SIZED_CONSTANT
from graphq.ir.names import counted, listing
from graphq.kernels.families import lower_partition
from graphq.kernels.jit.isa import Level
from graphq.kernels.moves.steps import kilobytes, reorder_text
from graphq.kernels.native import NATIVE
from graphq.kernels.ties.drift import INEXACT
from graphq.plan.plan import VIEWS, NativeStep, Plan, PythonStep
from graphq.report.coverage import MACS, Coverage
from graphq.rewrite.rule import Refusal

if TYPE_CHECKING:
    from graphq.report.evidence import Evidence


def explain(graph: Graph, plan: Plan | None, refusals: Sequence[Refusal], level: Level, threads: int,
            evidence: Mapping[int, Evidence], covered: Coverage | None, sizes: Mapping[str, int]) -> str:
    """The report as text: partitions with their operations, steps with their kernels, and reasons.

    `evidence` of native steps, by their numbers, stands with them. `covered` is the plan's coverage, `sizes` are those
    of open dimensions that it is of.
    """
    partitions = [n for n in graph.nodes if n.op.name == "partition"]
    slow = set(plan.references) if plan else set()
    others = [n for n in graph.nodes if n.op.name not in ("partition", "constant", SIZED_CONSTANT.name, *VIEWS)
              and (n.op.name not in NATIVE or graph.describe(n) in slow)]
    integer = [n for n in partitions if lower_partition(n).integer]
    lines = [f"graph {graph.name}: {counted(len(partitions), 'partition')} ({len(integer)} integer), "
             f"{counted(len(others), 'operation')} outside; ISA level {level.name}, {counted(threads, 'thread')}"]
    if sizes:
        lines.append(f"numbers are those of {', '.join(f'{place} = {n}' for place, n in sizes.items())}")
    if covered and (covered.total or covered.uncounted):
        lines.append(f"coverage: {covered}")
    lines += [f"  {_partition(graph, n)}" for n in partitions]
    lines += _ties(graph)
    if others:
        lines.append("not in a partition:")
        lines += [f"  {graph.describe(n)}{_why(n)}" for n in others]
    lines += _layouts(graph)
    lines += _reasons(refusals)
    lines += _steps(plan, evidence)
    return "\n".join(lines)


def _why(node: Node) -> str:
    """For an ONNX node without an operation here: the reason."""
    return f"\n    {node.meta['why']}" if node.meta.get("why") else ""


def _partition(graph: Graph, node: Node) -> str:
    """`%y = matmul partition (dequantize, matmul, relu, quantize) : u8[4,16]`"""
    ops = ", ".join(n.op.name for n in node.attrs["body"].nodes)
    return f"{graph.label(node.output)} = {node.attrs['anchor']} partition ({ops}) : {node.output.type}"


def _ties(graph: Graph) -> list[str]:
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


def _layouts(graph: Graph) -> list[str]:
    """What the layouts of tensors cost: the bytes that are only moved."""
    moves = [n for n in graph.nodes if n.op.name == "static_transpose"]
    if not moves:
        return []
    known = [n.output.type.nbytes for n in moves if n.output.type.known]
    size = f", {kilobytes(sum(known))}" if len(known) == len(moves) else ""
    return [f"layouts: {counted(len(moves), 'reorder')}{size}",
            *(f"  {graph.label(n.output)} = {reorder_text(next(n.operands).type, n.output.type)}" for n in moves)]


def _reasons(refusals: Sequence[Refusal]) -> list[str]:
    """Near misses, the deepest first; operations that a later pass fused all the same are still worth the reason."""
    seen: dict[str, dict[str, dict[str, None]]] = {}
    for r in sorted(refusals, key=lambda r: -r.depth):
        if r.reason:
            seen.setdefault(r.node, {}).setdefault(r.reason, {})[r.rewrite] = None
    lines = ["near misses:"] if seen else []
    for node, reasons in seen.items():
        lines += [f"  {node}", *(f"    {', '.join(names)}: {reason}" for reason, names in reasons.items())]
    return lines


def _steps(plan: Plan | None, evidence: Mapping[int, Evidence]) -> list[str]:
    if plan is None:
        return ["the plan is made at the first call, when all shapes are known"]
    lines = [f"plan: {counted(len(plan.steps), 'step')}"
             + "; native ones measured one by one, on warm caches" * bool(evidence)]
    for k, step in enumerate(plan.steps):
        if isinstance(step, NativeStep):
            how = f"{counted(step.blocks, 'block')}, {'parallel' if step.parallel else 'serial'}"
            lines.append(f"  {k}: {step.kernel}  ({how})")
            lines += [f"       {x}" for x in (_code(evidence[k]), _speed(evidence[k]))] if k in evidence else []
        elif isinstance(step, PythonStep):
            lines.append(f"  {k}: {'NumPy reference of ' * step.reference}{step.kernel}")
    return lines


def _code(e: Evidence) -> str:
    """`ISA level avx512_vnni, tile 6x64: 48 vpdpbusd zmm, 4 vmulps zmm`"""
    tile = f", tile {e.tile[0]}x{e.tile[1]}" if e.tile else ""
    counts = f"instructions not counted: {e.counts}" if isinstance(e.counts, str) else \
        ", ".join(f"{n} {name}" for name, n in e.counts.items()) or "none of the decisive instructions"
    return f"ISA level {e.level}{tile}: {counts}"


def _speed(e: Evidence) -> str:
    """`0.412 ms on 2 threads, 873 GOPS: 93% of 936 by vpdpbusd zmm` or `..., 25.1 GB/s: 80% of 31.4 by copying`"""
    scale, unit = (2e-9, "GOPS") if e.macs else (1e-9, "GB/s")
    text = f"{1e3 * e.seconds:.3g} ms on {counted(e.threads, 'thread')}, {scale * e.rate:.3g} {unit}"
    if e.peak is None:
        return text
    return f"{text}: {e.rate / e.peak:.0%} of {scale * e.peak:.3g} by {e.decisive or 'copying'}"
